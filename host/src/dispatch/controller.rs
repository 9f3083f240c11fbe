//! One controller of a plugin at work: its routes, its queue, its workers, and the revision that serves it now.
//!
//! ```text
//! informers ─► routes ─► queue ─► workers ─► reconcile (the revision of the moment)
//! ```
//!
//! The queue, and what is known of failing and vanished keys, belong to the controller and outlive its revisions: a swap replaces
//! what serves the next key, and nothing else (invariant 9).

use std::{
    collections::{BTreeSet, HashMap},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::FutureExt;
use parking_lot::Mutex;
use pilothouse_core::{
    breaker::{OPEN, Storm},
    key::{Key, TypeMeta},
    manifest,
    object::Object,
    predicate::Predicate,
    reads::Tracker,
    reflector::State,
    route::{self, Mapping},
    selector::Selector,
    store::{Change, Query},
    workqueue::{CHANGE, INITIAL, Pace},
};
use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info};

use super::{
    Attempt, Called, Observer, Parts, Result as ReconcileResult,
    failing::{Failing, FailingKey},
    feed,
    imports::Access,
    mapper::{self, Asks},
    pending::{self, BacklogFigures, HookFailure},
    queue::{Cause, Next, Queue, Taker},
    reading::Reading,
    record::Record,
    resync,
    routes::{Routes, Wanted},
};
use crate::{
    cluster::Cluster,
    guests::Account,
    informer::{InformerKey, Lease, Origin, View, WORK},
    wasm::{Limits, PluginName, Revision},
    writer::{Events, Level},
};

/// What serves a controller's keys now.
pub(super) struct Serving {
    pub(super) revision: Arc<Revision>,
    pub(super) spec: manifest::Controller,
    pub(super) owns: Vec<TypeMeta>,
    /// Everything that the plugin caches.
    pub(super) view: View,
    /// What this controller reconciles out of it: the plugin may cache more of the kind for other ends.
    pub(super) reconciles: View,
    pub(super) access: Arc<Access>,
    /// How many keys may be reconciled at once.
    pub(super) concurrency: usize,
    /// How fast its queue hands them out.
    pub(super) pace: Pace,
}

/// A controller. Its workers hold it, so it ends only when it is told to.
pub struct Controller {
    plugin: PluginName,
    name: Arc<str>,
    queue: Queue,
    serving: ArcSwap<Serving>,
    routes: Routes<Source>,
    /// What keys have read (invariant 11): bounded for each key by what one call may read.
    reads: Arc<Mutex<Tracker>>,
    woken: Woken,
    /// What has to be asked for before it is known whom it concerns.
    asks: Asks,
    /// Last known states of objects that vanished and whose keys are still to be reconciled: at most as many as the queue has
    /// keys.
    gone: Mutex<HashMap<Key, Arc<Object>>>,
    failing: Failing,
    /// Of the whole plugin.
    record: Arc<Record>,
    ended: Ended,
    events: Events,
    workers: TaskTracker,
    /// What works beside the workers, as long as the controller lives.
    attendants: TaskTracker,
    /// How often every key is looked at again.
    resync: watch::Sender<Option<Duration>>,
    staff: Mutex<Staff>,
    active: AtomicUsize,
    stopping: CancellationToken,
    observer: Arc<dyn Observer>,
    account: Account,
    cluster: Cluster,
}

/// Keys that were woken, by why.
#[derive(Default)]
struct Woken {
    itself: AtomicU64,
    child: AtomicU64,
    mapping: AtomicU64,
    read: AtomicU64,
}

/// Reconciles since the start, by how they ended.
#[derive(Default)]
struct Ended {
    success: AtomicU64,
    requeue_after: AtomicU64,
    error: AtomicU64,
    terminal: AtomicU64,
}

/// What the keys of a controller have read, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadFigures {
    /// Keys that read something.
    pub keys: usize,
    /// Objects and selections that were read.
    pub things: usize,
    /// Bytes that it takes to remember.
    pub bytes: usize,
}

/// Who works, and how many should.
#[derive(Default)]
struct Staff {
    /// Every informer has synced.
    ready: bool,
    /// Counts changes of routes: a wait for those before is void.
    round: u64,
    wanted: usize,
    at_work: BTreeSet<usize>,
}

