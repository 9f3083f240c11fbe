//! One controller of a plugin at work: its routes, its queue, its workers, and the revision that serves it now.
//!
//! ```text
//! informers ─► waking ─► queue ─► workers ─► reconcile (the revision of the moment)
//! ```
//!
//! Owns what lives as long as the controller does, and how it begins, goes on and ends. The queue, and what is known of failing and
//! vanished keys, belong to it and outlive its revisions: a swap replaces what serves the next key, and nothing else (invariant 9). Which
//! keys a change wakes is for [`waking`], who works on them for [`workers`].

mod waking;
mod workers;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::{StreamExt, stream};
use pilothouse_core::{
    key::{Key, TypeMeta},
    manifest,
    object::Object,
    workqueue::Pace,
};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

pub(super) use self::waking::Source;
use self::{waking::Waking, workers::Workers};
use super::{
    Attempt, Called, Observer, Parts, ReconcileResult,
    imports::Access,
    ledger::{
        awaiting::{self, Awaiting},
        deferred::Deferred,
        failing::{Failing, FailingKey, GivenUp},
        gone::{Gone, GoneFigures},
    },
    mapper, pending,
    queue::Queue,
    record::Record,
    resync,
    routes::Wanted,
};
use crate::{
    cluster::Cluster,
    guests::Account,
    informer::View,
    name::PluginName,
    wasm::{Limits, Revision},
    writer::{Events, Owner},
};

/// Statuses that are written at a time when a controller has ended: as many as children of one object.
const STATUSES_AT_ONCE: usize = 8;

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
    waking: Waking,
    workers: Workers,
    gone: Gone,
    failing: Failing,
    deferred: Deferred,
    awaiting: Awaiting,
    /// Of the whole plugin.
    record: Arc<Record>,
    ended: Ended,
    events: Events,
    /// What works beside the workers, as long as the controller lives.
    attendants: TaskTracker,
    /// How often every key is looked at again.
    resync: watch::Sender<Option<Duration>>,
    stopping: CancellationToken,
    observer: Arc<dyn Observer>,
    account: Account,
    cluster: Cluster,
}

/// Reconciles since the start, by how they ended.
#[derive(Default)]
struct Ended {
    success: AtomicU64,
    requeue_after: AtomicU64,
    error: AtomicU64,
    terminal: AtomicU64,
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
            waking: Waking::new(record.remembered()),
            workers: Workers::new(serving.concurrency),
            resync: watch::Sender::new(serving.spec.resync),
            serving: ArcSwap::from_pointee(serving),
            gone: Gone::within(&record.remembered().gone),
            failing: Failing::within(&record.remembered().reasons),
            deferred: Deferred::within(&record.remembered().statuses),
            awaiting: Awaiting::default(),
            record,
            ended: Ended::default(),
            events: parts.events.clone(),
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
        let (woken, informers) = (controller.clone(), parts.informers.clone());
        controller.attend(move || awaiting::run(woken.clone(), informers.turns()));
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
        self.workers.tasks()
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
        self.workers.wanted()
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
        self.workers.active()
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

