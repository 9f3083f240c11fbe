//! A handle to wake keys of one controller.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwap;
use pilothouse_core::{
    key::{Key, TypeMeta},
    workqueue::{CHANGE, INITIAL},
};

use super::{
    feed,
    ledger::Ledger,
    queue::Cause,
    record::Record,
    serving::{ControllerId, Serving},
    staff::Staff,
};
use crate::informer::Origin;

/// Adds keys to a controller's queue, and counts why.
#[derive(Clone, Copy)]
pub(super) struct Wakes<'a> {
    pub(super) id: &'a ControllerId,
    pub(super) record: &'a Record,
    pub(super) ledger: &'a Ledger,
    pub(super) serving: &'a ArcSwap<Serving>,
    pub(super) staff: &'a Staff,
    pub(super) woken: &'a Woken,
}

/// Keys that were woken since the start, by reason.
#[derive(Default)]
pub(super) struct Woken {
    itself: AtomicU64,
    child: AtomicU64,
    mapping: AtomicU64,
    read: AtomicU64,
}

impl Wakes<'_> {
    /// What serves the keys now.
    pub(super) fn serving(&self) -> Arc<Serving> {
        self.serving.load_full()
    }

    /// Whether a change that wakes keys now came before or after the first list was reconciled.
    pub(super) fn origin(&self) -> Origin {
        if self.staff.is_ready() { Origin::Change } else { Origin::Initial }
    }

    /// Keeps the keys under which an object is known. Names of nothing would only fill the queue.
    ///
    /// Nothing is lost: an object that comes later under such a key is a change itself.
    pub(super) fn known(&self, mut keys: Vec<Key>) -> Vec<Key> {
        self.ledger.retain_known(&self.serving(), &mut keys);
        keys
    }

    /// Wakes keys whose object has changed.
    pub(super) fn wake_changed(&self, keys: Vec<Key>, origin: Origin) {
        self.wake(keys, origin, &self.woken.itself, || Cause::Itself);
    }

    /// Wakes the owners of a child that has changed.
    pub(super) fn wake_owners(&self, keys: Vec<Key>, origin: Origin, of: &TypeMeta, child: &Key) {
        self.wake(keys, origin, &self.woken.child, || Cause::Child(of.clone(), child.clone()));
    }

    /// Wakes the keys to which a mapping leads. `objects` names what has changed.
    pub(super) fn wake_mapped(&self, keys: Vec<Key>, origin: Origin, objects: impl Fn() -> String) {
        self.wake(keys, origin, &self.woken.mapping, || Cause::Mapping(objects()));
    }

    /// Wakes the keys that have read an object which has changed (invariant 11).
    pub(super) fn wake_readers(&self, keys: Vec<Key>, origin: Origin, of: &TypeMeta, object: &Key) {
        self.wake(keys, origin, &self.woken.read, || Cause::Read(Some((of.clone(), object.clone()))));
    }

    /// Wakes a key whose reconcile read something that had changed before it was read.
    pub(super) fn wake_outdated(&self, key: &Key) {
        feed::outdated(self.id, key);
        self.wake(vec![key.clone()], Origin::Change, &self.woken.read, || Cause::Read(None));
    }

    /// Wakes keys that asked for a watch which is ready now, or refused.
    pub(super) fn wake_asking(&self, keys: Vec<Key>) {
        self.wake(keys, Origin::Change, &self.woken.read, || Cause::Watched);
    }

    /// Wakes a key though nothing asked for it. Changes overtake it.
    pub(super) fn resync(&self, key: Key) {
        self.ledger.queue().add(key, INITIAL, || Cause::Resync);
    }

    fn wake(&self, keys: Vec<Key>, origin: Origin, count: &AtomicU64, cause: impl Fn() -> Cause) {
        count.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let priority = if origin == Origin::Initial { INITIAL } else { CHANGE };
        for key in keys {
            self.ledger.queue().add(key, priority, &cause);
        }
    }
}

impl Woken {
    /// Returns the counts: `self`, `child`, `mapping` and `read`.
    pub(super) fn counts(&self) -> [(&'static str, u64); 4] {
        let Self { itself, child, mapping, read } = self;
        [("self", itself), ("child", child), ("mapping", mapping), ("read", read)]
            .map(|(by, count)| (by, count.load(Ordering::Relaxed)))
    }
}
