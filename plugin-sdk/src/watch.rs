//! What is kept in the cache of a kind, and which of its changes matter.

use std::marker::PhantomData;

use crate::{Object, Predicate, contract::exports::pilothouse::plugin::controller as wire, permission::Permission};

/// Which objects of kind `K` are cached, how much of each, and which of their changes matter. At first: all of everything.
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
    /// All objects of kind `K` in every namespace that is granted.
    pub fn of<K: Object>() -> Watch<K> {
        let wire = wire::Watch {
            of: K::type_meta(),
            namespaces: Vec::new(),
            labels: None,
            fields: None,
            metadata_only: false,
            without: Vec::new(),
            compressed: false,
            when: Vec::new(),
        };
        Watch { wire, when: None, kind: PhantomData }
    }
}

impl<K: Object> Watch<K> {
    /// Only objects in these namespaces.
    pub fn namespaces(mut self, namespaces: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.wire.namespaces = namespaces.into_iter().map(Into::into).collect();
        self
    }

    /// Only objects that this label selector matches: `app=web,tier!=cache`, `env in (a, b)`, `!legacy`.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.wire.labels = Some(selector.into());
        self
    }

    /// Only objects that this field selector matches, of fields that the API server selects this kind by:
    /// `spec.nodeName=n1,status.phase!=Succeeded`.
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.wire.fields = Some(selector.into());
        self
    }

    /// Only apiVersion, kind and metadata of each are cached: the plugin never sees more. Not for what a controller owns, and not where
    /// it writes the status by its outcome, which could not be compared: go [without](Self::without) `spec` there.
    ///
    /// Where `K` cannot do without the rest, read `kube::core::PartialObjectMeta<K>`.
    pub fn metadata_only(mut self) -> Self {
        self.wire.metadata_only = true;
        self
    }

    /// What these field paths name is not cached, such as `metadata.annotations["example.com/report"]` or `status.images`: the plugin
    /// never sees it. At most 64. What says which object it is and what becomes of it cannot be left out: labels, owner references,
    /// finalizers and the like. Not for what a controller owns.
    ///
    /// A change of it is a change all the same, unless [`when`](Self::when) says otherwise. To write such an object by the client, patch
    /// or apply it: an update would remove what is left out.
    pub fn without(mut self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.wire.without.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Kept compressed, for large kinds that are seldom read. A hint, which counts where all watches of the kind give it, of all plugins
    /// that share what is cached.
    pub fn compressed(mut self) -> Self {
        self.wire.compressed = true;
        self
    }

    /// Only these changes matter. Of no meaning for what a controller [reads](crate::ControllerBuilder::reads): there what was
    /// read decides.
    ///
    /// Called twice, both must hold.
    pub fn when(mut self, predicate: Predicate) -> Self {
        self.when = Some(match self.when {
            None => predicate,
            Some(before) => before.and(predicate),
        });
        self
    }

    pub(crate) fn erase(self) -> Watched {
        Watched { wire: self.wire, when: self.when }
    }
}

/// A watch whose kind is a value.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) wire: wire::Watch,
    pub(crate) when: Option<Predicate>,
}

impl Watched {
    /// # Errors
    /// Where its predicate explodes.
    pub(crate) fn into_wire(self) -> Result<wire::Watch, String> {
        let when = self.when.map_or(Ok(Vec::new()), Predicate::into_wire);
        let when = when.map_err(|problem| format!("the watch of {}: {problem}", self.wire.of))?;
        Ok(wire::Watch { when, ..self.wire })
    }

    /// To do something with the objects that are watched.
    pub(crate) fn permission(&self, verbs: impl IntoIterator<Item = wire::Verb>) -> Permission {
        Permission::to(self.wire.of.clone()).namespaces(self.wire.namespaces.clone()).verbs(verbs)
    }
}
