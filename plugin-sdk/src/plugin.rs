//! A plugin as a value: its description of itself, and its functions.
//!
//! The value is built again for each call, because by default nothing is carried over. So building it must be cheap: a
//! CustomResourceDefinition is rendered only when the host asks for the manifest.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value};

use crate::{
    AnyObject, Controller, Decision, Error, Key, Mutation, Object, Observed, Review, TypeMeta, Watch, Webhook,
    admission::{self, AdmissionContext, Reviews},
    contract::{
        admitting::exports::pilothouse::plugin::admission as admitting,
        exports::pilothouse::plugin::controller as wire, mapping::exports::pilothouse::plugin::mapper,
        observing::exports::pilothouse::plugin::observer,
    },
    conversion::{self, Converts},
    http::HttpPermission,
    metrics::{Declared, Metric},
    observer::{ObserverContext, Observes},
    permission::{self, Permission},
};

/// A plugin: controllers, observers, and what they need.
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
#[must_use]
pub struct Plugin {
    description: String,
    controllers: Vec<Controller>,
    indexes: Vec<wire::Index>,
    observes: Vec<Observes>,
    reviews: Vec<Reviews>,
    converts: Vec<Converts>,
    permissions: Vec<Permission>,
    crds: Vec<Crd>,
    config_schema: Option<fn() -> schemars::Schema>,
    http: Vec<HttpPermission>,
    metrics: Vec<&'static dyn Metric>,
    instances: wire::InstancePolicy,
}

/// A CustomResourceDefinition that is rendered on demand.
struct Crd {
    name: String,
    render: Box<dyn Fn() -> serde_json::Result<String>>,
}

impl Plugin {
    /// Creates a plugin that does nothing yet. `description` is one sentence, for people.
    pub fn new(description: impl Into<String>) -> Self {
        Self {
            description: description.into(),
            controllers: Vec::new(),
            indexes: Vec::new(),
            observes: Vec::new(),
            reviews: Vec::new(),
            converts: Vec::new(),
            permissions: Vec::new(),
            crds: Vec::new(),
            config_schema: None,
            http: Vec::new(),
            metrics: Vec::new(),
            instances: wire::InstancePolicy::Fresh,
        }
    }

    /// Adds a reconcile loop. Asks for the permissions that it needs.
    pub fn controller(mut self, controller: Controller) -> Self {
        self.controllers.push(controller);
        self
    }

    /// Indexes the cached objects of `K` by a field, for [lists](crate::cache::List::index) and
    /// [mappings](crate::Mapping::index).
    ///
    /// `name` is unique within the plugin. `K` is a kind that a controller is for, owns, watches or reads. `path` is a
    /// field path: `spec.nodeName`, `spec.volumes[*].configMap.name`, `metadata.annotations["example.com/team"]`. Each
    /// string, number and boolean at this path is a value.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{Node, Pod};
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// Counts the Pods of a node. Runs again whenever one comes or goes.
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

    /// Adds a handler that gets the changes of a kind: an informer event handler. Asks for the permission to read.
    ///
    /// Changes of one object arrive in order, and never in two calls at once. If the handler fails, the host retries it
    /// with growing delay. The retry may repeat changes that the handler has handled already, so a handler must accept
    /// a change twice. What happens to these objects in the meantime is merged into their changes.
    ///
    /// Each kind can be observed once. [`Watch::all`] and [`Watch::group`] also observe kinds that are
    /// defined after the plugin was built.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Node;
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// fn seen(_: &ObserverContext, node: &Observed<Node>) -> Result<(), Error> {
    ///     match &node.change {
    ///         Change::Added(node) => info!("joined", node = node.name()),
    ///         Change::Deleted(node) => info!("left", node = node.name()),
    ///         Change::Updated { .. } => {}
    ///     }
    ///     Ok(())
    /// }
    ///
    /// #[plugin]
    /// fn watcher() -> Plugin {
    ///     let joined_or_left = Watch::of::<Node>().metadata_only().when(Predicate::cel("object == null || old == null"));
    ///     Plugin::new("Logs which nodes come and go.").observe(joined_or_left, seen)
    /// }
    ///
    /// let mut node = Node::default();
    /// node.metadata.name = Some("n1".into());
    /// let mut host = MockHost::new(watcher).with(node);
    /// host.observe().expect("the handler succeeds");
    /// host.remove::<Node>(Key::cluster("n1"));
    /// host.observe().expect("the handler succeeds");
    /// assert_eq!(host.lines().iter().map(|line| line.message.as_str()).collect::<Vec<_>>(), ["joined", "left"]);
    /// ```
    pub fn observe<K, F>(mut self, watch: Watch<K>, handler: F) -> Self
    where
        K: AnyObject,
        F: Fn(&ObserverContext, &Observed<K>) -> Result<(), Error> + 'static,
    {
        self.observes.push(Observes::new(watch, handler));
        self
    }

