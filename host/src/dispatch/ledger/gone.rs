//! The last states of deleted objects that are still to be reconciled (invariant 5).
//!
//! A reconcile looks here when the cache has no object for its key. The number and the bytes of the states are bounded,
//! because a plugin may never take a deletion. Beyond the bound the earliest deletion is dropped, and everything else
//! that is known of its key with it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use pilothouse_core::{
    backlog::Vanished,
    budget::Share,
    key::Key,
    object::{Object, Uid},
    store::Change,
};

use crate::dispatch::lines::Unlogged;

/// An empty map of more than this capacity is replaced by a new one.
const ROOM: usize = 1024;

/// Deleted objects. Its lock is taken after informers', and before those of the ledger's other parts.
pub(super) struct Gone(Mutex<States>);

struct States {
    by_key: HashMap<Key, State>,
    /// Their keys, by the number of the deletion.
    order: BTreeMap<u64, Key>,
    /// Deletions so far.
    deletions: u64,
    /// This controller's share of the plugin's bound on objects.
    objects: Share,
    /// The same for bytes, as [`Object::bytes`] has them.
    bytes: Share,
    dropped: Unlogged,
}

struct State {
    last: Arc<Object>,
    /// Its number in `order`.
    number: u64,
}

/// Deleted objects that are still to be reconciled, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct GoneFigures {
    /// Objects.
    pub objects: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Objects that were dropped over the bound since the start. Their deletion is never reconciled.
    pub dropped: u64,
}

impl Gone {
    /// Creates an empty store that shares these budgets.
    pub(super) fn within(most: &Vanished) -> Self {
        Self(Mutex::new(States {
            by_key: HashMap::new(),
            order: BTreeMap::new(),
            deletions: 0,
            objects: most.objects.share(),
            bytes: most.bytes.share(),
            dropped: Unlogged::default(),
        }))
    }

    /// Records a change at the time `now` after some origin. A deleted object is kept if its end `matters` to the
    /// plugin; an object that is there again is forgotten.
    ///
    /// `discard` is called with each key of which nothing is kept any more. It runs under this lock, so that a later
    /// change of the same object comes after it; it must not call anything here.
    ///
    /// Returns how many objects were dropped over the bound, when it is time to log that.
    pub(super) fn record(
        &self,
        change: &Change,
        matters: bool,
        now: Duration,
        mut discard: impl FnMut(&Key),
    ) -> Option<u64> {
        let states = &mut *self.0.lock();
        states.remove(change.key());
        let (Some(last), None) = (&change.old, &change.new) else { return None };
        if !matters {
            discard(last.key());
            return None;
        }
        states.insert(last.clone());
        while states.is_over_bound()
            && let Some((_, key)) = states.order.pop_first()
        {
            states.remove(&key);
            discard(&key);
            states.dropped.add(1);
        }
        states.dropped.take_if_due(now)
    }

    /// Forgets a deletion that turned out not to matter to the plugin, and calls `discard` as [`record`](Self::record)
    /// does.
    ///
    /// Does nothing if the object came again since, or was deleted once more.
    pub(super) fn dismiss(&self, last: &Arc<Object>, mut discard: impl FnMut(&Key)) {
        let mut states = self.0.lock();
        if states.remove_same(last) {
            discard(last.key());
        }
    }

