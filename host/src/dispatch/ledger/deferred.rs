//! Statuses that were left to the next call over their keys.
//!
//! That call says what the status is by then. Where it says nothing of it, or comes to nothing, the one that was left is written after it: it is
//! what the plugin said last. An object that was made anew under the same name gets nothing of that.

use std::collections::HashMap;

use parking_lot::Mutex;
use pilothouse_core::{
    budget::{Budget, Share},
    key::Key,
    object::Uid,
};

/// At most one for each key that waits in the queue.
pub(in crate::dispatch) struct Deferred(Mutex<Held>);

struct Held {
    statuses: HashMap<Key, (Uid, Box<str>)>,
    bytes: Share,
}

impl Deferred {
    /// Holds nothing yet, and no more than this budget allows.
    pub(in crate::dispatch) fn within(statuses: &Budget) -> Self {
        Self(Mutex::new(Held { statuses: HashMap::new(), bytes: statuses.share() }))
    }

    /// Holds the status of an object, of whose key there is none here. False: there is no room, and it is to be written now.
    pub(in crate::dispatch) fn put(&self, key: &Key, uid: &Uid, status: &str) -> bool {
        let Held { statuses, bytes } = &mut *self.0.lock();
        let fits = bytes.fits(status.len());
        if fits {
            bytes.add(status.len());
            statuses.insert(key.clone(), (uid.clone(), status.into()));
        }
        fits
    }

    /// All that is held, for a controller that has ended: no call comes any more.
    pub(in crate::dispatch) fn take_all(&self) -> Vec<(Key, Uid, Box<str>)> {
        let Held { statuses, bytes } = &mut *self.0.lock();
        bytes.set(0);
        std::mem::take(statuses).into_iter().map(|(key, (uid, status))| (key, uid, status)).collect()
    }

    /// The status that was left to the call over this key that begins now, if it is about the same object; none: nothing is there, and what
    /// was left is nobody's.
    pub(in crate::dispatch) fn take(&self, key: &Key, uid: Option<&Uid>) -> Option<Box<str>> {
        let Held { statuses, bytes } = &mut *self.0.lock();
        let (of, status) = statuses.remove(key)?;
        bytes.remove(status.len());
        (uid == Some(&of)).then_some(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1 << 20;

    #[test]
    fn what_is_held_is_bounded_and_given_back_once() {
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
    fn what_was_said_of_one_object_is_not_said_of_another() {
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