    /// Adds a validating webhook: the handler allows or denies requests to the API server before it stores their objects.
    ///
    /// If the handler fails, that counts as no answer, and the webhook's failure policy decides. The administrator must
    /// grant the webhook by its name.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// Denies images that do not come from the registry in the ConfigMap `policy/images`.
    /// fn images(ctx: &AdmissionContext, review: &Review<Pod>) -> Result<Decision, Error> {
    ///     let policy = ctx.cache().get::<ConfigMap>(Key::new("policy", "images"))?;
    ///     let registry = policy.and_then(|policy| policy.data?.remove("registry")).unwrap_or_default();
    ///     let containers = review.object.iter().filter_map(|pod| pod.spec.as_ref()).flat_map(|spec| &spec.containers);
    ///     for image in containers.filter_map(|container| container.image.as_ref()) {
    ///         if !image.starts_with(&registry) {
    ///             return Ok(Decision::deny(format!("the image {image} is not from {registry}")));
    ///         }
    ///     }
    ///     Ok(Decision::allow())
    /// }
    ///
    /// #[plugin]
    /// fn policy() -> Plugin {
    ///     let webhook = Webhook::of::<Pod>("images").reads(Watch::of::<ConfigMap>().namespaces(["policy"]));
    ///     Plugin::new("Allows images of one registry only.").validate(webhook, images)
    /// }
    ///
    /// let mut map = ConfigMap::default();
    /// map.metadata.namespace = Some("policy".into());
    /// map.metadata.name = Some("images".into());
    /// map.data = Some([("registry".to_owned(), "registry.example.com/".to_owned())].into());
    /// let host = MockHost::new(policy).with(map);
    /// let pod: Pod = serde_json::from_value(serde_json::json!({
    ///     "metadata": {"namespace": "default", "name": "web"},
    ///     "spec": {"containers": [{"name": "web", "image": "docker.io/nginx"}]},
    /// })).unwrap();
    /// let decision = host.review("images").create(pod).run().expect("the handler succeeds");
    /// assert_eq!(decision.denied(), Some("the image docker.io/nginx is not from registry.example.com/"));
    /// ```
    pub fn validate<K, F>(mut self, webhook: Webhook<K>, handler: F) -> Self
    where
        K: AnyObject,
        F: Fn(&AdmissionContext, &Review<K>) -> Result<Decision, Error> + 'static,
    {
        self.reviews.push(Reviews::validating(webhook, handler));
        self
    }

    /// Adds a mutating webhook: as [`validate`](Self::validate), and the handler may change the object.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// Gives each Pod the label `team`.
    /// fn label(_: &AdmissionContext, review: &Review<Pod>) -> Result<Mutation<Pod>, Error> {
    ///     let Some(mut pod) = review.object.clone() else { return Ok(Decision::allow().into()) };
    ///     pod.metadata.labels.get_or_insert_default().entry("team".into()).or_insert("none".into());
    ///     Ok(Mutation::to(pod))
    /// }
    ///
    /// #[plugin]
    /// fn labels() -> Plugin {
    ///     Plugin::new("Labels Pods.").mutate(Webhook::of::<Pod>("labels"), label)
    /// }
    ///
    /// let mutated = MockHost::new(labels).review("labels").create(Pod::default()).mutated().expect("it succeeds");
    /// assert_eq!(mutated.metadata.labels, Some([("team".to_owned(), "none".to_owned())].into()));
    /// ```
    pub fn mutate<K, F>(mut self, webhook: Webhook<K>, handler: F) -> Self
    where
        K: AnyObject,
        F: Fn(&AdmissionContext, &Review<K>) -> Result<Mutation<K>, Error> + 'static,
    {
        self.reviews.push(Reviews::mutating(webhook, handler));
        self
    }

