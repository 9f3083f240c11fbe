//! Everything that a controller knows of its keys, whatever revision serves them.
//!
//! - [`Queue`]: which keys are to be reconciled, and when.
//! - [`gone`]: the last states of deleted objects that are still to be reconciled (invariant 5).
//! - [`failing`]: why keys fail, and which keys the plugin gave up.
//! - [`deferred`]: postponed statuses and Events, which a reconcile leaves to the key's next one.
//! - [`awaiting`]: keys that failed because a watch was down.
//! - [`asks`]: what keys ask to be watched, beside the manifest.
//! - reads: what the last successful reconcile of each key has read (invariant 11).
//!
//! A part has a lock of its own. Locks are taken in this order: an informer's, then that of [`gone`], then another
//! part's.

pub(super) mod asks;
pub(super) mod awaiting;
pub(super) mod deferred;
pub(super) mod failing;
pub(super) mod gone;

use std::sync::Arc;

use parking_lot::Mutex;
use pilothouse_core::{
    event::KeyEvents,
    key::{Key, TypeMeta},
    object::{Object, Uid},
    reads::Tracker,
    store::Change,
    workqueue::{CHANGE, Pace},
};

use self::{
    asks::Asks,
    awaiting::Awaiting,
    deferred::{Deferred, Left},
    failing::{Failing, FailingKey, GivenUp},
    gone::{Gone, GoneFigures},
};
use super::{
    queue::{Cause, Queue},
    reading::Reading,
    record::Record,
    remembered::Remembered,
    serving::Serving,
};
use crate::wasm::Phase;

/// What a controller knows of its keys.
pub struct Ledger {
    queue: Queue,
    gone: Gone,
    failing: Failing,
    deferred: Deferred,
    awaiting: Awaiting,
    asks: Asks,
    reads: Arc<Mutex<Tracker>>,
}

/// What the keys of a controller have read, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadFigures {
    /// Keys that read something.
    pub keys: usize,
    /// Objects and selections that were read.
    pub things: usize,
    /// Bytes that the reads take in memory.
    pub bytes: usize,
}

/// What becomes of a status that may be postponed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a status that is not postponed is written now"]
pub(super) enum Deferral {
    /// The key's next reconcile replaces or writes the status.
    Postponed,
    /// The caller writes the status.
    WriteNow,
}

impl Ledger {
    /// Creates an empty ledger, whose parts share the plugin's budgets.
    pub(super) fn new(pace: Pace, remembered: &Remembered) -> Self {
        Self {
            queue: Queue::new(pace),
            gone: Gone::within(&remembered.gone),
            failing: Failing::within(&remembered.errors),
            deferred: Deferred::within(&remembered.statuses),
            awaiting: Awaiting::default(),
            asks: Asks::within(&remembered.asked),
            reads: Arc::new(Mutex::new(Tracker::within(&remembered.reads))),
        }
    }

    /// The keys that are to be reconciled.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// What keys ask to be watched.
    pub(super) fn asks(&self) -> &Asks {
        &self.asks
    }

    /// Returns the object under a key, and its phase. A deleted object comes in its last state.
    ///
    /// `None`: no object is known under the key, or the plugin may not see it.
    pub(super) fn look_up(&self, serving: &Serving, key: &Key) -> Option<(Arc<Object>, Phase)> {
        if !serving.access.may_see(&serving.spec.for_.of, key) {
            self.gone.forget(key);
            return None;
        }
        let Some(object) = serving.reconciles.get(&serving.spec.for_.of, key) else {
            return Some((self.gone.get(key)?, Phase::Gone));
        };
        let phase = if object.is_deleting() { Phase::Deleting } else { Phase::Live };
        Some((object, phase))
    }

    /// Keeps those keys under which an object is known.
    pub(super) fn retain_known(&self, serving: &Serving, keys: &mut Vec<Key>) {
        keys.retain(|key| self.look_up(serving, key).is_some());
    }

    /// Records a change of a reconciled object: the last state of a deleted one is kept, if its end `matters` to the
    /// plugin.
    ///
    /// Returns how many deleted objects were dropped for want of room, when it is time to log that. Called under the
    /// informer's lock.
    pub(super) fn record_change(&self, change: &Change, matters: bool) -> Option<u64> {
        self.gone.record(change, matters, self.queue.now(), |key| self.discard(key))
    }

    /// Forgets a deleted object whose end turned out not to matter to the plugin.
    pub(super) fn dismiss(&self, last: &Arc<Object>) {
        self.gone.dismiss(last, |key| self.discard(key));
    }

    /// Forgets the last state of a deleted object that was reconciled, unless the object came and went again meanwhile.
    pub(super) fn forget_gone(&self, last: &Arc<Object>) {
        self.gone.forget_reconciled(last);
        self.asks.forget(last.key());
    }

    /// Forgets the end of an object whose cleanup is done.
    pub(super) fn finish(&self, key: &Key, uid: &Uid) {
        self.gone.forget_life(key, uid);
        self.asks.forget(key);
    }

    /// The keys of deleted objects that are still to be reconciled.
    pub(super) fn gone_keys(&self) -> Vec<Key> {
        self.gone.keys()
    }

