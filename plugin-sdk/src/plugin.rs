//! A plugin as a value: what it says of itself, and the functions that reconcile.
//!
//! The value is built anew for each call, as the contract by default carries nothing over, so building it is cheap: a
//! CustomResourceDefinition is only rendered when the host asks for the description.

use kube::CustomResourceExt;
use schemars::{JsonSchema, generate::SchemaSettings};

use crate::{
    Controller, Error, Key, Object, Observed, TypeMeta, Watch,
    contract::{
        exports::pilothouse::plugin::controller as wire, mapping::exports::pilothouse::plugin::mapper,
        observing::exports::pilothouse::plugin::observer,
    },
    exports::ExportsObserver,
    observer::{Host, Observes},
    permission::{self, Permission},
};

/// What a plugin is, and what it does.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use pilothouse_sdk::prelude::*;
///
/// fn reconcile(ctx: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
///     info!("seen", keys = map.data.as_ref().map_or(0, |data| data.len()));
///     Ok(Outcome::new())
/// }
///
/// #[plugin]
/// fn counter() -> Plugin {
///     Plugin::new("Counts the keys of every ConfigMap.")
///         .controller(Controller::of::<ConfigMap>().without_status().reconcile(reconcile))
/// }
/// ```
///
/// `E` is what it exports besides: nothing, [`Mapper`](crate::Mapper), [`Observer`](crate::Observer), or both as a pair.
#[must_use]
pub struct Plugin<E = ()> {
    description: String,
    controllers: Vec<Controller<E>>,
    indexes: Vec<wire::Index>,
    observes: Vec<Observes>,
    permissions: Vec<Permission>,
    crds: Vec<Crd>,
    config_schema: Option<fn() -> schemars::Schema>,
    instances: wire::InstancePolicy,
}

/// A CustomResourceDefinition to be rendered when it is asked for.
#[derive(Debug)]
struct Crd {
    name: &'static str,
    render: fn() -> serde_json::Result<String>,
}

impl<E> Plugin<E> {
    /// A plugin that does nothing yet. `description` is one sentence, for people.
    pub fn new(description: impl Into<String>) -> Self {
        Self {
            description: description.into(),
            controllers: Vec::new(),
            indexes: Vec::new(),
            observes: Vec::new(),
            permissions: Vec::new(),
            crds: Vec::new(),
            config_schema: None,
            instances: wire::InstancePolicy::Fresh,
        }
    }

    /// Adds a reconcile loop. What it needs of permissions is asked for by itself.
    pub fn controller(mut self, controller: Controller<E>) -> Self {
        self.controllers.push(controller);
        self
    }

    /// Keeps the cached objects of `K` by the value of a field, for [lists](crate::cache::List::index) and
    /// [mappings](crate::Mapping::index).
    ///
    /// `name` is unique within the plugin. `path` is a field path: `spec.nodeName`, `spec.volumes[*].configMap.name`,
    /// `metadata.annotations["example.com/team"]`. Each string, number and boolean that is found there is a value. `K` is a kind
    /// that a controller is for, owns, watches or reads.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{Node, Pod};
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// How many Pods a node has, counted again whenever one comes or goes.
    /// fn reconcile(ctx: &Context, node: &Node) -> Result<Outcome, Error> {
    ///     let pods = ctx.cache().list::<Pod>().index("pods-by-node", node.name()).keys().count();
    ///     info!("counted", pods = pods);
    ///     Ok(Outcome::new())
    /// }
    ///
    /// #[plugin]
    /// fn counter() -> Plugin {
    ///     Plugin::new("Counts the Pods of every node.")
    ///         .index::<Pod>("pods-by-node", "spec.nodeName")
    ///         .controller(Controller::of::<Node>().reads::<Pod>().without_status().reconcile(reconcile))
    /// }
    /// ```
    pub fn index<K: Object>(mut self, name: impl Into<String>, path: impl Into<String>) -> Self {
        self.indexes.push(wire::Index { name: name.into(), of: K::type_meta(), path: path.into() });
        self
    }

