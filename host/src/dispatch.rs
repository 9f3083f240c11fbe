//! From keys to calls, and from outcomes to writes.
//!
//! Owns the controllers and observers of active plugins, and the swap from one revision to the next. [`crate::plugin`]
//! decides which revision serves, through [`Activate`].
//!
//! Guests run on threads of their own, apart from the I/O runtime. A busy guest delays no request and no health check.
//!
//! # Files
//!
//! Each file imports only files that stand before it in this list.
//!
//! - `sync`, `lines`, `attendants`, `cursor`, `hook`, `remembered`, `measures`: small parts
//! - `queue`, `record`: the keys of a controller; the calls of a plugin
//! - `reading`, `reader`, `recorder`, `imports`: what one call reads and writes
//! - `batch`, `pending`: changes on their way to `map` and `observe`
//! - `judging`, `routes`: from an informer's change to a listener
//! - `serving`, `ledger`: what serves a controller's keys; everything that is known of them
//! - `staff`, `feed`, `wakes`: who may work; what people see; the handle to wake keys
//! - `left`: the finalizers that nobody removes any more
//! - `resync`, `mapper`, `reconcile`: the work of a controller
//! - `observing`, `reviewing`, `controller`: what works for a plugin
//! - `rows`, `metrics`: what `/debug/plugins` and `/metrics` show
//! - `patterns`: the kinds that a plugin observes by pattern
//! - `rights`: what the service accounts of plugins may read
//! - `activate`: from a candidate to a plugin at work

mod activate;
mod attendants;
mod batch;
mod controller;
mod cursor;
mod feed;
mod hook;
mod imports;
mod judging;
mod ledger;
mod left;
mod lines;
mod mapper;
mod measures;
pub(crate) mod metrics;
mod observing;
mod patterns;
mod pending;
mod queue;
mod reader;
mod reading;
mod reconcile;
mod record;
mod recorder;
mod remembered;
mod resync;
mod reviewing;
mod rights;
mod routes;
mod rows;
mod serving;
mod staff;
mod sync;
mod wakes;

use std::{
    collections::{BTreeMap, BTreeSet},
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
use left::Leftovers;
pub use observing::Observing;
use parking_lot::Mutex;
use patterns::Matched;
pub use pending::{BacklogFigures, HookFailure};
use pilothouse_core::{grant::Rights, spread::HOST};
pub use record::{CallFailure, Quarantined, Record};
pub use reviewing::{ReviewError, Reviewing, UNSERVED};
pub use rows::{BacklogRow, ControllerRow, Counts, StormRow};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::{
    acting::Switches,
    clock::Clock,
    cluster::Cluster,
    election::Terms,
    guests::Guests,
    informer::Informers,
    name::PluginName,
    outbound::Outbound,
    plugin::{Activate, ActivateError, Candidate},
    spread::Items,
    writer::{Endpoint, Events, WITHDRAWN_AFTER, WriteObserver},
};

/// How a reconcile ended: the values of the label `result` of controller-runtime's metrics, and `Terminal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileResult {
    /// Done until something changes.
    Success,
    /// The plugin asked to be called again.
    RequeueAfter,
    /// Failed, and retried with backoff.
    Error,
    /// Failed, and not retried until something changes.
    Terminal,
}

impl ReconcileResult {
    /// Returns its name in logs and metrics.
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
    /// Duration from the store to the last write.
    pub took: Duration,
    /// Duration of the call into the plugin, its imports and its waiting included. `None` if the host panicked over the
    /// key.
    pub in_guest: Option<Duration>,
    /// [`crate::wasm::CallError::kind`], if the call itself failed.
    pub trap: Option<&'static str>,
    /// `true` if the plugin died in the middle of its code ([`crate::wasm::CallError::is_panic`]), or the host panicked
    /// over the key.
    pub panicked: bool,
}

