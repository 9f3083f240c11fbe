//! What a reconcile leaves to the key's next one: a status whose write was postponed, and Events.
//!
//! The next reconcile usually returns a newer status, which replaces the postponed one. If it returns none, or fails,
//! the postponed status is written. [`KeyEvents`] says which Events are left. What is left belongs to one object (uid):
//! a new object of the same name never receives it.

use std::collections::HashMap;

use parking_lot::Mutex;
use pilothouse_core::{
    budget::{Budget, Share},
    event::KeyEvents,
    key::Key,
    object::Uid,
};

/// What the reconciles of one controller have left: at most one entry for each key that waits in the queue.
pub(super) struct Deferred(Mutex<Entries>);

struct Entries {
    by_key: HashMap<Key, (Uid, Left)>,
    bytes: Share,
}

/// What a reconcile leaves to the key's next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::dispatch) struct Left {
    /// The status whose write was postponed.
    pub(in crate::dispatch) status: Option<String>,
    /// The Events that wait for a status, or may be returned again.
    pub(in crate::dispatch) events: KeyEvents,
}

impl Left {
    fn bytes(&self) -> usize {
        self.status.as_ref().map_or(0, String::len) + self.events.bytes()
    }
}

impl Deferred {
    /// Creates an empty buffer that shares this budget.
    pub(super) fn within(statuses: &Budget) -> Self {
        Self(Mutex::new(Entries { by_key: HashMap::new(), bytes: statuses.share() }))
    }

    /// Leaves something of an object. There must be nothing for its key yet. Returns `false` if the buffer is full.
    pub(super) fn put(&self, key: &Key, uid: &Uid, left: Left) -> bool {
        let Entries { by_key, bytes } = &mut *self.0.lock();
        let fits = bytes.fits(left.bytes());
        if fits {
            bytes.add(left.bytes());
            by_key.insert(key.clone(), (uid.clone(), left));
        }
        fits
    }

    /// Removes and returns everything.
    pub(super) fn take_all(&self) -> Vec<(Key, Uid, Left)> {
        let Entries { by_key, bytes } = &mut *self.0.lock();
        bytes.set(0);
        std::mem::take(by_key).into_iter().map(|(key, (uid, left))| (key, uid, left)).collect()
    }

    /// Removes what is left of this key. Returns it if it belongs to the object with this uid.
    pub(super) fn take(&self, key: &Key, uid: Option<&Uid>) -> Option<Left> {
        let Entries { by_key, bytes } = &mut *self.0.lock();
        let (of, left) = by_key.remove(key)?;
        bytes.remove(left.bytes());
        (uid == Some(&of)).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1 << 20;

    fn status(text: &str) -> Left {
        Left { status: Some(text.to_owned()), events: KeyEvents::default() }
    }

    #[test]
    fn statuses_are_bounded_and_returned_once() {
        let deferred = Deferred::within(&Budget::new(ROOM));
        let ([a, b], uid) = (["a", "b"].map(|name| Key::new(None, name)), Uid::parse("1"));
        let large = "x".repeat(ROOM - 1);
        assert!(deferred.put(&a, &uid, status(&large)));
        assert!(!deferred.put(&b, &uid, status("xx")));
        assert!(deferred.put(&b, &uid, status("x")));
        assert_eq!(deferred.take(&a, Some(&uid)), Some(status(&large)));
        assert_eq!(deferred.take(&a, Some(&uid)), None);
        assert!(deferred.put(&a, &uid, status("y")));
        assert_eq!([&a, &b].map(|key| deferred.take(key, Some(&uid))), [Some(status("y")), Some(status("x"))]);
    }

    #[test]
    fn status_of_one_object_is_not_returned_for_another_of_the_same_name() {
        let deferred = Deferred::within(&Budget::new(ROOM));
        let (key, [old, new]) = (Key::new(None, "a"), ["1", "2"].map(Uid::parse));
        for other in [Some(&new), None] {
            assert!(deferred.put(&key, &old, status("x")));
            assert_eq!(deferred.take(&key, other), None);
            assert_eq!(deferred.take(&key, Some(&old)), None);
        }
        assert_eq!(deferred.0.lock().bytes.holds(), 0);
    }
}