    /// Keys that wait for watches to come back.
    pub(super) fn awaiting(&self) -> &Awaiting {
        &self.awaiting
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

    /// True once workers are at work.
    pub(super) fn is_ready(&self) -> bool {
        self.workers.are_ready()
    }

    pub(super) fn serving(&self) -> Arc<Serving> {
        self.serving.load_full()
    }

    /// Puts another revision in place of the one that serves: from the next key on it is called, calls under way finish on the
    /// old one, and every key is looked at again, after whatever changed.
    ///
    /// The informers in `wanted` that it does not listen to yet must have synced.
    pub(super) fn swap(self: &Arc<Self>, serving: Serving, wanted: Vec<Wanted<Source>>) {
        self.workers.want(serving.concurrency);
        self.queue.set_pace(serving.pace);
        self.resync.send_if_modified(|every| std::mem::replace(every, serving.spec.resync) != serving.spec.resync);
        self.serving.store(Arc::new(serving));
        self.route(wanted);
        let again = self.clone();
        self.attend(move || {
            let again = again.clone();
            async move { resync::look_at_each(&again).await }
        });
        // Those that are too many, to go.
        self.queue.wake_all();
        self.staff();
        self.staff_when_synced();
    }

    /// Forgets what waits for the plugin, or vanished, and may not be seen any more.
    pub(super) fn restrict(&self) {
        let serving = self.serving();
        self.gone.retain(|key| serving.access.may_see(&serving.spec.for_.of, key));
        self.asks().restrict(&serving.access);
    }

    /// Looks again for keys to take: they were held back, and are not any more.
    pub(super) fn wake_workers(&self) {
        self.queue.wake_all();
    }

    /// The object under a key as it is now, or as it was last if it is gone. None: nothing is known of it, or nothing that the
    /// plugin may read.
    pub(super) fn look_up(&self, serving: &Serving, key: &Key) -> Option<(Arc<Object>, bool)> {
        if !serving.access.may_see(&serving.spec.for_.of, key) {
            self.gone.forget(key);
            return None;
        }
        if let Some(object) = serving.reconciles.get(&serving.spec.for_.of, key) {
            return Some((object, true));
        }
        self.gone.get(key).map(|last| (last, false))
    }

    /// A vanished object was reconciled: its last state is not needed any more, unless it came and went again meanwhile.
    pub(super) fn forget_gone(&self, last: &Arc<Object>) {
        self.gone.reconciled(last);
    }

    /// The keys of what vanished and is still to be reconciled.
    pub(super) fn gone_keys(&self) -> Vec<Key> {
        self.gone.keys()
    }

    /// Objects that vanished and are still to be reconciled.
    pub fn gone(&self) -> GoneFigures {
        self.gone.figures()
    }

    /// Why the last try of a key failed, if it did.
    pub(super) fn last_error(&self, key: &Key) -> Option<String> {
        self.failing.last_error(key)
    }

    /// A key was tried, and is to be tried again for this reason; none: it did not fail.
    pub(super) fn note_error(&self, key: &Key, error: Option<String>) {
        self.failing.note(key, error);
    }

    /// A key was tried, and is not tried again for this reason.
    pub(super) fn give_up(&self, key: &Key, error: &str) {
        self.failing.give_up(key, error);
    }

    /// The last keys that were given up, and not tried since.
    pub fn given_up(&self) -> Vec<GivenUp> {
        self.failing.given_up()
    }

    /// Leaves the status of an object that is being reconciled to its key's next call, if that comes as soon as it is the key's turn, and nothing holds it
    /// up: no breaker, no quarantine, no rate, and no end. False: it is to be written now.
    pub(super) fn defer(&self, object: &Object, status: &str) -> bool {
        let key = object.key();
        let queue = self.queue.lock();
        let comes = queue.is_ready(key) && queue.pace().rate.is_none();
        drop(queue);
        let held_up = self.record.held().is_some() || self.stopping.is_cancelled();
        comes && !held_up && self.deferred.put(key, object.uid(), status)
    }

    /// The status that was left to the key's call that begins now, which is about this object; none: about nothing.
    pub(super) fn take_deferred(&self, key: &Key, object: Option<&Object>) -> Option<Box<str>> {
        self.deferred.take(key, object.map(Object::uid))
    }

    /// Writes the statuses that were left to calls that will not come: the controller has ended. The plugin's [fence](crate::writer::Fence)
    /// bounds how long this takes.
    pub(super) async fn write_deferred(&self) {
        let serving = self.serving();
        let writing = self.deferred.take_all().into_iter().map(async |(key, uid, status)| {
            let object = serving.reconciles.get(&serving.spec.for_.of, &key).filter(|object| *object.uid() == uid);
            // It is gone, and so is its status.
            let Some(object) = object else { return };
            let owner = Owner { object: &object, owns: &serving.owns };
            if let Err(error) = serving.access.writer.status(&owner, &serving.view, &status).await
                && self.record.may_say()
            {
                warn!(plugin = %self.plugin, controller = %self.name, %key, error = %error, "a status is not written at the end");
            }
        });
        stream::iter(writing).buffer_unordered(STATUSES_AT_ONCE).collect::<()>().await;
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
        self.workers.ended().await;
        self.attendants.wait().await;
        self.waking.end();
        info!(plugin = %self.plugin, controller = %self.name, "controller stopped");
    }
}