    /// Returns the last state of the deleted object under this key.
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.0.lock().by_key.get(key).map(|state| state.last.clone())
    }

    /// Returns all keys, in the order of the deletions.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.0.lock().order.values().cloned().collect()
    }

    /// Forgets a state that was reconciled. Does nothing if the object came and went again meanwhile.
    pub(super) fn forget_reconciled(&self, last: &Arc<Object>) {
        self.0.lock().remove_same(last);
    }

    /// Forgets the object under this key, if it has this uid.
    pub(super) fn forget_life(&self, key: &Key, uid: &Uid) {
        let mut states = self.0.lock();
        if states.by_key.get(key).is_some_and(|state| state.last.uid() == uid) {
            states.remove(key);
        }
    }

    /// Keeps only the objects for whose keys `keep` returns `true`.
    pub(super) fn retain(&self, mut keep: impl FnMut(&Key) -> bool) {
        let mut states = self.0.lock();
        let hidden: Vec<Key> = states.by_key.keys().filter(|key| !keep(key)).cloned().collect();
        hidden.iter().for_each(|key| states.remove(key));
    }

    /// Forgets the object under this key.
    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }

    /// Returns the figures.
    pub(super) fn figures(&self) -> GoneFigures {
        let states = self.0.lock();
        GoneFigures { objects: states.by_key.len(), bytes: states.bytes.holds(), dropped: states.dropped.all() }
    }
}

impl States {
    fn is_over_bound(&self) -> bool {
        self.objects.is_over() || self.bytes.is_over()
    }

    /// Keeps an object. There must be none under its key.
    fn insert(&mut self, last: Arc<Object>) {
        self.deletions += 1;
        self.objects.add(1);
        self.bytes.add(last.bytes());
        self.order.insert(self.deletions, last.key().clone());
        self.by_key.insert(last.key().clone(), State { last, number: self.deletions });
    }

    /// Removes this very state. Returns `false` if it is not the one that is kept.
    fn remove_same(&mut self, last: &Arc<Object>) -> bool {
        let is_same = self.by_key.get(last.key()).is_some_and(|state| Arc::ptr_eq(&state.last, last));
        if is_same {
            self.remove(last.key());
        }
        is_same
    }