/// Which of the manifest's lists a route comes from: one informer may serve several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    For,
    Owns,
    Watches(manifest::Mapping),
    /// What a reconcile may read. True: it is waited for.
    Reads(bool),
}

impl Source {
    /// True if workers wait for the first list.
    fn is_awaited(&self) -> bool {
        !matches!(self, Source::Reads(false))
    }
}

impl Controller {
    /// Subscribes to everything in `wanted`, and starts to work when all of it has synced (invariant 6).
    pub(super) fn start(
        record: Arc<Record>,
        serving: Serving,
        wanted: Vec<Wanted<Source>>,
        parts: &Parts,
    ) -> Arc<Self> {
        let plugin = record.plugin().clone();
        let controller = Arc::new(Self {
            name: serving.spec.name.as_str().into(),
            queue: Queue::new(serving.pace),
            staff: Mutex::new(Staff { wanted: serving.concurrency, ..Staff::default() }),
            active: AtomicUsize::new(0),
            resync: watch::Sender::new(serving.spec.resync),
            serving: ArcSwap::from_pointee(serving),
            routes: Routes::default(),
            reads: Arc::default(),
            woken: Woken::default(),
            asks: Asks::new(),
            gone: Mutex::default(),
            failing: Failing::default(),
            record,
            ended: Ended::default(),
            events: parts.events.clone(),
            workers: TaskTracker::new(),
            attendants: TaskTracker::new(),
            stopping: CancellationToken::new(),
            observer: parts.observer.clone(),
            account: parts.guests.account(&plugin),
            plugin,
            cluster: parts.cluster.clone(),
        });
        controller.route(wanted);
        controller.staff_when_synced();
        let (weak, every) = (Arc::downgrade(&controller), controller.resync.subscribe());
        controller.attend(move || resync::run(weak.clone(), every.clone()));
        let asked = controller.clone();
        controller.attend(move || mapper::run(asked.clone()));
        controller
    }

