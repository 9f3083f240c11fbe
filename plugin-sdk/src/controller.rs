//! One reconcile loop as a value: a kind, related kinds, and a function.

use std::time::Duration;

use crate::{
    AnyObject, Context, Dynamic, Error, Key, Object, Outcome, Predicate, TypeMeta,
    contract::{exports::pilothouse::plugin::controller as wire, mapping::exports::pilothouse::plugin::mapper},
    mapping::{Function, Mapping},
    permission::Permission,
    watch::{Watch, Watched},
};

/// One reconcile loop: a kind, the kinds of its children and of what else it reads, and a function.
pub struct Controller {
    pub(crate) name: String,
    parts: Parts,
    reconcile: Reconcile,
}

type Reconcile = Box<dyn Fn(wire::Request) -> Result<Outcome, Error>>;

/// What [`ControllerBuilder`] collects.
#[derive(Debug)]
struct Parts {
    for_: Watched,
    owns: Vec<Watched>,
    watches: Vec<Mapped>,
    reads: Vec<Watched>,
    status: bool,
    events: bool,
    max_concurrency: u32,
    resync: Option<Duration>,
    timeout: Option<Duration>,
    finalizer: Option<String>,
}

/// A watch, and the keys that its objects concern.
struct Mapped {
    watch: Watched,
    mapping: wire::Mapping,
    function: Option<Function>,
}

impl Controller {
    /// Builds a controller for all objects of `K`. Its name is the kind in lower case.
    pub fn of<K: Object>() -> ControllerBuilder<K> {
        Self::watching(Watch::of::<K>())
    }

    /// Builds a controller for all objects of a kind that is known only at run time, such as one from the plugin's
    /// configuration.
    ///
    /// ```
    /// use pilothouse_sdk::prelude::*;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Config { api_version: String, kind: String }
    ///
    /// #[plugin]
    /// fn reporter(config: Config) -> Result<Plugin, Error> {
    ///     let controller = Controller::to(TypeMeta::new(config.api_version, config.kind))
    ///         .without_status()
    ///         .reconcile(|_, object: &Dynamic| {
    ///             info!("seen", spec = object.data["spec"]);
    ///             Ok(Outcome::new())
    ///         });
    ///     Ok(Plugin::new("Logs the objects of a kind.").controller(controller))
    /// }
    /// ```
    pub fn to(of: TypeMeta) -> ControllerBuilder<Dynamic> {
        Self::watching(Watch::to(of))
    }

    /// Builds a controller for the objects of `K` that a watch selects.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// fn evictor() -> Controller {
    ///     let failed = Watch::of::<Pod>().fields("status.phase=Failed").metadata_only();
    ///     Controller::watching(failed).without_status().reconcile(|_, _| Ok(Outcome::new()))
    /// }
    /// ```
    pub fn watching<K: AnyObject>(watch: Watch<K>) -> ControllerBuilder<K> {
        let name = watch.kind().kind.to_ascii_lowercase();
        let parts = Parts {
            for_: watch.erase(),
            owns: Vec::new(),
            watches: Vec::new(),
            reads: Vec::new(),
            status: true,
            events: false,
            max_concurrency: 0,
            resync: None,
            timeout: None,
            finalizer: None,
        };
        ControllerBuilder { name, parts, kind: std::marker::PhantomData }
    }

    /// Calls the plugin's function.
    pub(crate) fn reconcile(&self, request: wire::Request) -> Result<Outcome, Error> {
        (self.reconcile)(request)
    }

    /// Returns the keys that the plugin's own functions find for a change.
    pub(crate) fn map(&self, change: &mapper::Change) -> Result<Vec<Key>, String> {
        let mut keys = Vec::new();
        for mapped in self.parts.watches.iter().filter(|mapped| mapped.watch.wire.of == change.of) {
            if let Some(function) = &mapped.function {
                keys.extend(function(change)?);
            }
        }
        Ok(keys)
    }

    /// Returns the permissions that the controller needs.
    pub(crate) fn permissions(&self) -> Vec<Permission> {
        use wire::Verb::{Apply, Delete, Patch, Read};
        let parts = &self.parts;
        let mut permissions = vec![parts.for_.permission([Read])];
        if parts.status {
            permissions.push(parts.for_.permission([Apply]).status());
        }
        if parts.finalizer.is_some() {
            permissions.push(parts.for_.permission([Patch]));
        }
        if parts.events {
            permissions.push(Permission::events().namespaces(parts.for_.wire.namespaces.clone()));
        }
        permissions.extend(parts.owns.iter().map(|watch| watch.permission([Read, Apply, Delete])));
        permissions.extend(parts.watches.iter().map(|mapped| mapped.watch.permission([Read])));
        permissions.extend(parts.reads.iter().map(|watch| watch.permission([Read])));
        permissions
    }

