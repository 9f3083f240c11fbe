//! Statuses whose write was postponed to the key's next reconcile.
//!
//! That reconcile usually returns a newer status, which replaces the postponed one. If it returns none, or fails, the
//! postponed status is written. A postponed status belongs to one object (uid): a new object of the same name never
//! receives it.

use std::collections::HashMap;

use parking_lot::Mutex;
use pilothouse_core::{
    budget::{Budget, Share},
    key::Key,
    object::Uid,
};

/// The postponed statuses of one controller: at most one for each key that waits in the queue.
pub(super) struct Deferred(Mutex<Statuses>);

struct Statuses {
    by_key: HashMap<Key, (Uid, Box<str>)>,
    bytes: Share,
}

impl Deferred {
    /// Creates an empty buffer that shares this budget.
    pub(super) fn within(statuses: &Budget) -> Self {
        Self(Mutex::new(Statuses { by_key: HashMap::new(), bytes: statuses.share() }))
    }

    /// Postpones the status of an object. There must be none for its key yet. Returns `false` if the buffer is full.
    pub(super) fn put(&self, key: &Key, uid: &Uid, status: &str) -> bool {
        let Statuses { by_key, bytes } = &mut *self.0.lock();
        let fits = bytes.fits(status.len());
        if fits {
            bytes.add(status.len());
            by_key.insert(key.clone(), (uid.clone(), status.into()));
        }
        fits
    }

    /// Removes and returns all statuses.
    pub(super) fn take_all(&self) -> Vec<(Key, Uid, Box<str>)> {
        let Statuses { by_key, bytes } = &mut *self.0.lock();
        bytes.set(0);
        std::mem::take(by_key).into_iter().map(|(key, (uid, status))| (key, uid, status)).collect()
    }

    /// Removes the postponed status of this key. Returns it if it belongs to the object with this uid.
    pub(super) fn take(&self, key: &Key, uid: Option<&Uid>) -> Option<Box<str>> {
        let Statuses { by_key, bytes } = &mut *self.0.lock();
        let (of, status) = by_key.remove(key)?;
        bytes.remove(status.len());
        (uid == Some(&of)).then_some(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1 << 20;

    #[test]
    fn statuses_are_bounded_and_returned_once() {
        let deferred = Deferred::within(&Budget::new(ROOM));
        let ([a, b], uid) = (["a", "b"].map(|name| Key::new(None, name)), Uid::parse("1"));
        let large = "x".repeat(ROOM - 1);
        assert!(deferred.put(&a, &uid, &large));
        assert!(!deferred.put(&b, &uid, "xx"));
        assert!(deferred.put(&b, &uid, "x"));
        assert_eq!(deferred.take(&a, Some(&uid)).as_deref(), Some(&*large));
        assert_eq!(deferred.take(&a, Some(&uid)), None);
        assert!(deferred.put(&a, &uid, "y"));
        assert_eq!([&a, &b].map(|key| deferred.take(key, Some(&uid))), [Some("y".into()), Some("x".into())]);
    }

    #[test]
    fn status_of_one_object_is_not_returned_for_another_of_the_same_name() {
        let deferred = Deferred::within(&Budget::new(ROOM));
        let (key, [old, new]) = (Key::new(None, "a"), ["1", "2"].map(Uid::parse));
        for other in [Some(&new), None] {
            assert!(deferred.put(&key, &old, "x"));
            assert_eq!(deferred.take(&key, other), None);
            assert_eq!(deferred.take(&key, Some(&old)), None);
        }
        assert_eq!(deferred.0.lock().bytes.holds(), 0);
    }
}
