//! One controller of a plugin at work: what wakes its keys, its workers, and the revision that serves it now.
//!
//! ```text
//! informers ─► waking ─► ledger (queue) ─► workers ─► reconcile (the revision of the moment)
//! ```
//!
//! The controller and its [ledger](Ledger) outlive revisions: a swap replaces what serves the next key, and nothing
//! else (invariant 9). [`waking`] decides which keys a change wakes, and [`workers`] reconcile them.

mod asking;
mod waking;
mod workers;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use pilothouse_core::{event::Release, key::Key, manifest, store::Change, workqueue::Pace};
use tokio::sync::watch;
use tracing::{info, warn};

use self::asking::Leased;
pub(super) use self::waking::Source;
pub use self::waking::Waking;
use self::workers::Workers;
use super::{
    Attempt, Observer, Parts, ReconcileResult,
    attendants::Attendants,
    ledger::{Ledger, awaiting, deferred::Left},
    record::Record,
    resync,
    routes::{Part, Wanted},
    serving::{ControllerId, Serving},
    wakes::Wakes,
};
use crate::{
    guests::Account,
    informer::Informers,
    name::PluginName,
    wasm::Limits,
    writer::{Events, Owner},
};

/// Postponed statuses that an ended controller writes at a time: as many as children of one object.
const STATUSES_AT_ONCE: usize = 8;

/// A controller. Its tasks hold it, so it ends only by [`shut_down`](Self::shut_down).
pub struct Controller {
    id: ControllerId,
    serving: ArcSwap<Serving>,
    ledger: Ledger,
    waking: Waking,
    workers: Workers,
    /// Leases on what keys ask for.
    asked: Mutex<Leased>,
    /// A task looks at what keys ask for. Most plugins need none.
    follows: AtomicBool,
    informers: Informers,
    /// The record of the whole plugin.
    record: Arc<Record>,
    results: Results,
    events: Events,
    /// Tasks beside the workers, which live as long as the controller.
    attendants: Attendants,
    /// The period in which every key is looked at again.
    resync: watch::Sender<Option<Duration>>,
    observer: Arc<dyn Observer>,
    account: Account,
}

/// Reconciles since the start, by result.
#[derive(Default)]
struct Results {
    success: AtomicU64,
    requeue_after: AtomicU64,
    error: AtomicU64,
    terminal: AtomicU64,
}

impl Controller {
    /// Listens to everything in `wanted`, and starts the workers when all of it has synced (invariant 6).
    pub(super) fn start(
        record: Arc<Record>,
        serving: Serving,
        wanted: Vec<Wanted<Source>>,
        parts: &Parts,
    ) -> Arc<Self> {
        let id = ControllerId { plugin: record.plugin().clone(), name: serving.spec.name.as_str().into() };
        let account = parts.guests.account(&id.plugin);
        let controller = Arc::new(Self {
            ledger: Ledger::new(serving.pace, record.remembered()),
            waking: Waking::new(record.remembered(), parts.cluster.clone()),
            workers: Workers::new(serving.concurrency),
            asked: Mutex::new(Leased::within(record.remembered())),
            follows: AtomicBool::new(false),
            informers: parts.informers.clone(),
            resync: watch::Sender::new(serving.spec.resync),
            serving: ArcSwap::from_pointee(serving),
            record,
            results: Results::default(),
            events: parts.events.clone(),
            attendants: Attendants::new(&id.plugin, account.clone()),
            observer: parts.observer.clone(),
            account,
            id,
        });
        controller.route(Part::Manifest, wanted);
        controller.hire_when_synced();
        controller
            .attendants
            .spawn(&controller, |this| async move { resync::run(this.wakes(), this.resync.subscribe()).await });
        controller.attendants.spawn(&controller, |this| async move {
            this.waking.own_synced().await;
            let called = |called: &_| this.observer.called(&this.id.plugin, Some(&this), called);
            this.waking.unmapped.run(this.wakes(), called).await;
        });
        let informers = parts.informers.clone();
        controller.attendants.spawn(&controller, move |this| {
            let turns = informers.turns();
            async move { awaiting::run(&this.ledger, &this.serving, turns).await }
        });
        controller
    }