/// Watches controllers, for metrics.
pub trait Observer: Send + Sync + 'static {
    /// A controller started.
    fn started(&self, controller: &Controller);
    /// A controller ended.
    fn stopped(&self, controller: &Controller);
    /// A key was taken from the queue, in which it had been ready for `waited`.
    fn picked(&self, controller: &Controller, waited: Duration);
    /// A key's processing ended after `took`.
    fn finished(&self, controller: &Controller, took: Duration);
    /// A reconcile ended.
    fn attempted(&self, controller: &Controller, attempt: &Attempt);
    /// `map` was called for a controller, or `observe` for the whole plugin.
    fn called(&self, plugin: &PluginName, controller: Option<&Controller>, called: &Called);
    /// A quarantine began, or ended.
    fn quarantined(&self, plugin: &PluginName, quarantined: bool);
}

/// What dispatch uses of the rest of the host.
#[derive(Clone)]
pub struct Parts {
    /// The API server.
    pub cluster: Cluster,
    /// The caches.
    pub informers: Informers,
    /// The threads that guests run on.
    pub guests: Guests,
    /// Watches controllers.
    pub observer: Arc<dyn Observer>,
    /// Watches writes.
    pub writes: Arc<dyn WriteObserver>,
    /// Sends requests to other servers.
    pub outbound: Outbound,
    /// Writes Events on objects.
    pub events: Events,
    /// Whether this process may act.
    pub acting: Switches,
    /// Where the API server reaches this host's webhooks. `None` if the host serves none.
    pub webhooks: Option<Endpoint>,
    /// The time that plugins see.
    pub clock: Clock,
}

/// The controllers of all active plugins.
pub struct Dispatch {
    parts: Parts,
    active: Mutex<Active>,
    /// Tasks that wait for the end of controllers and observers.
    ending: TaskTracker,
    /// Counts controllers and observers that have ended or are ending.
    ended: AtomicU64,
    /// Plugins whose activation waits, and what for.
    waiting: Mutex<BTreeMap<PluginName, String>>,
    /// Plugins whose activation goes on once this host acts for them.
    pending: Mutex<BTreeSet<PluginName>>,
    /// Changes whenever webhooks of plugins come, change or go.
    reviewing_changed: watch::Sender<()>,
    /// Objects that keep a finalizer that no plugin removes any more.
    left: Mutex<Leftovers>,
}

/// What came of a request to end a quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The plugin was quarantined, and is not any more.
    Released,
    /// The plugin was not quarantined.
    NotQuarantined,
    /// No plugin of this name is active.
    UnknownPlugin,
}

/// An active plugin.
#[derive(Clone, Default)]
struct ActivePlugin {
    controllers: Vec<Arc<Controller>>,
    observing: Option<Arc<Observing>>,
    reviewing: Option<Arc<Reviewing>>,
    /// The kinds of its patterns, if it has some.
    matched: Option<Arc<Matched>>,
    record: Option<Arc<Record>>,
    /// What its service account may read. `None` if it acts as the host.
    rights: Option<Arc<Rights>>,
}

#[derive(Default)]
struct Active {
    plugins: BTreeMap<PluginName, ActivePlugin>,
    /// After the shutdown has begun: webhooks are answered until their server ends.
    closing: BTreeMap<PluginName, Arc<Reviewing>>,
    /// The shutdown has begun: no plugin is added any more.
    closed: bool,
}

