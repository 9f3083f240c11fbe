//! Maps a changed object to the keys that it concerns.

use std::marker::PhantomData;

use crate::{
    AnyObject, Error, Key,
    cache::Cache,
    change::Change,
    contract::{exports::pilothouse::plugin::controller as wire, mapping::exports::pilothouse::plugin::mapper},
};

/// Maps a changed object of kind `T` to keys of the kind that the controller is for.
///
/// A mapping looks at the object before and after the change. It is for objects that a reconcile does not read: what it
/// reads wakes it anyway.
#[must_use = "a mapping does nothing by itself: give it to ControllerBuilder::watches"]
pub struct Mapping<T> {
    pub(crate) wire: wire::Mapping,
    pub(crate) function: Option<Function>,
    kind: PhantomData<fn(T)>,
}

pub(crate) type Function = Box<dyn Fn(&mapper::Change) -> Result<Vec<Key>, String>>;

impl<T: AnyObject> Mapping<T> {
    /// Maps to the controlling owner, if it is of the controller's kind.
    pub fn owner() -> Self {
        Self::new(wire::Mapping::Owner)
    }

    /// Maps to all owners of the controller's kind.
    pub fn any_owner() -> Self {
        Self::new(wire::Mapping::AnyOwner)
    }

    /// Maps to the object's own name and namespace.
    pub fn same_key() -> Self {
        Self::new(wire::Mapping::SameKey)
    }

    /// Maps to the name in this label of the object, in the object's namespace.
    pub fn label(name: impl Into<String>) -> Self {
        Self::new(wire::Mapping::Label(name.into()))
    }

    /// Maps to every object of the controller's kind that holds the changed object's name in this index. If both kinds
    /// are namespaced, only objects in the same namespace count.
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
    ///     Plugin::new("Watches the ConfigMaps of Deployments.").index::<Deployment>("config-maps", path).controller(controller)
    /// }
    /// ```
    pub fn index(name: impl Into<String>) -> Self {
        Self::new(wire::Mapping::Index(name.into()))
    }

    /// Maps by this function. The function may read the cache. The host does not track these reads.
    ///
    /// The function is also called for the objects of the initial list. If it fails, the host retries it with growing
    /// delay. Changes of one object arrive in order, and several pending changes are merged into one.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{Node, Pod};
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// Returns the node that a Pod is on, and the one that it was on.
    /// fn nodes(_: &Cache, change: &Change<Pod>) -> Result<Vec<Key>, Error> {
    ///     let specs = change.sides().filter_map(|pod| pod.spec.as_ref());
    ///     Ok(specs.filter_map(|spec| spec.node_name.as_deref()).map(Key::cluster).collect())
    /// }
    ///
    /// #[plugin]
    /// fn plugin() -> Plugin {
    ///     let controller = Controller::of::<Node>().watches(Mapping::with(nodes)).reconcile(|_, _| Ok(Outcome::new()));
    ///     Plugin::new("Reconciles nodes when their Pods change.").controller(controller)
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

impl<T> std::fmt::Debug for Mapping<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.wire.fmt(f)
    }
}