    /// Listens to everything in `wanted`, and to nothing else of this part. Changes go to [`Waking::hear`].
    ///
    /// Reads are kept until the key is reconciled again, except those of kinds that are not listened to any more.
    fn route(self: &Arc<Self>, part: Part, wanted: Vec<Wanted<Source>>) {
        let needs_judge = wanted.iter().any(|wanted| wanted.when.may_wait());
        let needs_introduction = self.waking.routes.replace(part, wanted, |listener| {
            let controller = Arc::downgrade(self);
            Box::new(move |change: &Change, origin| {
                if let Some(controller) = controller.upgrade() {
                    controller.waking.hear(controller.wakes(), &listener, change, origin);
                }
            })
        });
        self.ledger.retain_reads(&self.waking.routes.kinds());
        if needs_introduction {
            self.attendants.spawn(self, |this| async move { this.waking.routes.introduce().await });
        }
        if needs_judge && !self.waking.judges.swap(true, Ordering::Relaxed) {
            self.attendants.spawn(self, |this| async move { this.waking.judge(this.wakes()).await });
        }
    }

    /// The number of workers, and of waits to start them.
    #[cfg(test)]
    pub(super) fn tasks(&self) -> usize {
        self.workers.tasks.len()
    }

    /// The changes that are not mapped to keys yet.
    #[cfg(test)]
    pub(super) fn unmapped(&self) -> &super::mapper::Unmapped {
        &self.waking.unmapped
    }

    /// The plugin whose controller it is.
    pub fn plugin(&self) -> &PluginName {
        &self.id.plugin
    }

    /// Its name in the manifest.
    pub fn name(&self) -> &str {
        &self.id.name
    }

    /// Everything that is known of its keys.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What wakes its keys.
    pub fn waking(&self) -> &Waking {
        &self.waking
    }

    /// The manifest of the revision that serves.
    pub fn spec(&self) -> manifest::Controller {
        self.serving.load().spec.clone()
    }

    /// Upper bound of concurrent reconciles.
    pub fn max_concurrency(&self) -> usize {
        self.workers.staff.wanted()
    }

    /// The limits of one call.
    pub fn limits(&self) -> Limits {
        self.serving.load().revision.limits()
    }

    /// The deadline of one reconcile.
    pub fn deadline(&self) -> Option<Duration> {
        self.serving.load().revision.deadline(&self.id.name)
    }

    /// How fast the queue hands out keys.
    pub fn pace(&self) -> Pace {
        self.serving.load().pace
    }

    /// The number of keys that are being reconciled now.
    pub fn active_workers(&self) -> usize {
        self.workers.active()
    }

    /// `true` if the controller of a newer manifest goes on as this one, with its queue and caches: it has the same
    /// name and kind.
    pub(super) fn continues(&self, spec: &manifest::Controller) -> bool {
        let serving = self.serving();
        serving.spec.name == spec.name && serving.spec.for_.of == spec.for_.of
    }

