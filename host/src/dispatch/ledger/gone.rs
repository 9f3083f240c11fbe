//! Objects that vanished and whose keys are still to be reconciled, as they were last (invariant 5).
//!
//! When a key is reconciled is for its queue to know; whoever looks a key up asks here after the cache. What is kept is bounded: a plugin that
//! takes nothing, over a kind whose names are not used again, would make it grow for ever. What vanished first is let go of first, and with it
//! goes whatever else is known of its key, which is for the [controller](crate::dispatch::controller::Controller) to see to.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use pilothouse_core::{backlog::Vanished, budget::Share, key::Key, object::Object, store::Change};

use crate::dispatch::lines::Unsaid;

/// So much room is kept when nothing is.
const ROOM: usize = 1024;

/// What vanished. Locked after informers, and before whatever else knows of keys.
pub(in crate::dispatch) struct Gone(Mutex<Inner>);

struct Inner {
    kept: HashMap<Key, Kept>,
    /// By when they vanished.
    order: BTreeMap<u64, Key>,
    vanished: u64,
    /// Of what is kept for all controllers of the plugin.
    objects: Share,
    /// The same, as [`Object::bytes`] has them.
    bytes: Share,
    let_go: Unsaid,
}

struct Kept {
    last: Arc<Object>,
    /// Its place in `order`.
    number: u64,
}

/// What vanished and is still to be reconciled, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoneFigures {
    /// Objects.
    pub objects: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Those that were let go of since the start, and never reconciled as gone, because there were too many.
    pub dropped: u64,
}

impl Gone {
    /// Nothing vanished yet. No more is kept than `most` allows.
    pub(in crate::dispatch) fn within(most: &Vanished) -> Self {
        Self(Mutex::new(Inner {
            kept: HashMap::new(),
            order: BTreeMap::new(),
            vanished: 0,
            objects: most.objects.share(),
            bytes: most.bytes.share(),
            let_go: Unsaid::default(),
        }))
    }

    /// An object changed, `now` since some origin: keeps what vanished. Where its end does not matter to the plugin, nobody will ask for it.
    ///
    /// `discard` gets the keys of which nothing is known from now on. None of them changes meanwhile: what comes again later is noted here
    /// first, and enters the queue then. So it must not ask for anything here. The result is how many were let go of because there were too
    /// many, when that is to be said.
    pub(in crate::dispatch) fn note(
        &self,
        change: &Change,
        matters: bool,
        now: Duration,
        mut discard: impl FnMut(&Key),
    ) -> Option<u64> {
        let inner = &mut *self.0.lock();
        inner.remove(change.key());
        let (Some(last), None) = (&change.old, &change.new) else { return None };
        if !matters {
            discard(last.key());
            return None;
        }
        inner.insert(last.clone());
        while inner.is_too_much()
            && let Some((_, key)) = inner.order.pop_first()
        {
            inner.remove(&key);
            discard(&key);
            inner.let_go.add(1);
        }
        inner.let_go.say(now)
    }

    /// The end of this object turned out not to matter to the plugin. Nothing happens if the object came again since, or vanished once more;
    /// else `discard` gets its key, as in [`note`](Self::note).
    pub(in crate::dispatch) fn dismiss(&self, last: &Arc<Object>, mut discard: impl FnMut(&Key)) {
        let mut inner = self.0.lock();
        if inner.kept.get(last.key()).is_some_and(|kept| Arc::ptr_eq(&kept.last, last)) {
            inner.remove(last.key());
            discard(last.key());
        }
    }

    /// What vanished under this key.
    pub(in crate::dispatch) fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.0.lock().kept.get(key).map(|kept| kept.last.clone())
    }

    /// All keys under which something vanished.
    pub(in crate::dispatch) fn keys(&self) -> Vec<Key> {
        self.0.lock().order.values().cloned().collect()
    }

    /// This state was reconciled and is not needed any more. Its key's is another if it came and went again meanwhile, and stays.
    pub(in crate::dispatch) fn reconciled(&self, last: &Arc<Object>) {
        let mut inner = self.0.lock();
        if inner.kept.get(last.key()).is_some_and(|kept| Arc::ptr_eq(&kept.last, last)) {
            inner.remove(last.key());
        }
    }

    /// Forgets what may not be seen any more.
    pub(in crate::dispatch) fn retain(&self, mut keep: impl FnMut(&Key) -> bool) {
        let mut inner = self.0.lock();
        let gone: Vec<Key> = inner.kept.keys().filter(|key| !keep(key)).cloned().collect();
        gone.iter().for_each(|key| inner.remove(key));
    }

    /// Nobody may see it any more.
    pub(in crate::dispatch) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }

    /// How much there is.
    pub(in crate::dispatch) fn figures(&self) -> GoneFigures {
        let inner = self.0.lock();
        GoneFigures { objects: inner.kept.len(), bytes: inner.bytes.holds(), dropped: inner.let_go.all() }
    }
}

impl Inner {
    fn is_too_much(&self) -> bool {
        self.objects.is_over() || self.bytes.is_over()
    }

    /// Keeps what vanished under a key of which nothing is kept.
    fn insert(&mut self, last: Arc<Object>) {
        self.vanished += 1;
        self.objects.add(1);
        self.bytes.add(last.bytes());
        self.order.insert(self.vanished, last.key().clone());
        self.kept.insert(last.key().clone(), Kept { last, number: self.vanished });
    }

