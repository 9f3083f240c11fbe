//! The server's state: its objects, its resources and its counters.

use std::{fmt, net::SocketAddr, sync::Arc};

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    admission::Webhooks,
    crd,
    draws::Draws,
    faults::{Faults, admin::Snapshots},
    kinds,
    metrics::Metrics,
    object::{Object, is_deleting, name, set_meta, timestamp},
    resources::{Defined, GroupResource, Registry, Resource},
    storage::{Refused, Saved, Store},
    tokens::Tokens,
    webhook::Caller,
};

/// A Kubernetes API in memory: its objects, its custom resources and its recent history.
///
/// [`serve`](crate::serve) serves it on a listener, and can do so repeatedly: the data outlives a listener.
#[derive(Debug)]
pub struct Server {
    pub(crate) store: Store,
    pub(crate) metrics: Metrics,
    pub(crate) faults: Faults,
    /// Snapshots taken over HTTP.
    pub(crate) snapshots: Snapshots,
    pub(crate) webhooks: Webhooks,
    pub(crate) caller: Caller,
    pub(crate) draws: Draws,
    pub(crate) tokens: Tokens,
    clock: Clock,
    registry: RwLock<Arc<Registry>>,
    /// Wakes when the registry changes.
    redefined: watch::Sender<()>,
    /// Held while a definition is checked and stored, so that two definitions cannot both take a name.
    definitions: Mutex<()>,
}

/// Tells the time of objects.
struct Clock(Box<dyn Fn() -> Timestamp + Send + Sync>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// All data of a [`Server`] at one moment: objects, custom resources, recent history, the revision.
///
/// It shares objects with the server. Taking one is cheap; keeping it costs memory for what has changed since.
#[derive(Debug, Clone)]
pub struct Snapshot {
    saved: Saved,
    registry: Arc<Registry>,
}

impl Snapshot {
    /// The revision of the snapshot's newest write.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.saved.revision()
    }
}

/// How a kind is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    path: String,
    /// The resource's name in paths: `configmaps`.
    pub plural: String,
    /// `true` if its objects are in namespaces.
    pub namespaced: bool,
    /// `true` if it has the subresource `status`.
    pub has_status: bool,
}

impl Served {
    /// Returns the path of an object, or of all objects if `name` is empty. The namespace of a cluster-scoped kind is
    /// ignored.
    #[must_use]
    pub fn path(&self, namespace: &str, name: &str) -> String {
        let Self { path, plural, .. } = self;
        let place =
            if self.namespaced && !namespace.is_empty() { format!("/namespaces/{namespace}") } else { String::new() };
        let name = if name.is_empty() { String::new() } else { format!("/{name}") };
        format!("{path}{place}/{plural}{name}")
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// Creates a new cluster with the built-in kinds and the namespaces `default`, `kube-system`, `kube-public` and
    /// `kube-node-lease`.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Timestamp::now)
    }

    /// Creates a new cluster as [`new`](Self::new) does. `clock` tells the time that objects are created, written and
    /// deleted at.
    #[must_use]
    pub fn with_clock(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let server = Self::bare(Arc::new(Registry::builtin()), Clock(Box::new(clock)));
        for name in kinds::NAMESPACES {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            server.seed("namespaces", object);
        }
        server
    }

    /// Creates a cluster with the data of a snapshot, which may be another server's. This is much quicker than to make
    /// the same data again.
    #[must_use]
    pub fn from_snapshot(snapshot: &Snapshot, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let server = Self::bare(Arc::clone(&snapshot.registry), Clock(Box::new(clock)));
        server.store.restore(&snapshot.saved, || {});
        server.webhooks.load(&server);
        server
    }