    /// Counts a reconcile that ended.
    fn record_attempt(&self, attempt: &Attempt) {
        let Results { success, requeue_after, error, terminal } = &self.results;
        let count = match attempt.result {
            ReconcileResult::Success => success,
            ReconcileResult::RequeueAfter => requeue_after,
            ReconcileResult::Error => error,
            ReconcileResult::Terminal => terminal,
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.observer.attempted(self, attempt);
    }

    /// Reconciles since the start, by result: `success`, `requeue_after`, `error` and `terminal`.
    pub fn results(&self) -> [(&'static str, u64); 4] {
        let Results { success, requeue_after, error, terminal } = &self.results;
        [
            (ReconcileResult::Success, success),
            (ReconcileResult::RequeueAfter, requeue_after),
            (ReconcileResult::Error, error),
            (ReconcileResult::Terminal, terminal),
        ]
        .map(|(result, count)| (result.as_str(), count.load(Ordering::Relaxed)))
    }

    /// Reconciles a key though nothing has changed.
    pub fn resync(&self, key: Key) {
        self.wakes().resync(key);
    }

    /// What serves the keys now.
    pub(super) fn serving(&self) -> Arc<Serving> {
        self.serving.load_full()
    }

    /// A handle to wake its keys.
    pub(super) fn wakes(&self) -> Wakes<'_> {
        Wakes {
            id: &self.id,
            record: &self.record,
            ledger: &self.ledger,
            serving: &self.serving,
            staff: &self.workers.staff,
            woken: &self.waking.woken,
        }
    }

    /// Replaces the revision that serves. It is called from the next key on, calls in flight finish on the old one.
    ///
    /// The informers in `wanted` that the controller does not listen to yet must have synced.
    pub(super) fn swap(self: &Arc<Self>, serving: Serving, wanted: Vec<Wanted<Source>>) {
        self.workers.staff.set_wanted(serving.concurrency);
        self.ledger.queue().set_pace(serving.pace);
        self.resync.send_if_modified(|every| std::mem::replace(every, serving.spec.resync) != serving.spec.resync);
        self.serving.store(Arc::new(serving));
        self.route(Part::Manifest, wanted);
        self.lease_asked_anew();
        // Surplus workers leave.
        self.wake_workers();
        self.hire();
        self.hire_when_synced();
    }

    /// Reconciles every key again, because another revision or other settings serve.
    pub(super) fn look_at_all(self: &Arc<Self>) {
        self.attendants.spawn(self, |this| async move { resync::wake_all(this.wakes()).await });
    }

    /// Forgets changes and deleted objects that the plugin may not see any more.
    pub(super) fn restrict(&self) {
        let serving = self.serving();
        self.ledger.restrict(&serving);
        self.ledger.asks().look();
        self.waking.unmapped.restrict(&serving.access);
    }

    /// Lets idle workers look for keys again. Called when something that held keys back has changed.
    pub(super) fn wake_workers(&self) {
        self.ledger.queue().wake_all();
    }

    /// Writes the postponed statuses of a controller that has ended, and their Events. The plugin's
    /// [fence](crate::writer::Fence) bounds how long this takes.
    pub(super) async fn write_deferred(&self) {
        // Another host is about to act, or acts already.
        let Some(_call) = self.record.acting().begin() else { return };
        let serving = self.serving();
        let writing = self.ledger.take_all_deferred().into_iter().map(async |(key, uid, Left { status, events })| {
            // Without a status, the Events wait for one that was not written. The next host finds the same difference.
            let Some(status) = status else { return };
            let object = serving.reconciles.get(&serving.spec.for_.of, &key).filter(|object| *object.uid() == uid);
            let Some(object) = object else { return };
            let owner = Owner { object: &object, owns: &serving.owns };
            match serving.access.writer.status(&owner, &serving.view, &status).await {
                Ok(_) => {
                    let release = Release { events: events.into_waiting(), dropped: 0 };
                    serving.access.release_events(&object, release);
                }
                Err(error) if self.record.may_log() => {
                    let plugin = &self.id.plugin;
                    warn!(%plugin, controller = self.name(), %key, %error, "cannot write a postponed status at the end");
                }
                Err(_) => {}
            }
        });
        stream::iter(writing).buffer_unordered(STATUSES_AT_ONCE).collect::<()>().await;
    }

    /// Takes no more keys.
    pub(super) fn shut_down(&self) {
        self.attendants.shut_down();
        self.ledger.queue().shut_down();
        self.workers.tasks.close();
    }

    /// Takes no more keys, and returns when the reconciles in flight are finished.
    pub(super) async fn drain(&self) {
        self.shut_down();
        self.workers.tasks.wait().await;
        self.attendants.ended().await;
        self.waking.routes.end();
        self.end_asked();
        info!(plugin = %self.id.plugin, controller = self.name(), "controller stopped");
    }
}