    /// Adds a CustomResourceDefinition with several versions, and the function that converts its objects.
    ///
    /// `name` is the definition's, such as `lamps.example.com`. `crd` returns it, for example by `kube::core::crd::merge_crds`. `convert` gets an object as it is, and
    /// the version to convert it to, such as `v2`. It changes what differs; the SDK sets `apiVersion`. Name, namespace and
    /// uid must stay as they are. `convert` may not use the host.
    ///
    /// ```
    /// use kube::{CustomResource, CustomResourceExt, core::crd::merge_crds};
    /// use pilothouse_sdk::{mock::MockHost, prelude::*};
    /// use schemars::JsonSchema;
    /// use serde::{Deserialize, Serialize};
    /// use serde_json::{Map, Value, json};
    ///
    /// mod v1 {
    ///     use kube::CustomResource;
    ///     use schemars::JsonSchema;
    ///     use serde::{Deserialize, Serialize};
    ///
    ///     #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
    ///     #[kube(group = "example.com", version = "v1", kind = "Lamp", namespaced)]
    ///     pub struct LampSpec {
    ///         pub lit: bool,
    ///     }
    /// }
    ///
    /// /// From this version on, a lamp has a brightness.
    /// #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
    /// #[kube(group = "example.com", version = "v2", kind = "Lamp", namespaced)]
    /// struct LampSpec {
    ///     percent: u8,
    /// }
    ///
    /// fn convert(mut lamp: Map<String, Value>, to: &str) -> Result<Map<String, Value>, Error> {
    ///     let spec = match (to, &lamp["spec"]) {
    ///         ("v2", spec) if spec["lit"].is_boolean() => json!({"percent": if spec["lit"] == true { 100 } else { 0 }}),
    ///         ("v1", spec) if spec["percent"].is_number() => json!({"lit": spec["percent"] != 0}),
    ///         (_, spec) => spec.clone(),
    ///     };
    ///     lamp.insert("spec".into(), spec);
    ///     Ok(lamp)
    /// }
    ///
    /// #[plugin]
    /// fn lamps() -> Plugin {
    ///     let crd = || merge_crds(vec![v1::Lamp::crd(), Lamp::crd()], "v2").expect("the versions fit together");
    ///     Plugin::new("Lamps in two versions.").crd_versions::<Lamp>(Lamp::crd_name(), crd, convert)
    /// }
    ///
    /// let old = v1::Lamp::new("hall", v1::LampSpec { lit: true });
    /// let lamp: Lamp = MockHost::new(lamps).convert(&old).expect("it is converted");
    /// assert_eq!(lamp.spec.percent, 100);
    /// ```
    pub fn crd_versions<K>(
        mut self,
        name: impl Into<String>,
        crd: fn() -> CustomResourceDefinition,
        convert: impl Fn(Map<String, Value>, &str) -> Result<Map<String, Value>, Error> + 'static,
    ) -> Self
    where
        K: Object,
    {
        let TypeMeta { api_version, kind } = K::type_meta();
        let group = api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
        self.converts.push(Converts::new(group, kind, convert));
        let render = move || {
            let mut definition = serde_json::to_value(crd())?;
            conversion::by_webhook(&mut definition);
            serde_json::to_string(&definition)
        };
        self.crds.push(Crd { name: name.into(), render: Box::new(render) });
        self
    }