    /// Is told of changes themselves, and not only that something changed: informer event handlers.
    ///
    /// Of one object in order, and never two at once. Where the handler fails it is told again, with growing delay, perhaps
    /// with others that it was told of together, and with what happened to them meanwhile; so it must bear to be told twice. The
    /// permission to read is asked for by itself. Once for each kind.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Node;
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// fn seen(_: &Host, node: &Observed<Node>) -> Result<(), Error> {
    ///     match &node.change {
    ///         Change::Added(node) => info!("joined", node = node.name()),
    ///         Change::Deleted(node) => info!("left", node = node.name()),
    ///         Change::Updated { .. } => {}
    ///     }
    ///     Ok(())
    /// }
    ///
    /// #[plugin]
    /// fn doorman() -> Plugin<Observer> {
    ///     let joined_or_left = Watch::of::<Node>().metadata_only().when(Predicate::cel("object == null || old == null"));
    ///     Plugin::new("Says which nodes come and go.").observe(joined_or_left, seen)
    /// }
    ///
    /// let mut node = Node::default();
    /// node.metadata.name = Some("n1".into());
    /// let mut host = MockHost::new(doorman).with(node);
    /// host.observe().expect("the handler succeeds");
    /// host.remove::<Node>(Key::cluster("n1"));
    /// host.observe().expect("the handler succeeds");
    /// assert_eq!(host.lines().iter().map(|line| line.message.as_str()).collect::<Vec<_>>(), ["joined", "left"]);
    /// ```
    pub fn observe<K, F>(mut self, watch: Watch<K>, handler: F) -> Self
    where
        E: ExportsObserver,
        K: Object,
        F: Fn(&Host, &Observed<K>) -> Result<(), Error> + 'static,
    {
        self.observes.push(Observes::new(watch, handler));
        self
    }

    /// Brings the CustomResourceDefinition of `K`: the host applies it before the controllers start. The permission for
    /// it is asked for by itself.
    ///
    /// ```
    /// use kube::CustomResource;
    /// use pilothouse_sdk::prelude::*;
    /// use schemars::JsonSchema;
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
    /// #[kube(group = "example.com", version = "v1", kind = "Lamp", namespaced)]
    /// struct LampSpec {
    ///     lit: bool,
    /// }
    ///
    /// fn plugin() -> Plugin {
    ///     Plugin::new("Lights lamps.").crd::<Lamp>()
    /// }
    /// ```
    pub fn crd<K: CustomResourceExt>(mut self) -> Self {
        self.crds.push(Crd { name: K::crd_name(), render: || serde_json::to_string(&K::crd()) });
        self
    }

    /// Asks for a permission that no controller implies, such as for what is done through the
    /// [client](crate::Context::client).
    pub fn permission(mut self, permission: Permission) -> Self {
        self.permissions.push(permission);
        self
    }

    /// Shows the JSON schema of the configuration to people.
    pub fn config_schema<C: JsonSchema>(mut self) -> Self {
        self.config_schema = Some(|| SchemaSettings::draft07().into_generator().into_root_schema_for::<C>());
        self
    }