    /// # Errors
    /// Fails if a predicate is too large.
    pub(crate) fn into_wire(self) -> Result<wire::Controller, String> {
        let all = |watches: Vec<Watched>| watches.into_iter().map(Watched::into_wire).collect::<Result<_, _>>();
        let Parts { for_, owns, watches, reads, status: _, events: _, max_concurrency, resync, timeout, finalizer } =
            self.parts;
        let mapped = |mapped: Mapped| {
            Ok::<_, String>(wire::MappedWatch { watch: mapped.watch.into_wire()?, mapping: mapped.mapping })
        };
        let millis = |timeout: Duration| u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        // Rounded up: 0 is never.
        let seconds =
            |every: Duration| u32::try_from(every.as_secs() + u64::from(every.subsec_nanos() > 0)).unwrap_or(u32::MAX);
        Ok(wire::Controller {
            name: self.name,
            for_: for_.into_wire()?,
            owns: all(owns)?,
            watches: watches.into_iter().map(mapped).collect::<Result<_, _>>()?,
            reads: all(reads)?,
            max_concurrency,
            resync_seconds: resync.map(seconds),
            timeout_ms: timeout.map(millis),
            finalizer,
        })
    }
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller").field("name", &self.name).field("for", &self.parts.for_).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapped").field("watch", &self.watch).field("mapping", &self.mapping).finish_non_exhaustive()
    }
}

/// Builds a [`Controller`]: starts with [`Controller::of`], and ends with [`reconcile`](Self::reconcile).
///
/// ```
/// use std::time::Duration;
/// use k8s_openapi::api::{apps::v1::Deployment, core::v1::{ConfigMap, Node, Secret, Service}};
/// use pilothouse_sdk::prelude::*;
///
/// fn reconcile(_: &Context, _: &Deployment) -> Result<Outcome, Error> {
///     Ok(Outcome::new().children::<ConfigMap>([]))
/// }
///
/// fn controller() -> Controller {
///     Controller::of::<Deployment>()
///         .named("web")
///         .namespaces(["shop"])
///         .labels("app=web")
///         .when(Predicate::generation())
///         .owns::<ConfigMap>()
///         .reads::<Node>()
///         .reads_with(Watch::of::<Secret>().namespaces(["shop"]).labels("web"))
///         .watches::<Service>(Mapping::same_key())
///         .without_status()
///         .max_concurrency(4)
///         .resync(Duration::from_secs(600))
///         .timeout(Duration::from_secs(2))
///         .reconcile(reconcile)
/// }
/// ```
#[derive(Debug)]
#[must_use = "a controller needs its function: call `reconcile`"]
pub struct ControllerBuilder<K> {
    name: String,
    parts: Parts,
    kind: std::marker::PhantomData<fn() -> K>,
}

impl<K: AnyObject> ControllerBuilder<K> {
    /// Sets the name, instead of the kind's: at most 63 lower-case letters, digits and `-`. Unique within the plugin.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Reconciles only objects in these namespaces, with children there. Watches for other kinds have namespaces of
    /// their own.
    pub fn namespaces(mut self, namespaces: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.parts.for_.wire.namespaces = namespaces.into_iter().map(Into::into).collect();
        self
    }

