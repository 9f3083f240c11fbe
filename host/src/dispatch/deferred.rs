//! Statuses that were left to the next call over their keys.
//!
//! That call says what the status is by then. Where it says nothing of it, or comes to nothing, the one that was left is written after it: it is
//! what the plugin said last.

use std::collections::HashMap;

use parking_lot::Mutex;
use pilothouse_core::key::Key;

/// Bytes of statuses that are held for a controller: some thousand of them.
const ROOM: usize = 4 << 20;

/// At most one for each key that waits in the queue.
#[derive(Default)]
pub(super) struct Deferred(Mutex<Held>);

#[derive(Default)]
struct Held {
    statuses: HashMap<Key, Box<str>>,
    bytes: usize,
}

impl Deferred {
    /// Holds the status of a key that has none here. False: there is no room, and it is to be written now.
    pub(super) fn put(&self, key: &Key, status: &str) -> bool {
        let Held { statuses, bytes } = &mut *self.0.lock();
        let fits = *bytes + status.len() <= ROOM;
        if fits {
            *bytes += status.len();
            statuses.insert(key.clone(), status.into());
        }
        fits
    }

    /// The status that was left to the call over this key that begins now.
    pub(super) fn take(&self, key: &Key) -> Option<Box<str>> {
        let Held { statuses, bytes } = &mut *self.0.lock();
        let status = statuses.remove(key)?;
        *bytes -= status.len();
        Some(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_bounded_and_given_back_once() {
        let deferred = Deferred::default();
        let [a, b] = ["a", "b"].map(|name| Key::new(None, name));
        let large = "x".repeat(ROOM - 1);
        assert!(deferred.put(&a, &large));
        assert!(!deferred.put(&b, "xx"));
        assert!(deferred.put(&b, "x"));
        assert_eq!(deferred.take(&a).as_deref(), Some(&*large));
        assert_eq!(deferred.take(&a), None);
        assert!(deferred.put(&a, "y"));
        assert_eq!([&a, &b].map(|key| deferred.take(key)), [Some("y".into()), Some("x".into())]);
    }
}