    /// Adds the CustomResourceDefinition of `K`, which the host applies before the controllers start. Asks for the
    /// permission to apply it.
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
        let render = || serde_json::to_string(&K::crd());
        self.crds.push(Crd { name: K::crd_name().to_owned(), render: Box::new(render) });
        self
    }

    /// Asks for a permission that no controller implies, such as one for the [client](crate::Context::client).
    pub fn permission(mut self, permission: Permission) -> Self {
        self.permissions.push(permission);
        self
    }

    /// Asks for requests to servers outside the cluster's API: see [`http`](crate::http).
    pub fn http(mut self, permission: HttpPermission) -> Self {
        self.http.push(permission);
        self
    }

    /// Adds a metric of the plugin: see [`metrics`](crate::metrics).
    pub fn metric(mut self, metric: &'static dyn Metric) -> Self {
        self.metrics.push(metric);
        self
    }

    /// Adds the JSON schema of the configuration to the manifest, for people.
    pub fn config_schema<C: JsonSchema>(mut self) -> Self {
        self.config_schema = Some(|| SchemaSettings::draft07().into_generator().into_root_schema_for::<C>());
        self
    }

    /// Lets an instance serve several calls, so that slow computations can be kept in a `static`.
    ///
    /// A plugin must not rely on what a `static` holds, and it must not change the result of a call. The host may have
    /// several instances, and may start a new one for any call. It drops an instance:
    /// - after a panic;
    /// - after 1,000 calls, or a minute without one;
    /// - when it holds more than half of its memory limit;
    /// - when the revision, its configuration or its limits change.
    ///
    /// A plugin in Rust starts in a few microseconds, so it rarely needs this. The administrator may forbid it.
    ///
    /// The mock host calls the plugin in the test's process, where a `static` lasts as long as the test. So test calls
    /// in any order.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use std::sync::OnceLock;
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// Slow to build, and the same for every object.
    /// fn table() -> &'static BTreeMap<u32, u32> {
    ///     static TABLE: OnceLock<BTreeMap<u32, u32>> = OnceLock::new();
    ///     TABLE.get_or_init(|| (0..1000).map(|n| (n * n, n)).collect())
    /// }
    ///
    /// fn reconcile(_: &Context, _: &ConfigMap) -> Result<Outcome, Error> {
    ///     info!("looked up", found = table().contains_key(&49));
    ///     Ok(Outcome::new())
    /// }
    ///
    /// #[plugin]
    /// fn roots() -> Plugin {
    ///     Plugin::new("Looks up roots.")
    ///         .reuse_instances()
    ///         .controller(Controller::of::<ConfigMap>().without_status().reconcile(reconcile))
    /// }
    /// ```
    pub fn reuse_instances(mut self) -> Self {
        self.instances = wire::InstancePolicy::Reuse;
        self
    }

    pub(crate) fn controller_named(self, name: &str) -> Option<Controller> {
        self.controllers.into_iter().find(|controller| controller.name == name)
    }

    /// Returns the keys that the plugin's own functions find for these changes, each once.
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

    /// Calls the handler of each change, in order, until one fails.
    pub(crate) fn observe_changes(&self, changes: &[observer::Change]) -> Result<(), String> {
        changes.iter().try_for_each(|change| {
            // A kind that is observed by its name is no part of a pattern.
            let named = self.observes.iter().find(|observes| *observes.of() == change.of);
            let handler = named.or_else(|| self.observes.iter().find(|observes| observes.watch.selects(&change.of)));
            handler.map_or(Ok(()), |observes| observes.call(change))
        })
    }

    /// Calls the handler of the review's webhook.
    pub(crate) fn review(&self, review: admitting::Review) -> Result<admission::Answer, String> {
        match self.reviews.iter().find(|reviews| reviews.wire.name == review.webhook) {
            Some(reviews) => reviews.call(review),
            None => Err(format!("there is no webhook {:?} in this plugin", review.webhook)),
        }
    }

    /// Converts objects to `api_version`.
    pub(crate) fn convert(&self, api_version: &str, objects: &[String]) -> Result<Vec<String>, String> {
        conversion::convert(&self.converts, api_version, objects)
    }

    /// Returns the manifest for the host.
    ///
    /// # Errors
    /// Fails if a predicate is too large, a kind is observed twice, or a value cannot be serialized.
    pub(crate) fn manifest(self, version: &str) -> Result<wire::Manifest, String> {
        let mut permissions: Vec<Permission> = self.controllers.iter().flat_map(Controller::permissions).collect();
        permissions.extend(self.observes.iter().map(|observes| observes.watch.permission([wire::Verb::Read])));
        permissions.extend(self.reviews.iter().flat_map(Reviews::permissions));
        if !self.crds.is_empty() {
            let definitions = TypeMeta::new("apiextensions.k8s.io/v1", "CustomResourceDefinition");
            let names = self.crds.iter().map(|crd| crd.name.clone());
            permissions.push(Permission::to(definitions).verbs([wire::Verb::Apply]).names(names));
        }
        permissions.extend(self.permissions);
        for (i, observes) in self.observes.iter().enumerate() {
            if self.observes.iter().take(i).any(|before| before.of() == observes.of()) {
                return Err(format!(
                    "{} is observed twice: observe it once, with a watch that covers both",
                    observes.of()
                ));
            }
        }
        let text = |problem: serde_json::Error| format!("cannot serialize the manifest: {problem}");
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
            metrics: self.metrics.into_iter().map(Declared::declaration).collect(),
            http: self.http.into_iter().map(HttpPermission::into_wire).collect(),
            webhooks: self.reviews.into_iter().map(Reviews::into_wire).collect::<Result<_, _>>()?,
        })
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("description", &self.description)
            .field("controllers", &self.controllers)
            .finish_non_exhaustive()
    }
}