    fn remove(&mut self, key: &Key) {
        let Some(State { last, number }) = self.by_key.remove(key) else { return };
        self.order.remove(&number);
        self.objects.remove(1);
        self.bytes.remove(last.bytes());
        if self.by_key.is_empty() && self.by_key.capacity() > ROOM {
            self.by_key = HashMap::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_core::key::TypeMeta;

    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn named(name: &str) -> Arc<Object> {
        let json = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"u","resourceVersion":"1"}}}}"#);
        Arc::new(Object::parse(json.as_bytes(), &TypeMeta::new("v1", "ConfigMap")).expect("an object"))
    }

    fn deleted(last: &Arc<Object>) -> Change {
        Change { old: Some(last.clone()), new: None, missed: false }
    }

    fn keeps(gone: &Gone, last: &Arc<Object>) -> bool {
        gone.get(last.key()).is_some_and(|kept| Arc::ptr_eq(&kept, last))
    }

    /// Records a change and returns the discarded keys.
    fn record(gone: &Gone, change: &Change, matters: bool) -> Vec<Key> {
        let mut discarded = Vec::new();
        gone.record(change, matters, NOW, |key| discarded.push(key.clone()));
        discarded
    }

    #[test]
    fn invariant_5_object_deleted_again_during_its_reconcile_stays() {
        let (gone, first, second) = (Gone::within(&Vanished::default()), named("a"), named("a"));
        record(&gone, &deleted(&first), true);
        assert!(keeps(&gone, &first));
        record(&gone, &deleted(&second), true);
        gone.forget_reconciled(&first);
        assert!(keeps(&gone, &second));
        gone.forget_reconciled(&second);
        assert_eq!(gone.get(second.key()), None);
        assert_eq!(gone.figures(), GoneFigures::default());
    }

    #[test]
    fn recreated_object_and_deletion_that_does_not_matter_are_forgotten() {
        let (gone, last) = (Gone::within(&Vanished::default()), named("a"));
        record(&gone, &deleted(&last), true);
        let came = Change { old: None, new: Some(named("a")), missed: false };
        assert!(record(&gone, &came, true).is_empty());
        assert_eq!(gone.get(last.key()), None);
        // Everything that is known of the key is discarded.
        assert_eq!(record(&gone, &deleted(&last), false), [last.key().clone()]);
        assert_eq!(gone.figures(), GoneFigures::default());
    }

    #[test]
    fn deletion_that_turns_out_not_to_matter_is_forgotten_unless_the_object_came_again() {
        let (gone, first, second) = (Gone::within(&Vanished::default()), named("a"), named("a"));
        let dismiss = |last| {
            let mut discarded = Vec::new();
            gone.dismiss(last, |key| discarded.push(key.clone()));
            discarded
        };
        record(&gone, &deleted(&first), true);
        assert_eq!(dismiss(&first), [first.key().clone()]);
        assert_eq!(gone.figures(), GoneFigures::default());
        record(&gone, &deleted(&first), true);
        record(&gone, &Change { old: None, new: Some(second.clone()), missed: false }, true);
        assert!(dismiss(&first).is_empty());
        record(&gone, &deleted(&second), true);
        assert!(dismiss(&first).is_empty() && keeps(&gone, &second));
    }

    #[test]
    fn invariant_12_earliest_deletion_is_dropped_over_the_bound() {
        let objects = ["a", "b", "c", "d", "e"].map(named);
        let bytes = objects[0].bytes();
        for most in [Vanished::new(2, usize::MAX), Vanished::new(usize::MAX, 3 * bytes - 1)] {
            let gone = Gone::within(&most);
            let record = |change| record(&gone, &change, true);
            let [a, b, c, d, e] = &objects;
            assert!(record(deleted(a)).is_empty() && record(deleted(b)).is_empty());
            assert_eq!(record(deleted(c)), [a.key().clone()]);
            // `b` came again, which makes room.
            assert!(record(Change { old: None, new: Some(named("b")), missed: false }).is_empty());
            assert!(record(deleted(d)).is_empty());
            // `b` is the latest deletion now.
            let b = named("b");
            assert_eq!(record(deleted(&b)), [c.key().clone()]);
            assert_eq!(record(deleted(e)), [d.key().clone()]);
            assert!(keeps(&gone, &b) && keeps(&gone, e));
            assert_eq!(gone.keys(), [b.key().clone(), e.key().clone()]);
            assert_eq!(gone.figures(), GoneFigures { objects: 2, bytes: 2 * bytes, dropped: 3 });
            [&b, e].into_iter().for_each(|last| gone.forget_reconciled(last));
            assert_eq!(gone.figures(), GoneFigures { dropped: 3, ..GoneFigures::default() });
        }
    }

    #[test]
    fn invariant_12_deleted_objects_have_one_bound_over_all_controllers_of_a_plugin() {
        let most = Vanished::new(4, usize::MAX);
        let all: Vec<Gone> = (0..16).map(|_| Gone::within(&most)).collect();
        for (number, gone) in all.iter().enumerate() {
            for deletion in 0..3 {
                record(gone, &deleted(&named(&format!("{number}-{deletion}"))), true);
            }
        }
        let figures: Vec<_> = all.iter().map(Gone::figures).collect();
        assert_eq!(figures.iter().map(|of| of.objects).sum::<usize>(), 4);
        assert_eq!(figures.iter().map(|of| of.dropped).sum::<u64>(), 16 * 3 - 4);
        drop(all);
        assert_eq!((most.objects.used(), most.bytes.used()), (0, 0));
    }

    #[test]
    fn drops_are_reported_at_the_first_and_then_once_a_minute() {
        let (gone, minute) = (Gone::within(&Vanished::new(1, usize::MAX)), Duration::from_secs(60));
        let at = |now: Duration| gone.record(&deleted(&named(&format!("{now:?}"))), true, now, |_| {});
        assert_eq!([at(NOW), at(2 * NOW), at(3 * NOW), at(4 * NOW)], [None, Some(1), None, None]);
        assert_eq!([at(2 * NOW + minute), at(3 * NOW + minute)], [Some(3), None]);
    }
}
