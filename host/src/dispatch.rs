//! From keys to calls, and from outcomes to writes.
//!
//! Owns the controllers of active plugins: their routes, queues and workers, and the swap from one revision to the next. Which
//! revision should serve is for [`crate::plugin`] to say, through [`Activate`].
//!
//! Guests run on threads of their own, apart from the I/O runtime: a busy one delays no request and no health check.

mod activate;
mod batch;
mod controller;
mod cursor;
mod feed;
mod hook;
mod imports;
mod judging;
mod ledger;
mod lines;
mod mapper;
mod observing;
mod pending;
mod queue;
mod reader;
mod reading;
mod reconcile;
mod record;
mod remembered;
mod resync;
mod routes;
mod serving;
mod staff;
mod sync;
mod wakes;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use controller::Controller;
pub(crate) use feed::VALUES;
use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
pub use hook::{Called, Hook};
pub use judging::JudgingFigures;
pub use ledger::{
    failing::{FailingKey, GivenUp},
    gone::GoneFigures,
};
pub use observing::Observing;
use parking_lot::Mutex;
pub use pending::{BacklogFigures, HookFailure};
use pilothouse_core::permits::Usage;
pub use record::{Quarantined, Record};
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::{
    acting::Acting,
    cluster::Cluster,
    guests::Guests,
    informer::Informers,
    name::PluginName,
    plugin::{Activate, ActivateError, Candidate},
    writer::{Events, WITHDRAWN_AFTER, WriteObserver},
};

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
    /// Whether this process may act.
    pub acting: Acting,
}

/// The controllers of all active plugins.
pub struct Dispatch {
    parts: Parts,
    active: Mutex<Active>,
    /// Controllers on their way out: whoever asked for it may not wait for the end.
    ending: TaskTracker,
    /// Controllers and observers that were told to end.
    ended: AtomicU64,
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
        Self {
            parts,
            active: Mutex::default(),
            ending: TaskTracker::new(),
            ended: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
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

    /// What plugins have under way at the API server, by name.
    pub fn requests(&self) -> Vec<(Arc<str>, Usage)> {
        self.parts.cluster.requests()
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
        self.controllers().iter().for_each(|controller| controller.ledger().queue().forget_rested());
    }

    /// How many controllers and observers have ended since the start, or are about to.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Takes no more keys, and waits for those in flight (invariant 10). False if some were not finished within `grace`.
    pub async fn shut_down(&self, grace: Duration) -> bool {
        let plugins = {
            let mut active = self.active.lock();
            active.closed = true;
            std::mem::take(&mut active.plugins)
        };
        // What is begun has the grace period, and not a cap, to end by. The second half is for requests that are under way: a process that
        // is killed never learns what became of them.
        self.parts.guests.lift_caps();
        plugins.values().for_each(|running| running.withdraw(grace / 2));
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
                controller.write_deferred().await;
                observer.stopped(&controller);
            };
            self.ending.spawn(ended)
        };
        let mut ends: Vec<_> = running.controllers.into_iter().map(end).collect();
        if let Some(observing) = running.observing {
            observing.shut_down();
            ends.push(self.ending.spawn(async move { observing.drain().await }));
        }
        self.ended.fetch_add(ends.len() as u64, Ordering::Relaxed);
        join_all(ends).map(drop)
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

    /// Lets no write begin any more after this time.
    fn withdraw(&self, grace: Duration) {
        if let Some(record) = &self.record {
            record.fence().close_after(grace);
        }
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

impl Activate for Dispatch {
    fn activate(&self, candidate: Candidate) -> BoxFuture<'_, Result<(), ActivateError>> {
        self.activate(candidate).boxed()
    }

    fn deactivate<'a>(&'a self, name: &'a PluginName) -> BoxFuture<'a, ()> {
        async move {
            let running = self.active.lock().plugins.remove(name).unwrap_or_default();
            running.withdraw(WITHDRAWN_AFTER);
            let ended = self.end(running.clone());
            // What is not at work is not left alone either.
            running.release();
            ended.await;
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
