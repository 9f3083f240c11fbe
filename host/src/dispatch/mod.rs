//! From keys to calls, and from outcomes to writes.
//!
//! Owns the controllers of active plugins: their routes, queues and workers, and the swap from one revision to the next. Which
//! revision should serve is for [`crate::plugin`] to say, through [`Activate`].
//!
//! Guests run on threads of their own, apart from the I/O runtime: a busy one delays no request and no health check.

mod controller;
mod failing;
mod feed;
mod hook;
mod imports;
mod lines;
mod mapper;
mod observing;
mod pending;
mod queue;
mod reader;
mod reading;
mod reconcile;
mod record;
mod resync;
mod routes;
mod sync;
#[cfg(test)]
mod tests;

pub use controller::{Controller, GoneFigures, ReadFigures};
pub use failing::FailingKey;
pub use hook::{Called, Hook};
pub use observing::Observing;
pub use pending::{BacklogFigures, HookFailure};
pub use queue::{Cause, Queue};
pub use record::{CallFailure, Quarantined, Record};

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use parking_lot::Mutex;
use pilothouse_core::{
    backoff::{self, Backoff},
    grant::Namespaces,
    manifest::{self, Manifest, Watch},
    predicate::Predicate,
    reflector::State,
    store::Change,
};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use self::{
    controller::{Serving, Source},
    imports::Access,
    routes::Wanted,
};
use crate::{
    cluster::{self, Cluster},
    guests::Guests,
    informer::{InformerKey, Informers, Lease, View, told},
    name::PluginName,
    plugin::{Activate, ActivateError, Candidate},
    writer::{self, CrdError, Events, WriteObserver, Writer},
};

/// How long the informers that a new revision needs may take before the old one goes on: controller-runtime's
/// `CacheSyncTimeout`.
const SYNC_WITHIN: Duration = Duration::from_secs(120);

/// How a reconcile ended: the label `result` of controller-runtime's metrics, and `Terminal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileResult {
    /// Nothing more to do until something changes.
    Success,
    /// The plugin asked to be called again.
    RequeueAfter,
    /// To be tried again with growing delay.
    Error,
    /// Failed, and not to be tried again until something changes.
    Terminal,
}

impl ReconcileResult {
    /// One word for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::RequeueAfter => "requeue_after",
            Self::Error => "error",
            Self::Terminal => "terminal",
        }
    }
}

/// One reconcile, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// How it ended.
    pub result: ReconcileResult,
    /// From the store to the last write.
    pub took: Duration,
    /// The call into the plugin, its imports and its waiting included; none where the host failed over the key.
    pub in_guest: Option<Duration>,
    /// If the call came to nothing: [`crate::wasm::CallError::kind`].
    pub trap: Option<&'static str>,
    /// The plugin died in the middle of its code ([`crate::wasm::CallError::is_panic`]), or the host failed over the key.
    pub panicked: bool,
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
    /// Something else of the plugin was called; for a controller, or for the whole plugin.
    fn called(&self, plugin: &PluginName, controller: Option<&Controller>, called: &Called);
    /// A plugin whose calls come to nothing is left alone for a while, or is not any more.
    fn quarantined(&self, plugin: &PluginName, quarantined: bool);
}

/// What dispatch needs of the rest of the host.
#[derive(Clone)]
pub struct Parts {
    /// The API server.
    pub cluster: Cluster,
    /// The caches.
    pub informers: Informers,
    /// The threads that guests run on.
    pub guests: Guests,
    /// Sees what controllers do.
    pub observer: Arc<dyn Observer>,
    /// Sees what is written.
    pub writes: Arc<dyn WriteObserver>,
    /// Where people are told of what befalls objects.
    pub events: Events,
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

/// What works for one plugin.
#[derive(Clone, Default)]
struct Running {
    controllers: Vec<Arc<Controller>>,
    observing: Option<Arc<Observing>>,
    record: Option<Arc<Record>>,
}

#[derive(Default)]
struct Active {
    plugins: BTreeMap<PluginName, Running>,
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
        self.active.lock().plugins.values().flat_map(|running| &running.controllers).cloned().collect()
    }

