//! What the host caches of a kind, and which changes matter.

use std::marker::PhantomData;

use crate::{
    Dynamic, Object, Predicate, TypeMeta, contract::exports::pilothouse::plugin::controller as wire,
    permission::Permission,
};

/// Selects the objects of kind `K` that are cached, how much of each is cached, and which changes matter. By default:
/// everything.
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use pilothouse_sdk::{Predicate, Watch};
///
/// Watch::of::<Pod>()
///     .namespaces(["shop"])
///     .labels("app=web")
///     .fields("spec.nodeName=n1,status.phase!=Succeeded")
///     .without(["status.containerStatuses"])
///     .when(Predicate::generation().or(Predicate::labels()));
/// ```
#[derive(Debug)]
#[must_use = "a watch does nothing by itself: give it to a controller or a plugin"]
pub struct Watch<K> {
    wire: wire::Watch,
    when: Option<Predicate>,
    kind: PhantomData<fn() -> K>,
}

impl Watch<()> {
    /// Watches all objects of kind `K` in every granted namespace.
    pub fn of<K: Object>() -> Watch<K> {
        Watch::new(K::type_meta())
    }

    /// Watches all objects of a kind that is known only at run time, in every granted namespace.
    ///
    /// ```
    /// use pilothouse_sdk::{TypeMeta, Watch};
    ///
    /// Watch::to(TypeMeta::new("example.com/v1", "Backup")).labels("tier=gold");
    /// ```
    pub fn to(of: TypeMeta) -> Watch<Dynamic> {
        Watch::new(of)
    }

    /// Watches the objects of all kinds: a pattern, which only [`Plugin::observe`](crate::Plugin::observe) takes.
    ///
    /// The host follows CustomResourceDefinitions and API servers that come and go. Each kind that can be listed and
    /// watched matches, in the version that the API server prefers. A kind that the plugin observes by its name is not
    /// part of a pattern. If several patterns match a kind, the first one counts.
    ///
    /// Of the kinds that match, the plugin gets those that the administrator grants, up to `limits.watches`. Grant
    /// Secrets only to a plugin that needs them: a grant of all kinds includes them.
    ///
    /// ```
    /// use pilothouse_sdk::{mock::MockHost, prelude::*};
    /// use serde_json::json;
    ///
    /// fn seen(_: &ObserverContext, seen: &Observed<Dynamic>) -> Result<(), Error> {
    ///     let object = seen.change.latest();
    ///     info!("seen", kind = object.type_meta().kind, name = object.name());
    ///     Ok(())
    /// }
    ///
    /// #[plugin]
    /// fn everything() -> Plugin {
    ///     let noise = [TypeMeta::new("v1", "Event"), TypeMeta::new("events.k8s.io/*", "*")];
    ///     Plugin::new("Logs all changes, except Events.").observe(Watch::all().except(noise).metadata_only(), seen)
    /// }
    ///
    /// let backup = Dynamic::new(TypeMeta::new("example.com/v1", "Backup"), "nightly");
    /// let event = Dynamic::new(TypeMeta::new("v1", "Event"), "started");
    /// let mut host = MockHost::new(everything).with(backup).with(event);
    /// host.observe().expect("the handler succeeds");
    /// assert_eq!(host.lines().len(), 1);
    /// ```
    pub fn all() -> Watch<Dynamic> {
        Watch::new(TypeMeta::new("*", "*"))
    }

    /// Watches the objects of all kinds of a group: a pattern, as [`all`](Self::all). The core group is `""`.
    ///
    /// For one version of a group, use [`to`](Self::to) with the kind `*`.
    ///
    /// ```
    /// use pilothouse_sdk::{TypeMeta, Watch};
    ///
    /// Watch::group("apps").except([TypeMeta::new("apps/v1", "ControllerRevision")]);
    /// Watch::to(TypeMeta::new("apps/v1", "*"));
    /// ```
    pub fn group(group: &str) -> Watch<Dynamic> {
        let versions = if group.is_empty() { "v1".to_owned() } else { format!("{group}/*") };
        Watch::new(TypeMeta::new(versions, "*"))
    }
}

impl Watch<Dynamic> {
    /// Leaves out kinds of a pattern. They may be patterns themselves.
    ///
    /// ```
    /// use pilothouse_sdk::{TypeMeta, Watch};
    ///
    /// Watch::all().except([TypeMeta::new("v1", "Secret"), TypeMeta::new("coordination.k8s.io/*", "*")]);
    /// ```
    pub fn except(mut self, kinds: impl IntoIterator<Item = TypeMeta>) -> Self {
        self.wire.except.extend(kinds);
        self
    }