    /// Forgets the deleted objects that the plugin may not see any more.
    pub(super) fn restrict(&self, serving: &Serving) {
        self.gone.retain(|key| serving.access.may_see(&serving.spec.for_.of, key));
    }

    /// Why the key's last try failed, if it did.
    pub(super) fn last_error(&self, key: &Key) -> Option<String> {
        self.failing.last_error(key)
    }

    /// Records how a try ended: with an error that is retried, or with none.
    pub(super) fn record_error(&self, key: &Key, error: Option<String>) {
        self.failing.record(key, error);
    }

    /// Records that a key is not retried after this error.
    pub(super) fn give_up(&self, key: &Key, error: &str) {
        self.failing.give_up(key, error);
    }

    /// Postpones the status of an object to the next reconcile of its key, if that one comes as soon as a worker is
    /// free. It does not if a breaker, a quarantine, a rate or a shutdown may delay the key. `events` wait with the
    /// status.
    pub(super) fn defer(&self, record: &Record, object: &Object, status: &str, events: &KeyEvents) -> Deferral {
        let key = object.key();
        let is_next = {
            let queue = self.queue.lock();
            queue.is_ready(key) && queue.pace().rate.is_none() && !queue.is_shut_down()
        };
        let left = || Left { status: Some(status.to_owned()), events: events.clone() };
        let is_postponed = is_next && record.held_until().is_none() && self.deferred.put(key, object.uid(), left());
        if is_postponed { Deferral::Postponed } else { Deferral::WriteNow }
    }

    /// Leaves Events to the key's next reconcile. Returns `false` if there is no room for them.
    pub(super) fn leave_events(&self, object: &Object, events: KeyEvents) -> bool {
        events.is_empty() || self.deferred.put(object.key(), object.uid(), Left { status: None, events })
    }

    /// Removes and returns what the last reconcile of this key has left. Empty if it left nothing, or if that belonged
    /// to another object of that name.
    pub(super) fn take_deferred(&self, key: &Key, object: Option<&Object>) -> Left {
        self.deferred.take(key, object.map(Object::uid)).unwrap_or_default()
    }

    /// Removes and returns what the last reconciles of all keys have left.
    pub(super) fn take_all_deferred(&self) -> Vec<(Key, Uid, Left)> {
        self.deferred.take_all()
    }

    /// Wakes the key when the watches of its caches are back. Called when its reconcile failed because one of them was
    /// down.
    pub(super) fn await_watch(&self, serving: &Serving, key: &Key) {
        self.awaiting.insert(key);
        // The watch may have come back since the reconcile looked.
        if serving.is_current(key) {
            self.awaiting.forget(key);
            self.queue.add(key.clone(), CHANGE, || Cause::Failure);
        }
    }

    /// Begins to track what a call about this key reads.
    pub(super) fn begin_reading(&self, serving: &Serving, key: &Key) -> Reading {
        Reading::begin(&self.reads, key, self.asks.cached(&serving.view))
    }

    /// The keys that have read what changed.
    pub(super) fn readers(&self, change: &Change) -> Vec<Key> {
        let mut keys = Vec::new();
        self.reads.lock().wakes(change.object().type_meta(), change, &mut keys);
        keys
    }

    /// Forgets reads of kinds that are not listened to any more.
    pub(super) fn retain_reads(&self, kinds: &[TypeMeta]) {
        self.reads.lock().retain(|of| kinds.contains(of));
    }

    /// Forgets why a key failed and what it has read, if no object is known under it. Returns `true` if so.
    ///
    /// An object that comes under this key from now on enters the queue as a change.
    pub(super) fn forget_unknown(&self, serving: &Serving, key: &Key) -> bool {
        let is_unknown = self.look_up(serving, key).is_none();
        if is_unknown {
            self.failing.record(key, None);
            self.asks.forget(key);
            self.reads.lock().forget(key);
        }
        is_unknown
    }

    /// Forgets everything of a key that has no object any more. A worker that has the key finds that at the end of its
    /// turn.
    fn discard(&self, key: &Key) {
        self.queue.discard(key);
        self.failing.record(key, None);
        self.deferred.take(key, None);
        self.awaiting.forget(key);
        self.asks.forget(key);
        self.reads.lock().forget(key);
    }

    /// Deleted objects that are still to be reconciled.
    pub fn gone(&self) -> GoneFigures {
        self.gone.figures()
    }

    /// The number of keys that are being retried, and the `most` of them that have failed for longest.
    pub fn failing(&self, most: usize) -> (usize, Vec<FailingKey>) {
        let (all, mut longest) = self.failing.longest(most);
        let queue = self.queue.lock();
        longest.iter_mut().for_each(|failing| failing.failures = queue.failures(&failing.key));
        (all, longest)
    }

    /// The last keys that were given up and not tried since.
    pub fn given_up(&self) -> Vec<GivenUp> {
        self.failing.given_up()
    }

    /// What the keys have read.
    pub fn reads(&self) -> ReadFigures {
        let reads = self.reads.lock();
        ReadFigures { keys: reads.keys(), things: reads.dependencies(), bytes: reads.bytes() }
    }
}