    /// The observers that are at work, in the order of plugins.
    pub fn observing(&self) -> Vec<Arc<Observing>> {
        self.active.lock().plugins.values().filter_map(|running| running.observing.clone()).collect()
    }

    /// What is known of the calls of plugins that are at work, in the order of plugins.
    pub fn records(&self) -> Vec<Arc<Record>> {
        self.active.lock().plugins.values().filter_map(|running| running.record.clone()).collect()
    }

    /// Ends a plugin's quarantine. False: it was in none. None: no such plugin is at work.
    pub fn release(&self, plugin: &str) -> Option<bool> {
        let running = self.active.lock().plugins.iter().find(|(name, _)| name.as_str() == plugin)?.1.clone();
        let released = running.release();
        if released {
            info!(plugin, "the plugin is not quarantined any more: it was released by hand");
        }
        Some(released)
    }

    /// Plugins that cannot become active yet, and what they wait for.
    pub fn waiting(&self) -> BTreeMap<PluginName, String> {
        self.waiting.lock().clone()
    }

    /// Gives back what controllers remember of keys that have come to rest. For whoever has time, now and then: an idle controller is not
    /// woken for it.
    pub fn forget_rested(&self) {
        self.controllers().iter().for_each(|controller| controller.queue().forget_rested());
    }

    /// Takes no more keys, and waits for those in flight (invariant 10). False if some were not finished within `grace`.
    pub async fn shut_down(&self, grace: Duration) -> bool {
        let plugins = {
            let mut active = self.active.lock();
            active.closed = true;
            std::mem::take(&mut active.plugins)
        };
        // The wait covers those that a swap or a removal ended before.
        for running in plugins.into_values() {
            drop(self.end(running));
        }
        self.ending.close();
        tokio::time::timeout(grace, self.ending.wait()).await.is_ok()
    }

    /// Ends what works for a plugin: nothing more begins when this returns, and all is finished when what it returns is. Dropping that
    /// changes nothing.
    fn end(&self, running: Running) -> impl Future<Output = ()> + use<> {
        let end = |controller: Arc<Controller>| {
            controller.shut_down();
            let observer = self.parts.observer.clone();
            let ended = async move {
                controller.drain().await;
                observer.stopped(&controller);
            };
            self.ending.spawn(ended)
        };
        let mut ends: Vec<_> = running.controllers.into_iter().map(end).collect();
        if let Some(observing) = running.observing {
            observing.shut_down();
            ends.push(self.ending.spawn(async move { observing.drain().await }));
        }
        join_all(ends).map(drop)
    }

