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

    /// Returns the permission to do this with the watched objects.
    pub(crate) fn permission(&self, verbs: impl IntoIterator<Item = wire::Verb>) -> Permission {
        Permission::to(self.wire.of.clone()).namespaces(self.wire.namespaces.clone()).verbs(verbs)
    }
}
