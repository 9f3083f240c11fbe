//! From keys to calls, and from outcomes to writes.
//!
//! Owns the controllers of active plugins: their routes, queues and workers, and the swap from one revision to the next. Which
//! revision should serve is for [`crate::plugin`] to say, through [`Activate`].
//!
//! Guests run on threads of their own, apart from the I/O runtime: a busy one delays no request and no health check.

mod controller;
mod feed;
mod imports;
mod queue;
mod reconcile;
#[cfg(test)]
mod tests;

pub use controller::Controller;
pub use queue::Queue;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use parking_lot::Mutex;
use pilothouse_core::{
    backoff::{self, Backoff},
    grant::{Grants, Namespaces},
    manifest::{self, Watch},
    reflector::State,
};
use tokio::{runtime::Handle, time::Instant};
use tokio_util::task::TaskTracker;
use tracing::warn;

use self::{
    controller::{RouteKind, Serving, Wanted},
    imports::Reader,
};
use crate::{
    cluster::{self, Cluster},
    informer::{InformerKey, Informers, Lease, View, told},
    plugin::{Activate, ActivateError, Candidate},
    wasm::PluginName,
    writer::{self, CrdError, WriteObserver, Writer},
};

/// How long the informers that a new revision needs may take before the old one goes on: controller-runtime's
/// `CacheSyncTimeout`.
const SYNC_WITHIN: Duration = Duration::from_secs(120);

/// Keys of one controller that are reconciled at once, whatever its manifest asks for: each takes a task, and while it is called
/// a guest's memory.
const MAX_CONCURRENCY: usize = 256;

/// How a reconcile ended: the label `result` of controller-runtime's metrics, and `Terminal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Result {
    /// Nothing more to do until something changes.
    Success,
    /// The plugin asked to be called again.
    RequeueAfter,
    /// To be tried again with growing delay.
    Error,
    /// Failed, and not to be tried again until something changes.
    Terminal,
}

impl Result {
    /// One word for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Result::Success => "success",
            Result::RequeueAfter => "requeue_after",
            Result::Error => "error",
            Result::Terminal => "terminal",
        }
    }
}

/// One reconcile, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// How it ended.
    pub result: Result,
    /// From the store to the last write.
    pub took: Duration,
    /// The call into the plugin, its imports included.
    pub in_guest: Duration,
    /// If the call came to nothing: [`crate::wasm::CallError::kind`].
    pub trap: Option<&'static str>,
}

/// Sees what controllers do. For metrics.
pub trait Observer: Send + Sync + 'static {
    /// A controller came to be.
    fn started(&self, controller: &Controller);
    /// A controller ended.
    fn stopped(&self, controller: &Controller);
    /// A key was taken from the queue, in which it had been ready for `waited`.
    fn picked(&self, controller: &Controller, waited: Duration);
    /// A key's processing ended after `took`.
    fn finished(&self, controller: &Controller, took: Duration);
    /// A reconcile ended.
    fn attempted(&self, controller: &Controller, attempt: &Attempt);
}

/// For whom nobody listens.
impl Observer for () {
    fn started(&self, _: &Controller) {}
    fn stopped(&self, _: &Controller) {}
    fn picked(&self, _: &Controller, _: Duration) {}
    fn finished(&self, _: &Controller, _: Duration) {}
    fn attempted(&self, _: &Controller, _: &Attempt) {}
}

impl Controller {
    fn attempted(&self, attempt: &Attempt) {
        self.observer().attempted(self, attempt);
    }
}

/// What dispatch needs of the rest of the host.
#[derive(Clone)]
pub struct Parts {
    /// The API server.
    pub cluster: Cluster,
    /// The caches.
    pub informers: Informers,
    /// The runtime that guests run on.
    pub guests: Handle,
    /// Sees what controllers do.
    pub observer: Arc<dyn Observer>,
    /// Sees what is written.
    pub writes: Arc<dyn WriteObserver>,
}

/// The controllers of all active plugins.
pub struct Dispatch {
    parts: Parts,
    active: Mutex<Active>,
    /// Controllers on their way out: whoever asked for it may not wait for the end.
    ending: TaskTracker,
    /// Plugins whose activation waits, and for what.
    waiting: Mutex<BTreeMap<PluginName, String>>,
}

#[derive(Default)]
struct Active {
    plugins: BTreeMap<PluginName, Vec<Arc<Controller>>>,
    /// The end has begun: none is added any more.
    closed: bool,
}

impl Dispatch {
    /// No plugin is active.
    pub fn new(parts: Parts) -> Self {
        Self { parts, active: Mutex::default(), ending: TaskTracker::new(), waiting: Mutex::default() }
    }

