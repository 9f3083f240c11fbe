//! From a changed object to the keys that it concerns.

use std::marker::PhantomData;

use crate::{
    Error, Key, Object,
    cache::Cache,
    change::Change,
    contract::{exports::pilothouse::plugin::controller as wire, mapping::exports::pilothouse::plugin::mapper},
    exports::ExportsMapper,
};

/// Whom an object of kind `T` concerns when it changes: keys of the kind that the controller is for.
///
/// Both what it was and what it is count. A mapping is for what a reconcile does not read: what it reads wakes it anyway.
#[must_use = "a mapping does nothing by itself: give it to ControllerBuilder::watches"]
pub struct Mapping<T, E = ()> {
    pub(crate) wire: wire::Mapping,
    pub(crate) function: Option<Function>,
    kind: PhantomData<fn(T) -> E>,
}

pub(crate) type Function = Box<dyn Fn(&mapper::Change) -> Result<Vec<Key>, String>>;

impl<T: Object, E> Mapping<T, E> {
    /// The key that its controlling owner reference names.
    pub fn owner() -> Self {
        Self::new(wire::Mapping::Owner)
    }

    /// The keys that any of its owner references names.
    pub fn any_owner() -> Self {
        Self::new(wire::Mapping::AnyOwner)
    }

    /// Its own name, in its own namespace.
    pub fn same_key() -> Self {
        Self::new(wire::Mapping::SameKey)
    }

    /// The name that this label of it holds, in its own namespace.
    pub fn label(name: impl Into<String>) -> Self {
        Self::new(wire::Mapping::Label(name.into()))
    }

    /// Every object for which this index of the controller's kind holds the changed object's name; where both live in
    /// namespaces, in the same one.
    ///
    /// ```
    /// use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
    /// use pilothouse_sdk::prelude::*;
    ///
    /// fn plugin() -> Plugin {
    ///     let path = "spec.template.spec.volumes[*].configMap.name";
    ///     let controller = Controller::of::<Deployment>()
    ///         .watches::<ConfigMap>(Mapping::index("config-maps"))
    ///         .reconcile(|_, _| Ok(Outcome::new()));
    ///     Plugin::new("Sees the ConfigMaps of Deployments.").index::<Deployment>("config-maps", path).controller(controller)
    /// }
    /// ```
    pub fn index(name: impl Into<String>) -> Self {
        Self::new(wire::Mapping::Index(name.into()))
    }

    /// What this function says. It may read the cache; its reads are not remembered.
    ///
    /// It is called for the objects of the first list too, and again, with growing delay, where it fails. Changes of one object
    /// come in order, and as one if there were several meanwhile.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{Node, Pod};
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// A Pod concerns the node that it is on, and the one that it was on.
    /// fn nodes(_: &Cache, change: &Change<Pod>) -> Result<Vec<Key>, Error> {
    ///     let specs = change.sides().filter_map(|pod| pod.spec.as_ref());
    ///     Ok(specs.filter_map(|spec| spec.node_name.as_deref()).map(Key::cluster).collect())
    /// }
    ///
    /// #[plugin]
    /// fn plugin() -> Plugin<Mapper> {
    ///     let controller = Controller::of::<Node>().watches(Mapping::with(nodes)).reconcile(|_, _| Ok(Outcome::new()));
    ///     Plugin::new("Looks at nodes when their Pods change.").controller(controller)
    /// }
    ///
    /// let pod: Pod = serde_json::from_str(
    ///     r#"{"metadata": {"namespace": "default", "name": "p"}, "spec": {"nodeName": "n1", "containers": []}}"#,
    /// )
    /// .unwrap();
    /// assert_eq!(MockHost::new(plugin).map(&Change::Added(pod)).unwrap(), [Key::cluster("n1")]);
    /// ```
    pub fn with<F>(function: F) -> Self
    where
        E: ExportsMapper,
        F: Fn(&Cache<'_>, &Change<T>) -> Result<Vec<Key>, Error> + 'static,
    {
        let call = move |wire: &mapper::Change| {
            let change = Change::mapped(wire)?;
            function(&Cache::new(), &change)
                .map_err(|error| format!("cannot map {} {}: {error}", wire.of, change.key()))
        };
        Self { function: Some(Box::new(call)), ..Self::new(wire::Mapping::Plugin) }
    }

    fn new(wire: wire::Mapping) -> Self {
        Self { wire, function: None, kind: PhantomData }
    }
}

impl<T, E> std::fmt::Debug for Mapping<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.wire.fmt(f)
    }
}
