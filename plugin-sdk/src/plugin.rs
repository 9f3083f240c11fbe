//! A plugin as a value: what it says of itself, and the functions that reconcile.
//!
//! The value is built anew for each call, as the contract carries nothing over, so building it is cheap: a
//! CustomResourceDefinition is only rendered when the host asks for the description.

use std::time::Duration;

use kube::CustomResourceExt;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;

use crate::contract::exports::pilothouse::plugin::controller as wire;
use crate::permission::{self, Permission};
use crate::{Context, Error, Object, Outcome, TypeMeta};

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
/// fn observer() -> Plugin {
///     Plugin::new("Counts the keys of every ConfigMap.")
///         .controller(Controller::of::<ConfigMap>().without_status().reconcile(reconcile))
/// }
/// ```
#[derive(Debug)]
#[must_use]
pub struct Plugin {
    description: String,
    controllers: Vec<Controller>,
    permissions: Vec<Permission>,
    crds: Vec<Crd>,
    config_schema: Option<fn() -> schemars::Schema>,
}

/// A CustomResourceDefinition to be rendered when it is asked for.
#[derive(Debug)]
struct Crd {
    name: &'static str,
    render: fn() -> serde_json::Result<String>,
}

impl Plugin {
    /// A plugin that does nothing yet. `description` is one sentence, for people.
    pub fn new(description: impl Into<String>) -> Self {
        Self {
            description: description.into(),
            controllers: Vec::new(),
            permissions: Vec::new(),
            crds: Vec::new(),
            config_schema: None,
        }
    }

    /// Adds a reconcile loop. What it needs of permissions is asked for by itself.
    pub fn controller(mut self, controller: Controller) -> Self {
        self.controllers.push(controller);
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
    /// let plugin = Plugin::new("Lights lamps.").crd::<Lamp>();
    /// ```
    pub fn crd<K: CustomResourceExt>(mut self) -> Self {
        self.crds.push(Crd { name: K::crd_name(), render: || serde_json::to_string(&K::crd()) });
        self
    }

    /// Asks for a permission that no controller implies, such as for what is done through the
    /// [client](Context::client).
    pub fn permission(mut self, permission: Permission) -> Self {
        self.permissions.push(permission);
        self
    }

    /// Shows the JSON schema of the configuration to people.
    pub fn config_schema<C: JsonSchema>(mut self) -> Self {
        self.config_schema = Some(|| SchemaSettings::draft07().into_generator().into_root_schema_for::<C>());
        self
    }

    pub(crate) fn controller_named(self, name: &str) -> Option<Controller> {
        self.controllers.into_iter().find(|controller| controller.name == name)
    }

    /// What the plugin says of itself across the border.
    pub(crate) fn manifest(self, version: &str) -> serde_json::Result<wire::Manifest> {
        let mut permissions: Vec<Permission> = self.controllers.iter().flat_map(Controller::permissions).collect();
        if !self.crds.is_empty() {
            let definitions = TypeMeta::new("apiextensions.k8s.io/v1", "CustomResourceDefinition");
            let names = self.crds.iter().map(|crd| crd.name);
            permissions.push(Permission::to(definitions).verbs([wire::Verb::Apply]).names(names));
        }
        permissions.extend(self.permissions);
        Ok(wire::Manifest {
            version: version.to_owned(),
            description: self.description,
            controllers: self.controllers.into_iter().map(Controller::into_wire).collect(),
            permissions: permission::merged(permissions),
            crds: self.crds.iter().map(|crd| (crd.render)()).collect::<serde_json::Result<_>>()?,
            config_schema: self.config_schema.map(|schema| serde_json::to_string(&schema())).transpose()?,
        })
    }
}

/// One reconcile loop: a kind, the kinds of its children, and a function.
pub struct Controller {
    name: String,
    for_: wire::Watch,
    owns: Vec<wire::Watch>,
    status: bool,
    max_concurrency: u32,
    timeout: Option<Duration>,
    reconcile: Reconcile,
}

type Reconcile = Box<dyn Fn(wire::Request) -> Result<Outcome, Error>>;

impl Controller {
    /// Starts a controller for `K`. Its name is the kind in lower case.
    pub fn of<K: Object>() -> ControllerBuilder<K> {
        let of = K::type_meta();
        ControllerBuilder {
            name: of.kind.to_ascii_lowercase(),
            for_: wire::Watch { of, namespaces: Vec::new(), labels: None },
            owns: Vec::new(),
            status: true,
            max_concurrency: 0,
            timeout: None,
            kind: std::marker::PhantomData,
        }
    }