    /// Reconciles only objects that this label selector matches.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.parts.for_.wire.labels = Some(selector.into());
        self
    }

    /// Wakes only for these changes of the reconciled objects.
    pub fn when(mut self, predicate: Predicate) -> Self {
        self.parts.for_.when = Some(predicate);
        self
    }

    /// Allows children of kind `C`, and wakes when one of them changes.
    pub fn owns<C: Object>(self) -> Self {
        self.owns_with(Watch::of::<C>())
    }

    /// As [`owns`](Self::owns), for the objects that a watch selects.
    pub fn owns_with<C: AnyObject>(mut self, watch: Watch<C>) -> Self {
        self.parts.owns.push(watch.erase());
        self
    }

    /// Allows reads of kind `T` from the cache, and wakes when the result of a read changes. That can be an object, a
    /// missing object, or a list.
    ///
    /// No mapping is needed. Reads of the reconciled kind and of children wake the reconcile without this call. Only
    /// the reads of the last successful call count.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// Reads the Secret of the same name, which may not exist.
    /// fn reconcile(ctx: &Context, _: &ConfigMap) -> Result<Outcome, Error> {
    ///     ctx.cache().get::<Secret>(ctx.key())?;
    ///     Ok(Outcome::new())
    /// }
    ///
    /// fn plugin() -> Plugin {
    ///     Plugin::new("Reads Secrets.").controller(Controller::of::<ConfigMap>().reads::<Secret>().reconcile(reconcile))
    /// }
    ///
    /// # fn named<K: Object + Default>(name: &str) -> K {
    /// #     let mut object = K::default();
    /// #     object.metadata_mut().name = Some(name.into());
    /// #     object.metadata_mut().namespace = Some("default".into());
    /// #     object
    /// # }
    /// let mut host = MockHost::new(plugin).with(named::<ConfigMap>("web"));
    /// host.settle(("default", "web")).expect("it settles");
    /// assert_eq!(host.woken_by(|host| host.put(named::<Secret>("web"))), [Key::new("default", "web")]);
    /// assert_eq!(host.woken_by(|host| host.put(named::<Secret>("other"))), []);
    /// ```
    pub fn reads<T: Object>(self) -> Self {
        self.reads_with(Watch::of::<T>())
    }

    /// As [`reads`](Self::reads), for the objects that a watch selects. [`Watch::to`] names a kind without a Rust type.
    pub fn reads_with<T: AnyObject>(mut self, watch: Watch<T>) -> Self {
        self.parts.reads.push(watch.erase());
        self
    }

    /// Wakes the keys that `mapping` finds when an object of kind `T` changes. Use it for kinds that the reconcile does
    /// not read.
    pub fn watches<T: Object>(self, mapping: Mapping<T>) -> Self {
        self.watches_with(Watch::of::<T>(), mapping)
    }

    /// As [`watches`](Self::watches), for the objects that a watch selects.
    pub fn watches_with<T: AnyObject>(mut self, watch: Watch<T>, mapping: Mapping<T>) -> Self {
        let Mapping { wire: mapping, function, .. } = mapping;
        self.parts.watches.push(Mapped { watch: watch.erase(), mapping, function });
        self
    }

    /// Does not ask for the permission to write the status.
    pub fn without_status(mut self) -> Self {
        self.parts.status = false;
        self
    }

    /// Asks for the permission to write [Events](crate::Event), in the namespaces of the reconciled objects.
    ///
    /// Events about objects elsewhere need [`Permission::events`](crate::Permission::events) with their namespaces.
    pub fn events(mut self) -> Self {
        self.parts.events = true;
        self
    }

    /// Sets how many keys may be reconciled at the same time. The default is 1, and the maximum 256. One key is never
    /// reconciled twice at the same time.
    pub fn max_concurrency(mut self, keys: u32) -> Self {
        self.parts.max_concurrency = keys;
        self
    }

    /// Sets how often every key is reconciled again, plus or minus 10 %. The default is ten hours. Counted in whole
    /// seconds. `Duration::ZERO` means never.
    pub fn resync(mut self, every: Duration) -> Self {
        self.parts.resync = Some(every);
        self
    }

    /// Sets the deadline of one call. The default is 10 s, and the maximum ten minutes. Counted in whole milliseconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.parts.timeout = Some(timeout);
        self
    }

    /// Keeps a finalizer on every object, such as `example.com/cleanup`, for cleanup that must happen before an object
    /// goes. Asks for the permission to patch the objects.
    ///
    /// The host adds the finalizer before the first call for an object. When the object is deleted, the function is
    /// called with [`Phase::Deleting`](crate::Phase::Deleting). The finalizer is removed after a call that succeeds
    /// without [`requeue_after`](crate::Outcome::requeue_after). A failed call is retried. So the cleanup may run more
    /// than once, and must succeed when there is nothing left to clean up. No call follows it.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use pilothouse_sdk::mock::MockHost;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// fn reconcile(ctx: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
    ///     if ctx.phase() == Phase::Deleting {
    ///         info!("cleaned up", name = map.name());
    ///     }
    ///     Ok(Outcome::new())
    /// }
    ///
    /// fn plugin() -> Plugin {
    ///     let controller = Controller::of::<ConfigMap>().finalizer("example.com/cleanup").reconcile(reconcile);
    ///     Plugin::new("Cleans up.").controller(controller)
    /// }
    ///
    /// # let mut map = ConfigMap::default();
    /// # map.metadata.name = Some("m".into());
    /// # map.metadata.namespace = Some("default".into());
    /// let mut host = MockHost::new(plugin).with(map);
    /// host.settle(("default", "m")).expect("it settles");
    /// host.delete::<ConfigMap>(("default", "m"));
    /// assert!(host.get::<ConfigMap>(("default", "m")).is_some());
    /// host.settle(("default", "m")).expect("it is cleaned up");
    /// assert!(host.get::<ConfigMap>(("default", "m")).is_none());
    /// ```
    pub fn finalizer(mut self, name: impl Into<String>) -> Self {
        self.parts.finalizer = Some(name.into());
        self
    }

    /// Sets the function, and finishes the controller. It is called for an object of `K` when the object, a child, or
    /// something that it read has changed.
    ///
    /// The function gets the object from the cache. If the object is gone, it gets the last known state (see
    /// [`Context::phase`]). An object that cannot be decoded as `K` is a terminal error, and does not reach the
    /// function.
    pub fn reconcile<F>(mut self, reconcile: F) -> Controller
    where
        F: Fn(&Context, &K) -> Result<Outcome, Error> + 'static,
    {
        let of = self.parts.for_.wire.of.clone();
        let call = move |request: wire::Request| {
            let object: K = serde_json::from_str(&request.object)
                .map_err(|error| Error::terminal(format!("cannot decode {of} {}: {error}", request.key)))?;
            reconcile(&Context::new(request, &object), &object)
        };
        let namespaces = &self.parts.for_.wire.namespaces;
        for watch in self.parts.owns.iter_mut().filter(|watch| watch.wire.namespaces.is_empty()) {
            watch.wire.namespaces.clone_from(namespaces);
        }
        Controller { name: self.name, parts: self.parts, reconcile: Box::new(call) }
    }
}