impl Dispatch {
    /// Creates a dispatch without plugins.
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            active: Mutex::default(),
            ending: TaskTracker::new(),
            ended: AtomicU64::new(0),
            waiting: Mutex::default(),
            pending: Mutex::default(),
            reviewing_changed: watch::Sender::new(()),
            left: Mutex::default(),
        }
    }

    /// Returns the controllers of active plugins, in the order of plugins.
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        self.active.lock().plugins.values().flat_map(|plugin| &plugin.controllers).cloned().collect()
    }

    /// Returns the observers of active plugins, in the order of plugins.
    pub fn observing(&self) -> Vec<Arc<Observing>> {
        self.active.lock().plugins.values().filter_map(|plugin| plugin.observing.clone()).collect()
    }

    /// Returns the records of active plugins, in the order of plugins.
    pub fn records(&self) -> Vec<Arc<Record>> {
        self.active.lock().plugins.values().filter_map(|plugin| plugin.record.clone()).collect()
    }

    /// Returns what answers the webhooks of each active plugin, in the order of plugins.
    pub fn reviewing(&self) -> Vec<Arc<Reviewing>> {
        self.active.lock().plugins.values().filter_map(|plugin| plugin.reviewing.clone()).collect()
    }

    /// Returns what answers the webhooks of a plugin.
    pub fn reviewing_of(&self, plugin: &PluginName) -> Option<Arc<Reviewing>> {
        let active = self.active.lock();
        let reviewing = active.plugins.get(plugin).and_then(|plugin| plugin.reviewing.as_ref());
        reviewing.or_else(|| active.closing.get(plugin)).cloned()
    }

    /// Returns `true` if the host has an address for webhooks.
    pub fn serves_webhooks(&self) -> bool {
        self.parts.webhooks.is_some()
    }

    /// Returns a receiver that sees whenever webhooks of plugins come, change or go.
    pub fn reviewing_changes(&self) -> watch::Receiver<()> {
        self.reviewing_changed.subscribe()
    }

    /// Returns a warning for each finalizer that objects keep, and that the plugin does not remove any more.
    pub fn leftovers(&self, plugin: &PluginName) -> Vec<String> {
        self.left.lock().of(plugin)
    }

    /// Ends a plugin's quarantine.
    pub fn release(&self, plugin: &str) -> ReleaseOutcome {
        let active = self
            .active
            .lock()
            .plugins
            .iter()
            .find(|(name, _)| name.as_str() == plugin)
            .map(|(_, active)| active.clone());
        let Some(active) = active else { return ReleaseOutcome::UnknownPlugin };
        if !active.release() {
            return ReleaseOutcome::NotQuarantined;
        }
        info!(plugin, "the plugin is not quarantined any more: it was released by hand");
        ReleaseOutcome::Released
    }

    /// Returns the plugins that cannot become active yet, and what they wait for.
    pub fn waiting(&self) -> BTreeMap<PluginName, String> {
        self.waiting.lock().clone()
    }

    /// Forgets the rates of idle keys in all queues. To be called periodically; idle controllers are not woken.
    pub fn forget_rested(&self) {
        self.controllers().iter().for_each(|controller| controller.ledger().queue().forget_rested());
    }

    /// Returns the number of controllers and observers that have ended since the start, or are ending.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Takes no more keys, and waits for the reconciles in flight (invariant 10). Returns `false` if some were not
    /// finished within `grace`.
    pub async fn shut_down(&self, grace: Duration) -> bool {
        let plugins = {
            let mut active = self.active.lock();
            active.closed = true;
            let plugins = std::mem::take(&mut active.plugins);
            let reviewing = plugins.iter().filter_map(|(name, plugin)| Some((name.clone(), plugin.reviewing.clone()?)));
            active.closing = reviewing.collect();
            plugins
        };
        self.parts.acting.look();
        // The grace period bounds the calls in flight, not a cap on CPU. No write begins in its second half: a process
        // that is killed never learns what became of its requests.
        self.parts.guests.lift_caps();
        plugins.values().for_each(|plugin| plugin.withdraw(grace / 2));
        // The wait covers those that a swap or a removal has ended, too.
        for plugin in plugins.into_values() {
            drop(self.end(plugin));
        }
        self.ending.close();
        tokio::time::timeout(grace, self.ending.wait()).await.is_ok()
    }

    /// Ends a plugin. Nothing begins any more when this returns. The future waits until everything is finished; it may
    /// be dropped.
    fn end(&self, plugin: ActivePlugin) -> impl Future<Output = ()> + use<> {
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
        let mut ends: Vec<_> = plugin.controllers.into_iter().map(end).collect();
        if let Some(observing) = plugin.observing {
            observing.shut_down();
            ends.push(self.ending.spawn(async move { observing.drain().await }));
        }
        if let Some(reviewing) = plugin.reviewing {
            ends.push(self.ending.spawn(async move { reviewing.drain().await }));
        }
        self.ended.fetch_add(ends.len() as u64, Ordering::Relaxed);
        join_all(ends).map(drop)
    }
}