    /// Watches only the kinds of a pattern that the API server serves with these verbs: `create`, `delete`,
    /// `deletecollection`, `get`, `patch`, `update`. All kinds have `list` and `watch`. The mock host has all verbs for
    /// every kind.
    ///
    /// ```
    /// use pilothouse_sdk::Watch;
    ///
    /// // What nobody can create is no part of a backup.
    /// Watch::all().with_verbs(["create"]);
    /// ```
    pub fn with_verbs(mut self, verbs: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.wire.with_verbs.extend(verbs.into_iter().map(Into::into));
        self
    }
}

impl<K> Watch<K> {
    fn new(of: TypeMeta) -> Self {
        let wire = wire::Watch {
            of,
            except: Vec::new(),
            with_verbs: Vec::new(),
            namespaces: Vec::new(),
            labels: None,
            fields: None,
            metadata_only: false,
            without: Vec::new(),
            compressed: false,
            when: Vec::new(),
        };
        Self { wire, when: None, kind: PhantomData }
    }

    /// Watches only objects in these namespaces.
    pub fn namespaces(mut self, namespaces: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.wire.namespaces = namespaces.into_iter().map(Into::into).collect();
        self
    }

    /// Watches only objects that this label selector matches: `app=web,tier!=cache`, `env in (a, b)`, `!legacy`.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.wire.labels = Some(selector.into());
        self
    }

    /// Watches only objects that this field selector matches: `spec.nodeName=n1,status.phase!=Succeeded`. The fields
    /// must be those by which the API server can select this kind.
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.wire.fields = Some(selector.into());
        self
    }

    /// Caches only apiVersion, kind and metadata. The plugin never sees the rest.
    ///
    /// Not allowed for what a controller owns. Not suitable for a kind whose status the controller writes, because the
    /// host compares the status before it writes. Use [`without`](Self::without) with `spec` there.
    ///
    /// If `K` has other required fields, use `kube::core::PartialObjectMeta<K>`.
    pub fn metadata_only(mut self) -> Self {
        self.wire.metadata_only = true;
        self
    }

    /// Does not cache these field paths, such as `metadata.annotations["example.com/report"]` or `status.images`. The
    /// plugin never sees them. At most 64. Fields that identify the object or control its life are always cached:
    /// labels, owner references, finalizers and the like. Not allowed for what a controller owns.
    ///
    /// A change of such a field still counts, unless [`when`](Self::when) rejects it. To write such an object with the
    /// client, patch or apply it: an update would remove the missing fields.
    pub fn without(mut self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.wire.without.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Caches the objects compressed, for large kinds that are rarely read. It takes effect only if all watches of the
    /// kind set it, in all plugins that share the cache.
    pub fn compressed(mut self) -> Self {
        self.wire.compressed = true;
        self
    }

    /// Selects the changes that matter. Ignored for what a controller [reads](crate::ControllerBuilder::reads): there,
    /// tracked reads decide.
    ///
    /// If it is called twice, a change must pass both predicates.
    pub fn when(mut self, predicate: Predicate) -> Self {
        self.when = Some(match self.when {
            None => predicate,
            Some(before) => before.and(predicate),
        });
        self
    }

    pub(crate) fn kind(&self) -> &TypeMeta {
        &self.wire.of
    }

    pub(crate) fn erase(self) -> Watched {
        Watched { wire: self.wire, when: self.when }
    }
}

/// A watch without the type of its kind.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) wire: wire::Watch,
    pub(crate) when: Option<Predicate>,
}

impl Watched {
    /// # Errors
    /// Fails if its predicate is too large.
    pub(crate) fn into_wire(self) -> Result<wire::Watch, String> {
        let when = self.when.map_or(Ok(Vec::new()), Predicate::into_wire);
        let when = when.map_err(|problem| format!("the watch of {}: {problem}", self.wire.of))?;
        Ok(wire::Watch { when, ..self.wire })
    }

    /// Returns `true` if it names this kind, by itself or by a pattern.
    pub(crate) fn selects(&self, of: &TypeMeta) -> bool {
        self.wire.of.selects(of) && !self.wire.except.iter().any(|except| except.selects(of))
    }

    /// Returns the permission to do this with the watched objects.
    pub(crate) fn permission(&self, verbs: impl IntoIterator<Item = wire::Verb>) -> Permission {
        Permission::to(self.wire.of.clone()).namespaces(self.wire.namespaces.clone()).verbs(verbs)
    }
}