    /// Lets an instance serve call after call, so that what is slow to compute is not computed at each: what statics hold is there in the next
    /// call, perhaps.
    ///
    /// Nothing of it may be relied on, nor change what a call answers. The host may have several instances at once, and may begin with a new one
    /// at any call: it always does after a panic, after 1000 calls, after a minute without one, when an instance holds more than half of its
    /// memory limit, and for another revision, configuration or limits. A plugin in Rust starts in some microseconds and seldom needs it.
    /// The administrator may forbid it.
    ///
    /// The mock host calls a plugin in its own process, where statics last as long as the test: so try calls in any order.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use std::sync::OnceLock;
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// Takes a while to build, and is the same for everybody.
    /// fn table() -> &'static BTreeMap<u32, u32> {
    ///     static TABLE: OnceLock<BTreeMap<u32, u32>> = OnceLock::new();
    ///     TABLE.get_or_init(|| (0..1000).map(|n| (n * n, n)).collect())
    /// }
    ///
    /// fn reconcile(_: &Context, _: &ConfigMap) -> Result<Outcome, Error> {
    ///     info!("looked", found = table().contains_key(&49));
    ///     Ok(Outcome::new())
    /// }
    ///
    /// #[plugin]
    /// fn roots() -> Plugin {
    ///     Plugin::new("Looks roots up.")
    ///         .reuse_instances()
    ///         .controller(Controller::of::<ConfigMap>().without_status().reconcile(reconcile))
    /// }
    /// ```
    pub fn reuse_instances(mut self) -> Self {
        self.instances = wire::InstancePolicy::Reuse;
        self
    }

    pub(crate) fn controller_named(self, name: &str) -> Option<Controller<E>> {
        self.controllers.into_iter().find(|controller| controller.name == name)
    }

    /// The keys that the plugin's own functions find for changes, each once.
    pub(crate) fn map(self, controller: &str, changes: &[mapper::Change]) -> Result<Vec<Key>, String> {
        let Some(controller) = self.controller_named(controller) else {
            return Err(format!("there is no controller {controller:?} in this plugin"));
        };
        let mut keys = std::collections::BTreeSet::new();
        for change in changes {
            keys.extend(controller.map(change)?);
        }
        Ok(keys.into_iter().collect())
    }

    /// Tells the handlers, in order, until one fails.
    pub(crate) fn observed(&self, changes: &[observer::Change]) -> Result<(), String> {
        changes.iter().try_for_each(|change| {
            let mut handlers = self.observes.iter().filter(|observes| *observes.of() == change.of);
            handlers.try_for_each(|observes| observes.call(change))
        })
    }

    /// What the plugin says of itself across the border.
    ///
    /// # Errors
    /// What of it cannot cross.
    pub(crate) fn manifest(self, version: &str) -> Result<wire::Manifest, String> {
        let mut permissions: Vec<Permission> = self.controllers.iter().flat_map(Controller::permissions).collect();
        permissions.extend(self.observes.iter().map(|observes| observes.watch.permission([wire::Verb::Read])));
        if !self.crds.is_empty() {
            let definitions = TypeMeta::new("apiextensions.k8s.io/v1", "CustomResourceDefinition");
            let names = self.crds.iter().map(|crd| crd.name);
            permissions.push(Permission::to(definitions).verbs([wire::Verb::Apply]).names(names));
        }
        permissions.extend(self.permissions);
        for (i, observes) in self.observes.iter().enumerate() {
            if self.observes.iter().take(i).any(|before| before.of() == observes.of()) {
                return Err(format!(
                    "{} is observed twice: a change does not say by which watch it came",
                    observes.of()
                ));
            }
        }
        let text = |problem: serde_json::Error| format!("the description cannot be JSON: {problem}");
        Ok(wire::Manifest {
            version: version.to_owned(),
            description: self.description,
            controllers: self.controllers.into_iter().map(Controller::into_wire).collect::<Result<_, _>>()?,
            indexes: self.indexes,
            observes: self.observes.into_iter().map(|observes| observes.watch.into_wire()).collect::<Result<_, _>>()?,
            permissions: permission::merged(permissions),
            crds: self.crds.iter().map(|crd| (crd.render)()).collect::<serde_json::Result<_>>().map_err(text)?,
            config_schema: self
                .config_schema
                .map(|schema| serde_json::to_string(&schema()))
                .transpose()
                .map_err(text)?,
            instances: self.instances,
        })
    }
}

impl<E> std::fmt::Debug for Plugin<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("description", &self.description)
            .field("controllers", &self.controllers)
            .finish_non_exhaustive()
    }
}