    /// The controllers that are at work, in the order of plugin and name.
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        self.active.lock().plugins.values().flatten().cloned().collect()
    }

    /// Plugins that cannot become active yet, and what they wait for.
    pub fn waiting(&self) -> BTreeMap<PluginName, String> {
        self.waiting.lock().clone()
    }

    /// Takes no more keys, and waits for those in flight (invariant 10). False if some were not finished within `grace`.
    pub async fn shut_down(&self, grace: Duration) -> bool {
        let plugins = {
            let mut active = self.active.lock();
            active.closed = true;
            std::mem::take(&mut active.plugins)
        };
        // The wait covers those that a swap or a removal ended before.
        drop(self.end(plugins.into_values().flatten().collect()));
        self.ending.close();
        tokio::time::timeout(grace, self.ending.wait()).await.is_ok()
    }

    /// Ends controllers: they take no more keys when this returns, and are finished when what it returns is. Dropping that changes
    /// nothing.
    fn end(&self, controllers: Vec<Arc<Controller>>) -> impl Future<Output = ()> + use<> {
        let end = |controller: Arc<Controller>| {
            controller.shut_down();
            let observer = self.parts.observer.clone();
            let ended = async move {
                controller.drain().await;
                observer.stopped(&controller);
            };
            self.ending.spawn_on(ended, &self.parts.guests)
        };
        let ends: Vec<_> = controllers.into_iter().map(end).collect();
        join_all(ends).map(drop)
    }

    async fn activate(&self, candidate: Candidate) -> std::result::Result<(), ActivateError> {
        let Candidate { revision, grants, .. } = &candidate;
        let name = revision.plugin().clone();
        let _waiting = Waiting { dispatch: self, name: &name };
        let writer = Writer::new(
            self.parts.cluster.clone(),
            self.parts.informers.clone(),
            name.as_str(),
            grants.clone(),
            self.parts.writes.clone(),
        );
        self.install(&name, &writer, &revision.manifest().crds).await?;

        let mut prepared: Vec<(manifest::Controller, Vec<Wanted>)> = Vec::new();
        for spec in &revision.manifest().controllers {
            prepared.push((spec.clone(), self.wanted(&name, spec, grants)));
        }
        let leases = prepared.iter().flat_map(|(_, wanted)| wanted.iter().map(|wanted| wanted.lease.clone()));
        let view = View::new(leases);
        let running = self.active.lock().plugins.get(&name).cloned().unwrap_or_default();
        let successor = |spec: &manifest::Controller| running.iter().find(|running| running.continues(spec));
        if !running.is_empty() {
            // What a controller waits for already keeps no newer revision, and no newer grants, from taking its place.
            let awaited = prepared.iter().flat_map(|(spec, wanted)| {
                let heard = successor(spec);
                let new = wanted.iter().map(|wanted| wanted.lease.clone());
                new.filter(move |lease| !heard.is_some_and(|running| running.listens_to(lease.key())))
            });
            self.sync(&name, &View::new(awaited)).await?;
        }

        // From here to the end nothing waits but for what ends by itself: an activation that is dropped is done, or has not begun.
        if self.active.lock().closed {
            return Err(ActivateError::new(&Stopping));
        }
        let mut controllers = Vec::new();
        for (spec, wanted) in prepared {
            let serving = Serving {
                concurrency: concurrency(&candidate, &spec),
                revision: revision.clone(),
                owns: spec.owns.iter().map(|owned| owned.of.clone()).collect(),
                view: view.clone(),
                reconciles: View::new(
                    wanted.iter().filter(|wanted| wanted.kind == RouteKind::For).map(|wanted| wanted.lease.clone()),
                ),
                writer: writer.clone(),
                reader: Reader::new(view.clone(), grants.clone()),
                spec,
            };
            // A controller of another kind has nothing to keep but its name.
            controllers.push(match successor(&serving.spec) {
                Some(controller) => {
                    controller.swap(serving, wanted);
                    controller.clone()
                }
                None => self.start(&name, serving, wanted),
            });
        }
        let ended: Vec<_> = {
            let mut active = self.active.lock();
            let among =
                |all: &[Arc<Controller>], one: &Arc<Controller>| all.iter().any(|other| Arc::ptr_eq(other, one));
            if active.closed {
                controllers.into_iter().filter(|new| !among(&running, new)).collect()
            } else {
                let old = active.plugins.insert(name.clone(), controllers.clone()).unwrap_or_default();
                old.into_iter().filter(|old| !among(&controllers, old)).collect()
            }
        };
        self.end(ended).await;
        Ok(())
    }

    fn start(&self, name: &PluginName, serving: Serving, wanted: Vec<Wanted>) -> Arc<Controller> {
        let controller = Controller::start(name.clone(), serving, wanted, &self.parts);
        self.parts.observer.started(&controller);
        controller
    }

    /// Installs the definitions that the plugin brings, where it may. Waits for an API server that does not answer.
    async fn install(
        &self,
        name: &PluginName,
        writer: &Writer,
        definitions: &[String],
    ) -> std::result::Result<(), ActivateError> {
        let mut backoff = Backoff::new(backoff::RECONNECT, 0);
        let origin = Instant::now();
        loop {
            let error = match writer.install(definitions).await {
                Ok(()) => return Ok(()),
                Err(error) if !passes(&error) => return Err(ActivateError::new(&error)),
                Err(error) => format!("{:#}", anyhow::Error::from(error)),
            };
            let delay = backoff.next(origin.elapsed());
            warn!(plugin = %name, error, retry_in = ?delay, "cannot install the plugin's CustomResourceDefinitions");
            self.waiting.lock().insert(name.clone(), error);
            tokio::time::sleep(delay).await;
        }
    }

    /// What a controller listens to. Its informers start here, if they do not run.
    fn wanted(&self, name: &PluginName, spec: &manifest::Controller, grants: &Grants) -> Vec<Wanted> {
        let of = &spec.for_.of;
        let mut wanted = Vec::new();
        for lease in self.lease(name, &spec.for_, grants) {
            wanted.push(Wanted { lease, kind: RouteKind::For, owner: of.clone() });
        }
        for owned in &spec.owns {
            for lease in self.lease(name, owned, grants) {
                wanted.push(Wanted { lease, kind: RouteKind::Owns, owner: of.clone() });
            }
        }
        wanted
    }

    /// One lease for all namespaces, or one for each that is asked for and granted.
    fn lease(&self, name: &PluginName, watch: &Watch, grants: &Grants) -> Vec<Arc<Lease>> {
        let acquire = |namespace: Option<&str>| {
            let key = InformerKey {
                of: watch.of.clone(),
                namespace: namespace.map(Into::into),
                labels: watch.labels.clone().unwrap_or_default(),
                fields: watch.fields.clone().unwrap_or_default(),
            };
            Arc::new(self.parts.informers.acquire(key, name.as_str()))
        };
        if !watch.namespaces.is_empty() {
            return watch.namespaces.iter().map(|namespace| acquire(Some(namespace))).collect();
        }
        match grants.readable_namespaces(&watch.of) {
            Namespaces::All => vec![acquire(None)],
            Namespaces::Some(namespaces) => namespaces.iter().map(|namespace| acquire(Some(namespace))).collect(),
            Namespaces::None => Vec::new(),
        }
    }

    /// Waits for the informers of a new revision while the old one serves.
    async fn sync(&self, name: &PluginName, view: &View) -> std::result::Result<(), ActivateError> {
        let pending = |view: &View| -> Vec<(InformerKey, State)> {
            let unsynced = view.leases().filter(|lease| !*lease.synced().borrow());
            unsynced.map(|lease| (lease.key().clone(), lease.state())).collect()
        };
        let told = |pending: &[(InformerKey, State)]| {
            pending.iter().map(|(key, state)| format!("{key}: {}", told(state))).collect::<Vec<_>>().join("; ")
        };
        let waiting = pending(view);
        if waiting.is_empty() {
            return Ok(());
        }
        self.waiting.lock().insert(name.clone(), told(&waiting));
        let all = join_all(view.leases().map(|lease| {
            let mut synced = lease.synced();
            async move { synced.wait_for(|synced| *synced).await.is_ok() }
        }));
        match tokio::time::timeout(SYNC_WITHIN, all).await {
            Ok(_) => Ok(()),
            Err(_) => Err(ActivateError::new(&NotSynced(told(&pending(view))))),
        }
    }
}