    /// Does `work` until the controller ends, whatever the host fails over.
    fn attend<F: Future<Output = ()> + Send + 'static>(&self, work: impl Fn() -> F + Send + 'static) {
        let (stopping, persisting) = (self.stopping.clone(), pending::persist(self.plugin.clone(), work));
        let attend = async move { stopping.run_until_cancelled_owned(persisting).await };
        self.account.spawn(self.attendants.track_future(attend)).detach();
    }

    /// Workers, and what waits to start them.
    #[cfg(test)]
    pub(super) fn tasks(&self) -> usize {
        self.workers.len()
    }

    fn staff_when_synced(self: &Arc<Self>) {
        let round = {
            let mut staff = self.staff.lock();
            staff.round += 1;
            staff.round
        };
        let this = self.clone();
        let wait = async move {
            tokio::select! {
                () = this.synced() => {}
                () = this.stopping.cancelled() => return,
            }
            {
                let mut staff = this.staff.lock();
                if staff.round != round {
                    return;
                }
                staff.ready = true;
            }
            this.staff();
        };
        self.account.spawn(self.workers.track_future(wait)).detach();
    }

    /// The plugin whose controller it is.
    pub fn plugin(&self) -> &PluginName {
        &self.plugin
    }

    /// Its name in the manifest.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its queue, to look at.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// What the manifest of the revision that serves says of it.
    pub fn spec(&self) -> manifest::Controller {
        self.serving.load().spec.clone()
    }

    /// How many keys may be reconciled at once.
    pub fn max_concurrency(&self) -> usize {
        self.staff.lock().wanted
    }

    /// What one call may take.
    pub fn limits(&self) -> Limits {
        self.serving.load().revision.limits()
    }

    /// How long one reconcile may take.
    pub fn deadline(&self) -> Option<Duration> {
        self.serving.load().revision.deadline(&self.name)
    }

    /// How fast its queue hands keys out.
    pub fn pace(&self) -> Pace {
        self.serving.load().pace
    }

    /// How many keys are being reconciled now.
    pub fn active_workers(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// True if a controller of a newer manifest reconciles the same kind under the same name: it takes over queue and caches.
    pub(super) fn continues(&self, spec: &manifest::Controller) -> bool {
        let serving = self.serving();
        serving.spec.name == spec.name && serving.spec.for_.of == spec.for_.of
    }

    /// A reconcile ended.
    pub(super) fn attempted(&self, attempt: &Attempt) {
        let Ended { success, requeue_after, error, terminal } = &self.ended;
        let count = match attempt.result {
            ReconcileResult::Success => success,
            ReconcileResult::RequeueAfter => requeue_after,
            ReconcileResult::Error => error,
            ReconcileResult::Terminal => terminal,
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.observer.attempted(self, attempt);
    }

    /// Reconciles since the start, by how they ended: `success`, `requeue_after`, `error` and `terminal`.
    pub fn ended(&self) -> [(&'static str, u64); 4] {
        let Ended { success, requeue_after, error, terminal } = &self.ended;
        [
            (ReconcileResult::Success, success),
            (ReconcileResult::RequeueAfter, requeue_after),
            (ReconcileResult::Error, error),
            (ReconcileResult::Terminal, terminal),
        ]
        .map(|(result, count)| (result.as_str(), count.load(Ordering::Relaxed)))
    }

    /// What is known of the plugin's calls.
    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// Where people are told.
    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    /// The plugin's `mapper` was called.
    pub(super) fn called(&self, called: &Called) {
        self.observer.called(&self.plugin, Some(self), called);
    }

    /// The informers that are not ready yet, each with what it is doing.
    pub fn waits_for(&self) -> Vec<(InformerKey, State)> {
        self.routes.waits_for(Source::is_awaited)
    }

    /// True if it listens to this informer, synced or not.
    pub(super) fn listens_to(&self, informer: &InformerKey) -> bool {
        self.routes.listens_to(informer)
    }

    /// True once workers are at work.
    pub(super) fn is_ready(&self) -> bool {
        self.staff.lock().ready
    }

    /// What its keys have read.
    pub fn reads(&self) -> ReadFigures {
        let reads = self.reads.lock();
        ReadFigures { keys: reads.keys(), things: reads.dependencies(), bytes: reads.bytes() }
    }

    /// Keys that were woken since the start, by why: `self`, `child`, `mapping` and `read`.
    pub fn woken(&self) -> [(&'static str, u64); 4] {
        let Woken { itself, child, mapping, read } = &self.woken;
        [("self", itself), ("child", child), ("mapping", mapping), ("read", read)]
            .map(|(by, count)| (by, count.load(Ordering::Relaxed)))
    }

    /// What waits for the plugin to be mapped.
    pub fn unmapped(&self) -> BacklogFigures {
        self.asks.figures()
    }

    /// The last time that the plugin could not say whom a change concerns.
    pub fn last_unmapped(&self) -> Option<HookFailure> {
        self.asks.last_failure()
    }

    pub(super) fn asks(&self) -> &Asks {
        &self.asks
    }

    pub(super) fn serving(&self) -> Arc<Serving> {
        self.serving.load_full()
    }

    /// Returns when every informer has synced, and its first objects are routed: those that the plugin maps have been asked for, even
    /// if in vain.
    async fn synced(&self) {
        self.routes.synced(Source::is_awaited).await;
        self.asks.tried().await;
    }

    /// Puts another revision in place of the one that serves: from the next key on it is called, calls under way finish on the
    /// old one, and every key is looked at again, after whatever changed.
    ///
    /// The informers in `wanted` that it does not listen to yet must have synced.
    pub(super) fn swap(self: &Arc<Self>, serving: Serving, wanted: Vec<Wanted<Source>>) {
        self.staff.lock().wanted = serving.concurrency;
        self.queue.set_pace(serving.pace);
        self.resync.send_if_modified(|every| std::mem::replace(every, serving.spec.resync) != serving.spec.resync);
        let kinds: Vec<TypeMeta> = serving.view.leases().map(|lease| lease.key().of.clone()).collect();
        self.serving.store(Arc::new(serving));
        self.route(wanted);
        // What was read stays until its key is reconciled by the new revision: but for what nobody would hear of.
        self.reads.lock().retain(|of| kinds.contains(of));
        self.requeue_all();
        // Those that are too many, to go.
        self.queue.wake_all();
        self.staff();
        self.staff_when_synced();
    }

    fn route(self: &Arc<Self>, wanted: Vec<Wanted<Source>>) {
        self.routes.replace(wanted, |source, when| {
            let controller = Arc::downgrade(self);
            Box::new(move |change: &Change, origin| {
                if let Some(controller) = controller.upgrade() {
                    controller.hear(&source, &when.load(), change, origin);
                }
            })
        });
    }

    /// Wakes the keys that a change concerns. The informer is locked meanwhile.
    fn hear(&self, source: &Source, when: &Predicate, change: &Change, origin: Origin) {
        if let Source::Reads(_) = source {
            return self.hear_read(change, origin);
        }
        let matters = super::matters(when, change, &self.record);
        if *source == Source::For {
            self.remember(change, matters);
        }
        if !matters {
            return;
        }
        let Some(object) = change.new.as_ref().or(change.old.as_ref()) else { return };
        let mut keys = Vec::new();
        match self.mapping(source) {
            Some(Mapping::Index { index, .. }) => self.asks.look_up(&index, change),
            Some(mapping) => route::keys(&mapping, change, |_, _, _| Vec::new(), &mut keys),
            None => self.asks.ask(change),
        }
        if matches!(source, Source::Watches(_)) && !keys.is_empty() && self.record.is_quarantined() {
            // Whether they are there cannot be looked up here, where an informer is locked.
            return self.asks.look_for(keys, change);
        }
        if origin == Origin::Change {
            feed::changed(self, change, &keys);
        }
        let changed = || (object.type_meta().clone(), object.key().clone());
        match source {
            Source::For => self.wake(keys, origin, &self.woken.itself, || Cause::Itself),
            Source::Owns => self.wake(keys, origin, &self.woken.child, || {
                let (of, key) = changed();
                Cause::Child(of, key)
            }),
            Source::Watches(_) | Source::Reads(_) => self.wake(keys, origin, &self.woken.mapping, || {
                let (of, key) = changed();
                Cause::Mapping(format!("{of} {key}"))
            }),
        }
    }

    /// Wakes the keys that read what changed (invariant 11).
    fn hear_read(&self, change: &Change, origin: Origin) {
        let Some(object) = change.new.as_ref().or(change.old.as_ref()) else { return };
        let mut keys = Vec::new();
        self.reads.lock().wakes(object.type_meta(), change, &mut keys);
        if origin == Origin::Change {
            feed::read(self, change, &keys);
        }
        let cause = || Cause::Read(Some((object.type_meta().clone(), object.key().clone())));
        self.wake(keys, origin, &self.woken.read, cause);
    }

    fn wake(&self, keys: Vec<Key>, origin: Origin, by: &AtomicU64, cause: impl Fn() -> Cause) {
        by.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let priority = if origin == Origin::Initial { INITIAL } else { CHANGE };
        for key in keys {
            self.queue.add(key, priority, &cause);
        }
    }

    /// Returns when what it reconciles has synced: who is asked for keys is asked then, so that it is known which of them are there.
    pub(super) async fn knows_its_own(&self) {
        self.routes.synced(|source| *source == Source::For).await;
    }

    /// Those of the keys that somebody names of which something is known: others could fill the queue. Nothing is lost by that, as they
    /// would be found to be nothing when it is their turn, and an object that comes later is a change itself.
    pub(super) fn known(&self, mut keys: Vec<Key>) -> Vec<Key> {
        let serving = self.serving();
        keys.retain(|key| self.look_up(&serving, key).is_some());
        keys
    }

    /// Adds keys that somebody had to be asked for, since these objects changed.
    pub(super) fn wake_mapped(&self, keys: Vec<Key>, objects: impl Fn() -> String) {
        let origin = if self.is_ready() { Origin::Change } else { Origin::Initial };
        self.wake(keys, origin, &self.woken.mapping, || Cause::Mapping(objects()));
    }

    /// A call about a key begins: what it reads is noted.
    pub(super) fn begin_reading(&self, key: &Key) -> Reading {
        Reading::begin(&self.reads, key)
    }

    /// What a key read had changed before it was read: it is looked at once more when this look is over.
    pub(super) fn read_old(&self, key: &Key) {
        feed::read_old(self, key);
        self.wake(vec![key.clone()], Origin::Change, &self.woken.read, || Cause::Read(None));
    }

    /// Nobody is to be woken for a key that is gone and reconciled.
    pub(super) fn forget_unless_there(&self, serving: &Serving, key: &Key) {
        if self.look_up(serving, key).is_none() {
            self.reads.lock().forget(key);
        }
    }

    /// How changes of a source lead to keys; none: the plugin says. Whether the reconciled kind lives in namespaces is known only when
    /// it is served, and what is mapped to it may be served long before.
    fn mapping(&self, source: &Source) -> Option<Mapping> {
        let serving = self.serving.load();
        let of = &serving.spec.for_.of;
        let namespaced = || self.cluster.known(of).is_none_or(|endpoint| endpoint.namespaced);
        match source {
            Source::For | Source::Reads(_) => Some(Mapping::SelfKey),
            Source::Owns => Some(Mapping::Owner { of: of.clone(), namespaced: namespaced() }),
            Source::Watches(mapping) => Mapping::new(mapping, of, namespaced()),
        }
    }

    /// Keeps the last known state of what vanished, until its key is reconciled (invariant 5). Where its end does not matter to the
    /// plugin, nobody will ask for it.
    fn remember(&self, change: &Change, matters: bool) {
        let mut gone = self.gone.lock();
        match (&change.old, &change.new) {
            (Some(last), None) if matters => drop(gone.insert(last.key().clone(), last.clone())),
            _ => drop(gone.remove(change.key())),
        }
    }

    /// Looks at every key again, after whatever changed.
    fn requeue_all(&self) {
        let serving = self.serving();
        for lease in serving.reconciles.leases() {
            let mut after = self.requeue(lease, None, |_| true);
            while let Some(last) = after {
                after = self.requeue(lease, Some(&last), |_| true);
            }
        }
    }

    /// Looks again at every key for which a change from its object to itself matters, after whatever changed. Gives way now and then.
    pub(super) async fn resync(&self) {
        let serving = self.serving();
        let matters = |object: &Arc<Object>| {
            let change = Change { old: Some(object.clone()), new: Some(object.clone()), missed: false };
            super::matters(&serving.spec.for_.when, &change, &self.record)
        };
        for lease in serving.reconciles.leases() {
            let mut after = self.requeue(lease, None, matters);
            while let Some(last) = after {
                tokio::task::yield_now().await;
                after = self.requeue(lease, Some(&last), matters);
            }
        }
    }

    /// Looks again at some keys, from the one after `after` on: the informer stands still meanwhile. Gives the last of them, if there are
    /// more.
    fn requeue(&self, lease: &Lease, after: Option<&Key>, matters: impl Fn(&Arc<Object>) -> bool) -> Option<Key> {
        let all = Selector::default();
        let page = lease.page(&Query { after, ..Query::new(&all) }, None, WORK);
        for object in page.items.iter().filter(|object| matters(object)) {
            self.queue.add(object.key().clone(), INITIAL, || Cause::Resync);
        }
        page.next
    }

    /// Starts the workers that are wanted and not there. Those that are too many end by themselves.
    fn staff(self: &Arc<Self>) {
        let mut staff = self.staff.lock();
        if !staff.ready {
            return;
        }
        for number in 0..staff.wanted {
            if staff.at_work.insert(number) {
                let controller = self.clone();
                let work = async move { controller.work(number).await };
                self.account.spawn(self.workers.track_future(work)).detach();
            }
        }
    }

    async fn work(&self, number: usize) {
        while let Some((item, storm)) = self.queue.next(&Worker { controller: self, number }).await {
            self.active.fetch_add(1, Ordering::Relaxed);
            let mut held = Held { controller: self, item: &item, next: Next::Retry };
            self.observer.picked(self, item.waited);
            if let Some(storm) = storm {
                self.tell_storm(&item.key, &storm);
            }
            // A fault of the host over one key must not take the worker, which nobody would replace.
            match AssertUnwindSafe(super::reconcile::run(self, &item)).catch_unwind().await {
                Ok(next) => held.next = next,
                Err(_) => {
                    error!(plugin = %self.plugin, controller = %self.name, key = %item.key, "the host failed over a key");
                }
            }
            drop(held);
            if !self.queue.has_next() && !self.stopping.is_cancelled() {
                self.prepare().await;
            }
            // A plugin that always has a next key gives way to others all the same. One that has none does not stand in line for nothing: what
            // comes while it does would wait behind others, as if it had not rested.
            if self.queue.has_next() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Makes ready what the next key needs.
    async fn prepare(&self) {
        let serving = self.serving();
        if AssertUnwindSafe(serving.revision.prepare()).catch_unwind().await.is_err() {
            error!(plugin = %self.plugin, controller = %self.name, "the host failed over an instance that it made ahead");
        }
    }

    /// Whether a worker is still wanted; if not, it is off the list.
    fn keeps(&self, number: usize) -> bool {
        let mut staff = self.staff.lock();
        let keeps = number < staff.wanted;
        if !keeps {
            staff.at_work.remove(&number);
        }
        keeps
    }

    /// A key is reconciled over and over: says so, and who causes it.
    fn tell_storm(&self, key: &Key, storm: &Storm<Cause>) {
        let within = self.queue.now().saturating_sub(storm.since);
        self.record.storms(&self.name, key, storm, within);
        if let Some((object, _)) = self.look_up(&self.serving(), key) {
            let by = storm.by.as_ref().map_or_else(String::new, |by| {
                format!("; {} of the last {} times it was woken by {}", by.wakes, by.of, by.cause)
            });
            let message = format!(
                "plugin {} reconciled it {} times within {:.1} s, and does so once in {} s from now on{by}",
                self.plugin,
                storm.reconciles,
                within.as_secs_f32(),
                OPEN.as_secs()
            );
            self.events.tell(&object, Level::Warning, "ReconcileStorm", &message);
        }
    }

    /// Looks again for keys to take: they were held back, and are not any more.
    pub(super) fn wake_workers(&self) {
        self.queue.wake_all();
    }

    /// The object under a key as it is now, or as it was last if it is gone. None: nothing is known of it, or nothing that the
    /// plugin may read.
    pub(super) fn look_up(&self, serving: &Serving, key: &Key) -> Option<(Arc<Object>, bool)> {
        if !serving.access.reader.may_read(&serving.spec.for_.of, key) {
            self.gone.lock().remove(key);
            return None;
        }
        if let Some(object) = serving.reconciles.get(&serving.spec.for_.of, key) {
            return Some((object, true));
        }
        self.gone.lock().get(key).cloned().map(|last| (last, false))
    }

    /// A vanished object was reconciled: its last state is not needed any more, unless it came and went again meanwhile.
    pub(super) fn forget_gone(&self, last: &Arc<Object>) {
        let mut gone = self.gone.lock();
        if gone.get(last.key()).is_some_and(|kept| Arc::ptr_eq(kept, last)) {
            gone.remove(last.key());
        }
    }

    /// Why the last try of a key failed, if it did.
    pub(super) fn last_error(&self, key: &Key) -> Option<String> {
        self.failing.last_error(key)
    }

    pub(super) fn note_error(&self, key: &Key, error: Option<String>) {
        self.failing.note(key, error);
    }

    /// How many keys are being retried, and those of them that fail for longest, at most so many.
    pub fn failing(&self, most: usize) -> (usize, Vec<FailingKey>) {
        let (all, mut longest) = self.failing.longest(most);
        let queue = self.queue.lock();
        longest.iter_mut().for_each(|failing| failing.failures = queue.failures(&failing.key));
        (all, longest)
    }

    /// Takes no more keys.
    pub(super) fn shut_down(&self) {
        self.stopping.cancel();
        self.queue.shut_down();
        self.workers.close();
        self.attendants.close();
    }

    /// Takes no more keys, and returns when those in flight are finished.
    pub(super) async fn drain(&self) {
        self.shut_down();
        self.workers.wait().await;
        self.attendants.wait().await;
        self.routes.end();
        info!(plugin = %self.plugin, controller = %self.name, "controller stopped");
    }
}

/// A worker that looks for a key.
struct Worker<'a> {
    controller: &'a Controller,
    number: usize,
}

impl Taker for Worker<'_> {
    fn goes_on(&self) -> bool {
        self.controller.keeps(self.number)
    }

    fn held(&self) -> Option<Instant> {
        self.controller.record.held()
    }

    fn calmed(&self, key: &Key, storm: &Storm<Cause>) {
        let Controller { name, queue, record, .. } = self.controller;
        record.calmed(name, key, storm, queue.now().saturating_sub(storm.since));
    }
}

/// A key in a worker's hands: whatever happens to the worker, the key goes back to the queue.
struct Held<'a> {
    controller: &'a Controller,
    item: &'a pilothouse_core::workqueue::Item<Key>,
    next: Next,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let took: Duration = self.controller.queue.finish(self.item, self.next);
        self.controller.active.fetch_sub(1, Ordering::Relaxed);
        self.controller.observer.finished(self.controller, took);
    }
}