impl ActivePlugin {
    /// Returns what is in `self` and not in `other`.
    fn without(self, other: &Self) -> Self {
        let kept = |one: &Arc<Controller>| other.controllers.iter().any(|other| Arc::ptr_eq(other, one));
        let controllers = self.controllers.into_iter().filter(|one| !kept(one)).collect();
        let observing =
            self.observing.filter(|one| !other.observing.as_ref().is_some_and(|other| Arc::ptr_eq(other, one)));
        let reviewing =
            self.reviewing.filter(|one| !other.reviewing.as_ref().is_some_and(|other| Arc::ptr_eq(other, one)));
        Self { controllers, observing, reviewing, matched: None, record: None, rights: None }
    }

    /// Returns what serves the keys of each controller.
    fn servings(&self) -> Vec<Arc<serving::Serving>> {
        self.controllers.iter().map(|controller| controller.serving()).collect()
    }

    /// Lets no write begin after this time.
    fn withdraw(&self, grace: Duration) {
        if let Some(record) = &self.record {
            record.fence().close_after(grace);
        }
    }

    /// Ends the quarantine. Returns `false` if there is none.
    fn release(&self) -> bool {
        let released = self.record.as_ref().is_some_and(|record| record.release());
        if released {
            self.controllers.iter().for_each(|controller| controller.wake_workers());
        }
        released
    }
}

impl Terms for Dispatch {
    fn begins(&self, item: Option<&str>, is_again: bool) {
        // Webhook configurations may have to be written.
        self.reviewing_changed.send_replace(());
        if is_again {
            // Another host may have reconciled them, and what it read wakes nothing here.
            let controllers = self.controllers();
            let its = controllers.iter().filter(|its| item.is_none_or(|item| its.plugin().as_str() == item));
            its.for_each(Controller::look_at_all);
        }
    }
}

impl Items for Dispatch {
    fn items(&self) -> BTreeSet<Box<str>> {
        let active = self.active.lock();
        if active.closed {
            return BTreeSet::new();
        }
        let pending = self.pending.lock();
        let plugins = active.plugins.keys().chain(&*pending);
        plugins.map(PluginName::as_str).chain([HOST]).map(Box::from).collect()
    }

    fn used(&self) -> BTreeMap<Box<str>, Duration> {
        self.parts.guests.usage().iter().map(|(plugin, usage)| (plugin.as_str().into(), usage.used)).collect()
    }
}

impl Activate for Dispatch {
    fn activate(&self, candidate: Candidate) -> BoxFuture<'_, Result<(), ActivateError>> {
        self.activate(candidate).boxed()
    }

    fn kinds_changed<'a>(&'a self, name: &'a PluginName) -> BoxFuture<'a, ()> {
        self.kinds_changed(name).boxed()
    }

    fn deactivate<'a>(&'a self, name: &'a PluginName) -> BoxFuture<'a, ()> {
        async move {
            let plugin = self.active.lock().plugins.remove(name).unwrap_or_default();
            self.parts.acting.look();
            if plugin.reviewing.is_some() {
                self.reviewing_changed.send_replace(());
            }
            plugin.withdraw(WITHDRAWN_AFTER);
            let ended = self.end(plugin.clone());
            // A plugin that is not active is not quarantined either.
            plugin.release();
            ended.await;
            let left = left::left(name, plugin.servings(), |_, _| false).await;
            self.left.lock().add(name, left, |_, _| false);
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