    async fn activate(&self, candidate: Candidate) -> Result<(), ActivateError> {
        let Candidate { revision, grants, .. } = &candidate;
        let name = revision.plugin().clone();
        let _waiting = Waiting { dispatch: self, name: &name };
        let running = self.active.lock().plugins.get(&name).cloned().unwrap_or_default();
        // What is taken away is gone at once, however long what is new may take, and though it may fail.
        running.controllers.iter().for_each(|controller| controller.serving().access.allow(grants));
        if let Some(observing) = &running.observing {
            observing.access().allow(grants);
        }
        let held = Arc::new(ArcSwap::new(grants.clone()));
        let writer = Writer::new(
            self.parts.cluster.clone(),
            self.parts.informers.clone(),
            name.as_str(),
            held.clone(),
            self.parts.writes.clone(),
        );
        let manifest = revision.manifest();
        self.install(&name, &writer, &manifest.crds).await?;

        let mut prepared: Vec<(manifest::Controller, Vec<Wanted<Source>>)> = Vec::new();
        for spec in &manifest.controllers {
            prepared.push((spec.clone(), self.wanted(&candidate, spec)));
        }
        let observed: Vec<Wanted<()>> =
            manifest.observes.iter().flat_map(|watch| self.listen(&candidate, watch, ())).collect();
        let cached = prepared.iter().flat_map(|(_, wanted)| wanted.iter().map(|wanted| wanted.lease.clone()));
        let mut leases: Vec<Arc<Lease>> = Vec::new();
        for lease in cached.chain(observed.iter().map(|wanted| wanted.lease.clone())) {
            if leases.iter().all(|known| known.key() != lease.key()) {
                leases.push(lease);
            }
        }
        let view = self.view(&leases, manifest);
        let successor =
            |spec: &manifest::Controller| running.controllers.iter().find(|running| running.continues(spec));
        if !running.controllers.is_empty() {
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
        let record = running.record.clone().unwrap_or_else(|| Arc::new(Record::new(name.clone(), &self.parts)));
        let access = Arc::new(Access::new(view.clone(), writer, held, manifest, record.clone()));
        let mut controllers = Vec::new();
        for (spec, mut wanted) in prepared {
            let own: Vec<_> = wanted.iter().map(|wanted| wanted.lease.key().clone()).collect();
            let reconciles = wanted.iter().filter(|wanted| wanted.source == Source::For);
            let reconciles: Vec<_> = reconciles.map(|wanted| wanted.lease.key().clone()).collect();
            let reconciles = view.only(&reconciles);
            wanted.retain(|wanted| !matches!(wanted.source, Source::Reads { .. }));
            // It may read whatever the plugin caches, and is woken by what it read.
            for lease in &leases {
                let source = Source::Reads { awaited: own.contains(lease.key()) };
                wanted.push(Wanted { lease: lease.clone(), source, when: Predicate::default() });
            }
            let serving = Serving {
                concurrency: concurrency(&candidate, &spec),
                pace: candidate.limits.pace(),
                revision: revision.clone(),
                owns: spec.owns.iter().map(|owned| owned.of.clone()).collect(),
                view: view.clone(),
                reconciles,
                access: access.clone(),
                spec,
            };
            // A controller of another kind has nothing to keep but its name.
            controllers.push(match successor(&serving.spec) {
                Some(controller) => {
                    controller.swap(serving, wanted);
                    controller.clone()
                }
                None => self.start(&record, serving, wanted),
            });
        }
        let serving = observing::Serving { revision: revision.clone(), access };
        let observing = match &running.observing {
            _ if observed.is_empty() => None,
            Some(observing) => {
                observing.swap(serving, observed);
                Some(observing.clone())
            }
            None => Some(Observing::start(record.clone(), serving, observed, &self.parts)),
        };
        let new = Running { controllers, observing, record: Some(record) };
        // What the revision before could not do says nothing of this one, nor under other settings.
        if new.release() {
            info!(plugin = %name, "the plugin is not quarantined any more: it has a new revision, or new settings");
        }
        let ended = {
            let mut active = self.active.lock();
            if active.closed {
                new.without(&running)
            } else {
                let old = active.plugins.insert(name.clone(), new.clone()).unwrap_or_default();
                old.without(&new)
            }
        };
        self.end(ended).await;
        Ok(())
    }

    fn start(&self, record: &Arc<Record>, serving: Serving, wanted: Vec<Wanted<Source>>) -> Arc<Controller> {
        let controller = Controller::start(record.clone(), serving, wanted, &self.parts);
        self.parts.observer.started(&controller);
        controller
    }

    /// Installs the definitions that the plugin brings, where it may. Waits for an API server that does not answer.
    async fn install(&self, name: &PluginName, writer: &Writer, definitions: &[String]) -> Result<(), ActivateError> {
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
    fn wanted(&self, candidate: &Candidate, spec: &manifest::Controller) -> Vec<Wanted<Source>> {
        let owns = spec.owns.iter().map(|owned| (owned, Source::Owns));
        let watches = spec.watches.iter().map(|mapped| (&mapped.watch, Source::Watches(mapped.mapping.clone())));
        let reads = spec.reads.iter().map(|read| (read, Source::Reads { awaited: true }));
        let all = std::iter::once((&spec.for_, Source::For)).chain(owns).chain(watches).chain(reads);
        all.flat_map(|(watch, source)| self.listen(candidate, watch, source)).collect()
    }

    fn listen<S: Clone>(&self, candidate: &Candidate, watch: &Watch, source: S) -> Vec<Wanted<S>> {
        let leases = self.lease(candidate, watch).into_iter();
        leases.map(|lease| Wanted { lease, source: source.clone(), when: watch.when.clone() }).collect()
    }

    /// What a plugin sees of what it listens to. Where its manifest declares indexes, they live as long as this view: a subscription may
    /// outlive the revision that made it, and so its lease.
    fn view(&self, leases: &[Arc<Lease>], manifest: &Manifest) -> View {
        View::new(leases.iter().map(|lease| {
            let indexes = manifest.indexes.iter().filter(|index| index.of == lease.key().of);
            let paths: Vec<_> = indexes.map(|index| index.path.clone()).collect();
            if paths.is_empty() { lease.clone() } else { Arc::new(self.parts.informers.acquire_indexed(lease, paths)) }
        }))
    }

    /// One lease for all namespaces, or one for each that is asked for and granted.
    fn lease(&self, candidate: &Candidate, watch: &Watch) -> Vec<Arc<Lease>> {
        let Candidate { revision, grants, .. } = candidate;
        // One lease may serve several watches of the kind: what they ask for must be one thing.
        let compressed =
            revision.manifest().watches().filter(|other| other.of == watch.of).all(|other| other.compressed);
        let acquire = |namespace: Option<&str>| {
            let key = InformerKey {
                of: watch.of.clone(),
                namespace: namespace.map(Into::into),
                labels: watch.labels.clone().unwrap_or_default(),
                fields: watch.fields.clone().unwrap_or_default(),
                keep: watch.keep.clone(),
            };
            let (informers, name) = (&self.parts.informers, revision.plugin().as_str());
            Arc::new(if compressed { informers.acquire_compressed(key, name) } else { informers.acquire(key, name) })
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
    async fn sync(&self, name: &PluginName, view: &View) -> Result<(), ActivateError> {
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

impl Running {
    /// What of this is not in `other`.
    fn without(self, other: &Self) -> Self {
        let kept = |one: &Arc<Controller>| other.controllers.iter().any(|other| Arc::ptr_eq(other, one));
        let controllers = self.controllers.into_iter().filter(|one| !kept(one)).collect();
        let observing =
            self.observing.filter(|one| !other.observing.as_ref().is_some_and(|other| Arc::ptr_eq(other, one)));
        Self { controllers, observing, record: None }
    }

    /// Ends the quarantine, if there is one.
    fn release(&self) -> bool {
        let released = self.record.as_ref().is_some_and(|record| record.release());
        if released {
            self.controllers.iter().for_each(|controller| controller.wake_workers());
        }
        released
    }
}

/// Whether a change matters to somebody who listens under this predicate.
fn matters(when: &Predicate, change: &Change, record: &Record) -> bool {
    when.holds(change, &mut |error| {
        if record.may_say() {
            warn!(plugin = %record.plugin(), %error, "a predicate has no answer: the change counts");
        }
    })
}

/// How many keys of a controller may be reconciled at once.
fn concurrency(candidate: &Candidate, spec: &manifest::Controller) -> usize {
    usize::try_from(candidate.concurrency(spec.max_concurrency)).unwrap_or(usize::MAX)
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
        cluster::Error::TooLong(_) | cluster::Error::Name(_) | cluster::Error::Scope { .. } => false,
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
    fn activate(&self, candidate: Candidate) -> BoxFuture<'_, Result<(), ActivateError>> {
        self.activate(candidate).boxed()
    }

    fn deactivate<'a>(&'a self, name: &'a PluginName) -> BoxFuture<'a, ()> {
        async move {
            let running = self.active.lock().plugins.remove(name).unwrap_or_default();
            let ended = self.end(running.clone());
            // What is not at work is not left alone either.
            running.release();
            ended.await;
        }
        .boxed()
    }
}