/// How many keys of a controller may be reconciled at once.
fn concurrency(candidate: &Candidate, spec: &manifest::Controller) -> usize {
    usize::try_from(candidate.concurrency(spec.max_concurrency)).unwrap_or(MAX_CONCURRENCY).min(MAX_CONCURRENCY)
}

/// The host is about to end.
#[derive(Debug, thiserror::Error)]
#[error("the host is stopping")]
struct Stopping;

/// Informers that a new revision needs and that did not sync.
#[derive(Debug, thiserror::Error)]
#[error("not synced within {within} s: {0}", within = SYNC_WITHIN.as_secs())]
struct NotSynced(String);

/// True for what may pass by itself: the server is away, busy, or does not let us yet.
fn passes(error: &CrdError) -> bool {
    let CrdError::Install { source: writer::Error::Request { source, .. }, .. } = error else { return false };
    match source {
        cluster::Error::Unreachable(_) | cluster::Error::Missing(_) | cluster::Error::Answer { .. } => true,
        cluster::Error::Status(status) => matches!(status.code, 401 | 403 | 409 | 429 | 500..),
        cluster::Error::TooLong(_) | cluster::Error::Name(_) => false,
    }
}

/// Forgets what an activation waits for when it ends, however it ends.
struct Waiting<'a> {
    dispatch: &'a Dispatch,
    name: &'a PluginName,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.dispatch.waiting.lock().remove(self.name);
    }
}

impl Activate for Dispatch {
    fn activate(&self, candidate: Candidate) -> BoxFuture<'_, std::result::Result<(), ActivateError>> {
        self.activate(candidate).boxed()
    }

    fn deactivate<'a>(&'a self, name: &'a PluginName) -> BoxFuture<'a, ()> {
        async move {
            let controllers = self.active.lock().plugins.remove(name).unwrap_or_default();
            self.end(controllers).await;
        }
        .boxed()
    }
}