    fn remove(&mut self, key: &Key) {
        let Some(Kept { last, number }) = self.kept.remove(key) else { return };
        self.order.remove(&number);
        self.objects.remove(1);
        self.bytes.remove(last.bytes());
        if self.kept.is_empty() && self.kept.capacity() > ROOM {
            self.kept = HashMap::new();
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

    fn vanished(last: &Arc<Object>) -> Change {
        Change { old: Some(last.clone()), new: None, missed: false }
    }

    fn is_kept(gone: &Gone, last: &Arc<Object>) -> bool {
        gone.get(last.key()).is_some_and(|kept| Arc::ptr_eq(&kept, last))
    }

    /// Notes a change of which nothing is to be said, and gives the keys that are discarded.
    fn note(gone: &Gone, change: &Change, matters: bool) -> Vec<Key> {
        let mut discarded = Vec::new();
        gone.note(change, matters, NOW, |key| discarded.push(key.clone()));
        discarded
    }

    #[test]
    fn invariant_5_what_vanished_again_while_it_was_reconciled_is_kept() {
        let (gone, first, second) = (Gone::within(&Vanished::default()), named("a"), named("a"));
        note(&gone, &vanished(&first), true);
        assert!(is_kept(&gone, &first));
        note(&gone, &vanished(&second), true);
        gone.reconciled(&first);
        assert!(is_kept(&gone, &second));
        gone.reconciled(&second);
        assert_eq!(gone.get(second.key()), None);
        assert_eq!(gone.figures(), GoneFigures::default());
    }

    #[test]
    fn what_is_there_again_and_what_does_not_matter_is_not_kept() {
        let (gone, last) = (Gone::within(&Vanished::default()), named("a"));
        note(&gone, &vanished(&last), true);
        let came = Change { old: None, new: Some(named("a")), missed: false };
        assert!(note(&gone, &came, true).is_empty());
        assert_eq!(gone.get(last.key()), None);
        // Nobody will ask for it, nor for whatever else is known of its key.
        assert_eq!(note(&gone, &vanished(&last), false), [last.key().clone()]);
        assert_eq!(gone.figures(), GoneFigures::default());
    }

    #[test]
    fn an_end_that_turns_out_not_to_matter_is_dismissed_unless_the_object_came_again() {
        let (gone, first, second) = (Gone::within(&Vanished::default()), named("a"), named("a"));
        let dismiss = |last| {
            let mut discarded = Vec::new();
            gone.dismiss(last, |key| discarded.push(key.clone()));
            discarded
        };
        note(&gone, &vanished(&first), true);
        assert_eq!(dismiss(&first), [first.key().clone()]);
        assert_eq!(gone.figures(), GoneFigures::default());
        note(&gone, &vanished(&first), true);
        note(&gone, &Change { old: None, new: Some(second.clone()), missed: false }, true);
        assert!(dismiss(&first).is_empty());
        note(&gone, &vanished(&second), true);
        assert!(dismiss(&first).is_empty() && is_kept(&gone, &second));
    }

    #[test]
    fn invariant_12_what_vanished_first_is_let_go_of_where_there_is_too_much() {
        let objects = ["a", "b", "c", "d", "e"].map(named);
        let bytes = objects[0].bytes();
        for most in [Vanished::new(2, usize::MAX), Vanished::new(usize::MAX, 3 * bytes - 1)] {
            let gone = Gone::within(&most);
            let note = |change| note(&gone, &change, true);
            let [a, b, c, d, e] = &objects;
            assert!(note(vanished(a)).is_empty() && note(vanished(b)).is_empty());
            assert_eq!(note(vanished(c)), [a.key().clone()]);
            // It came again and is not gone; so there is room.
            assert!(note(Change { old: None, new: Some(named("b")), missed: false }).is_empty());
            assert!(note(vanished(d)).is_empty());
            // Now it is the last that vanished.
            let b = named("b");
            assert_eq!(note(vanished(&b)), [c.key().clone()]);
            assert_eq!(note(vanished(e)), [d.key().clone()]);
            assert!(is_kept(&gone, &b) && is_kept(&gone, e));
            assert_eq!(gone.keys(), [b.key().clone(), e.key().clone()]);
            assert_eq!(gone.figures(), GoneFigures { objects: 2, bytes: 2 * bytes, dropped: 3 });
            [&b, e].into_iter().for_each(|last| gone.reconciled(last));
            assert_eq!(gone.figures(), GoneFigures { dropped: 3, ..GoneFigures::default() });
        }
    }

    #[test]
    fn invariant_12_controllers_of_a_plugin_keep_together_what_one_may() {
        let most = Vanished::new(4, usize::MAX);
        let all: Vec<Gone> = (0..16).map(|_| Gone::within(&most)).collect();
        for (number, gone) in all.iter().enumerate() {
            for vanish in 0..3 {
                note(gone, &vanished(&named(&format!("{number}-{vanish}"))), true);
            }
        }
        let figures: Vec<_> = all.iter().map(Gone::figures).collect();
        assert_eq!(figures.iter().map(|of| of.objects).sum::<usize>(), 4);
        assert_eq!(figures.iter().map(|of| of.dropped).sum::<u64>(), 16 * 3 - 4);
        drop(all);
        assert_eq!((most.objects.used(), most.bytes.used()), (0, 0));
    }

    #[test]
    fn that_there_is_too_much_is_said_when_it_begins_and_once_in_a_while() {
        let (gone, minute) = (Gone::within(&Vanished::new(1, usize::MAX)), Duration::from_secs(60));
        let at = |now: Duration| gone.note(&vanished(&named(&format!("{now:?}"))), true, now, |_| {});
        assert_eq!([at(NOW), at(2 * NOW), at(3 * NOW), at(4 * NOW)], [None, Some(1), None, None]);
        assert_eq!([at(2 * NOW + minute), at(3 * NOW + minute)], [Some(3), None]);
    }
}