    fn bare(registry: Arc<Registry>, clock: Clock) -> Self {
        Server {
            store: Store::new(),
            metrics: Metrics::default(),
            faults: Faults::new(),
            snapshots: Snapshots::default(),
            webhooks: Webhooks::default(),
            caller: Caller::default(),
            draws: Draws::default(),
            tokens: Tokens::default(),
            clock,
            registry: RwLock::new(registry),
            redefined: watch::Sender::new(()),
            definitions: Mutex::new(()),
        }
    }

    /// Returns a kubeconfig for the server at `addr`, with plain HTTP and no credentials. Its cluster, user and context
    /// are named `pilothouse`.
    #[must_use]
    pub fn kubeconfig(addr: SocketAddr) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: pilothouse\nclusters:\n- name: pilothouse\n  cluster:\n    server: \
             http://{addr}\ncontexts:\n- name: pilothouse\n  context:\n    cluster: pilothouse\n    user: pilothouse\nusers:\n- \
             name: pilothouse\n  user: {{}}\n"
        )
    }

    /// The server's faults. There are none until a rule is added.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Numbers uids and generated names from now on, so that they are the same when the same happens again. Otherwise
    /// they are random.
    pub fn number_draws(&self) {
        self.draws.number();
    }

    /// Answers webhooks whose URLs begin with `url` in the same process. `answer` gets an `AdmissionReview` or a
    /// `ConversionReview`, and returns one, or why it cannot. Only the first call has an effect.
    pub fn answer_webhooks(
        &self,
        url: &str,
        answer: impl Fn(Value) -> BoxFuture<'static, Result<Value, String>> + Send + Sync + 'static,
    ) {
        self.caller.answer_locally(url, answer);
    }

    /// Forgets the history, as etcd's compaction does. Watches and pages that continue from an older revision get 410.
    pub fn compact(&self) {
        self.store.compact();
    }

    /// Takes a snapshot of the current data.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let _guard = self.definitions.lock();
        let mut registry = self.registry();
        // Both under one lock, because a definition takes effect at its commit.
        let saved = self.store.save(|| registry = self.registry());
        Snapshot { saved, registry }
    }

    /// Restores `snapshot`, like a cluster whose etcd is restored from a backup. Later writes are lost, new writes take
    /// the same revisions again, and all watches end.
    ///
    /// Clients get no other notice. A client with a newer `resourceVersion` than the server must find out by itself.
    pub fn restore(&self, snapshot: &Snapshot) {
        let _guard = self.definitions.lock();
        self.store.restore(&snapshot.saved, || *self.registry.write() = Arc::clone(&snapshot.registry));
        self.webhooks.load(self);
        self.redefined.send_replace(());
    }

    /// Returns how a kind is served, or `None` if it is not.
    #[must_use]
    pub fn kind(&self, api_version: &str, kind: &str) -> Option<Served> {
        let registry = self.registry();
        let resource = registry.find_kind(api_version, kind)?;
        Some(Served {
            path: match resource.group.as_str() {
                "" => format!("/api/{}", resource.version),
                group => format!("/apis/{group}/{}", resource.version),
            },
            plural: resource.plural.clone(),
            namespaced: resource.namespaced,
            has_status: resource.status,
        })
    }

    /// The revision of the newest write. Every object's `resourceVersion` is at most this.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.store.revision()
    }

    /// Returns the current time as Kubernetes writes it.
    pub(crate) fn now(&self) -> String {
        timestamp((self.clock.0)())
    }

    /// Returns the time after `seconds`, as Kubernetes writes it.
    pub(crate) fn after(&self, seconds: i64) -> String {
        let now = (self.clock.0)();
        timestamp(now.checked_add(SignedDuration::from_secs(seconds.max(0))).unwrap_or(now))
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry.read())
    }

    /// Changes when a CustomResourceDefinition takes effect.
    pub(crate) fn definitions_changed(&self) -> watch::Receiver<()> {
        self.redefined.subscribe()
    }

    /// Stores an object of the server itself. Does nothing if it exists or its namespace does not.
    fn seed(&self, plural: &str, mut object: Value) {
        let registry = self.registry();
        let Some(resource) = registry.find("", "v1", plural) else { return };
        kinds::prepare_create(self, resource, &mut object);
        set_meta(&mut object, "uid", self.draws.uid().into());
        set_meta(&mut object, "creationTimestamp", self.now().into());
        // The error of an existing object is ignored.
        let _ = self.create(resource, object);
    }

    /// Commits a new object in its stored version.
    pub(crate) fn create(&self, resource: &Resource, object: Value) -> Result<Arc<Object>, Refused> {
        let created = if resource.storage == GroupResource::crds() {
            let guard = self.definitions.lock();
            let (crd, object, defined) = self.judge(object);
            let created = self.store.create(&resource.storage, object, || self.define(&crd, Some(defined)));
            drop(guard);
            created?
        } else {
            self.store.create(&resource.storage, object, || {})?
        };
        self.reload_webhooks(resource);
        if resource.storage == GroupResource::namespaces() {
            for (plural, content) in kinds::namespace_content(name(&created.value)) {
                self.seed(plural, content);
            }
        }
        Ok(created)
    }

    /// Commits a new state of an object in its stored version.
    pub(crate) fn update(&self, resource: &Resource, current: &Object, object: Value) -> Result<Arc<Object>, Refused> {
        if resource.storage != GroupResource::crds() {
            let updated = self.store.update(&resource.storage, current, object, || {})?;
            self.reload_webhooks(resource);
            return Ok(updated);
        }
        let _guard = self.definitions.lock();
        let (crd, object, defined) = self.judge(object);
        let updated = self.store.update(&resource.storage, current, object, || self.define(&crd, Some(defined)))?;
        if is_deleting(&updated.value) {
            self.store.set_terminating(&crd::storage(&updated.value), true);
        }
        Ok(updated)
    }

    /// Commits the deletion of an object.
    pub(crate) fn remove(&self, resource: &Resource, current: &Object, last: Value) -> Result<Arc<Object>, Refused> {
        if resource.storage != GroupResource::crds() {
            let removed = self.store.remove(&resource.storage, current, last, || {})?;
            self.reload_webhooks(resource);
            return Ok(removed);
        }
        let guard = self.definitions.lock();
        let crd = name(&last).to_owned();
        let removed = self.store.remove(&resource.storage, current, last, || self.define(&crd, None))?;
        self.store.set_terminating(&crd::storage(&removed.value), false);
        drop(guard);
        self.reconsider(resource, &removed.value);
        Ok(removed)
    }

    fn reload_webhooks(&self, changed: &Resource) {
        if Webhooks::are_in(&changed.storage) {
            self.webhooks.load(self);
        }
    }

    /// Returns a definition with the conditions of its names, and the resources that it therefore defines. The caller
    /// holds the lock on definitions.
    fn judge(&self, mut object: Value) -> (String, Value, Defined) {
        let before = object.clone();
        crd::accept(&mut object, Some(&before), &self.registry());
        let defined = crd::define(&object);
        (name(&object).to_owned(), object, defined)
    }

    /// Gives the names of a removed definition to definitions that wait for them.
    fn reconsider(&self, resource: &Resource, gone: &Value) {
        let Ok(all) = self.store.list(&resource.storage, None, None, None) else { return };
        for waiting in all.objects {
            if waiting.value["spec"]["group"] != gone["spec"]["group"] {
                continue;
            }
            let mut object = waiting.value.clone();
            crd::accept(&mut object, Some(&waiting.value), &self.registry());
            if object != waiting.value {
                // A concurrent write of this definition reconsiders it too.
                let _ = self.update(resource, &waiting, object);
            }
        }
    }

    fn define(&self, crd: &str, defined: Option<Defined>) {
        let mut registry = self.registry.write();
        let mut next = Registry::clone(&registry);
        next.define(crd, defined);
        *registry = Arc::new(next);
        drop(registry);
        self.redefined.send_replace(());
    }
}