    /// Calls the function.
    pub(crate) fn reconcile(&self, request: wire::Request) -> Result<Outcome, Error> {
        (self.reconcile)(request)
    }

    fn permissions(&self) -> Vec<Permission> {
        let of = |watch: &wire::Watch| Permission::to(watch.of.clone()).namespaces(watch.namespaces.clone());
        let mut permissions = vec![of(&self.for_).verbs([wire::Verb::Read])];
        if self.status {
            permissions.push(of(&self.for_).status().verbs([wire::Verb::Apply]));
        }
        let children = [wire::Verb::Read, wire::Verb::Apply, wire::Verb::Delete];
        permissions.extend(self.owns.iter().map(|watch| of(watch).verbs(children)));
        permissions
    }

    fn into_wire(self) -> wire::Controller {
        let millis = |timeout: Duration| u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        wire::Controller {
            name: self.name,
            for_: self.for_,
            owns: self.owns,
            max_concurrency: self.max_concurrency,
            timeout_ms: self.timeout.map(millis),
        }
    }
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller").field("name", &self.name).field("for", &self.for_).finish_non_exhaustive()
    }
}

/// A controller that lacks its function still: made by [`Controller::of`], finished by [`reconcile`](Self::reconcile).
///
/// ```
/// use std::time::Duration;
/// use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
/// use pilothouse_sdk::prelude::*;
///
/// fn reconcile(_: &Context, _: &Deployment) -> Result<Outcome, Error> {
///     Ok(Outcome::new().children::<ConfigMap>([]))
/// }
///
/// let controller = Controller::of::<Deployment>()
///     .named("web")
///     .namespaces(["shop"])
///     .labels("app=web")
///     .owns::<ConfigMap>()
///     .without_status()
///     .max_concurrency(4)
///     .timeout(Duration::from_secs(2))
///     .reconcile(reconcile);
/// ```
#[derive(Debug)]
#[must_use = "a controller needs its function: call `reconcile`"]
pub struct ControllerBuilder<K> {
    name: String,
    for_: wire::Watch,
    owns: Vec<wire::Watch>,
    status: bool,
    max_concurrency: u32,
    timeout: Option<Duration>,
    kind: std::marker::PhantomData<K>,
}

impl<K: Object> ControllerBuilder<K> {
    /// Another name than the kind's: lower-case letters, digits and `-`, at most 63. Unique within the plugin.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Only objects in these namespaces, and children there.
    pub fn namespaces(mut self, namespaces: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.for_.namespaces = namespaces.into_iter().map(Into::into).collect();
        for watch in &mut self.owns {
            watch.namespaces.clone_from(&self.for_.namespaces);
        }
        self
    }

    /// Only objects that this label selector matches.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.for_.labels = Some(selector.into());
        self
    }

    /// May have children of kind `C`, and is woken when one of them changes.
    pub fn owns<C: Object>(mut self) -> Self {
        let namespaces = self.for_.namespaces.clone();
        self.owns.push(wire::Watch { of: C::type_meta(), namespaces, labels: None });
        self
    }

    /// Writes no status, and so does not ask for the permission to.
    pub fn without_status(mut self) -> Self {
        self.status = false;
        self
    }

    /// How many keys may be reconciled at once; one, if this is not called. The same key never is.
    pub fn max_concurrency(mut self, keys: u32) -> Self {
        self.max_concurrency = keys;
        self
    }

    /// How long one call may run; 10 s, if this is not called. Counted in whole milliseconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The function that is called for each object of `K` that changed or whose child changed.
    ///
    /// It gets the object as it is in the cache, and for an object that is gone its last known state
    /// ([`Context::phase`]). An object that does not fit `K` is a terminal error and does not reach the function.
    pub fn reconcile<F>(self, reconcile: F) -> Controller
    where
        F: Fn(&Context, &K) -> Result<Outcome, Error> + 'static,
    {
        let call = move |request: wire::Request| {
            let object: K = serde_json::from_str(&request.object).map_err(|error| {
                Error::terminal(format!("{} {} does not fit its type: {error}", K::type_meta(), request.key))
            })?;
            reconcile(&Context::new(request, &object), &object)
        };
        Controller {
            name: self.name,
            for_: self.for_,
            owns: self.owns,
            status: self.status,
            max_concurrency: self.max_concurrency,
            timeout: self.timeout,
            reconcile: Box::new(call),
        }
    }
}
