//! The keys of a controller that fail: why, and for how long already; and those that its plugin gave up.
//!
//! How often in a row a key has failed is for its queue to know, and when it is tried again.

use std::{
    collections::{BinaryHeap, HashMap, VecDeque},
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use pilothouse_core::{
    budget::{Budget, Share},
    key::Key,
};
use tokio::time::Instant;

use crate::writer::cut;

/// Bytes of a reason where there is no room for the whole: a hundred thousand keys may fail at once.
const BRIEF: usize = 256;

/// Keys that were given up and are remembered: the last ones.
const GIVEN_UP: usize = 20;

/// At most one entry for each key that is being retried.
pub(in crate::dispatch) struct Failing(Mutex<All>);

struct All {
    keys: HashMap<Key, Failure>,
    /// Bytes of their reasons.
    bytes: Share,
    /// In the order in which they were.
    given_up: VecDeque<GivenUp>,
}

struct Failure {
    /// The first one after a success.
    since: Instant,
    /// The last one's reason.
    error: String,
}

/// A key that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingKey {
    /// Which.
    pub key: Key,
    /// Since its first failure after a success.
    pub lasts: Duration,
    /// How often in a row.
    pub failures: u32,
    /// Why, the last time.
    pub error: String,
}

/// A key that is not tried again until something changes, as its plugin said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Which.
    pub key: Key,
    /// When.
    pub at: Timestamp,
    /// Why.
    pub error: String,
}

impl Failing {
    /// No key fails. Reasons are kept whole as long as this budget allows.
    pub(in crate::dispatch) fn within(reasons: &Budget) -> Self {
        Self(Mutex::new(All { keys: HashMap::new(), bytes: reasons.share(), given_up: VecDeque::new() }))
    }

    /// A key was tried, and is not tried again for this reason.
    pub(in crate::dispatch) fn give_up(&self, key: &Key, error: &str) {
        self.note(key, None);
        let given_up = &mut self.0.lock().given_up;
        if given_up.len() == GIVEN_UP {
            given_up.pop_front();
        }
        given_up.push_back(GivenUp { key: key.clone(), at: Timestamp::now(), error: cut(error, BRIEF) });
    }

    /// The last of those that were given up, and not tried since.
    pub(in crate::dispatch) fn given_up(&self) -> Vec<GivenUp> {
        self.0.lock().given_up.iter().cloned().collect()
    }

    /// A key was tried, and is to be tried again for this reason; none: it is not.
    pub(in crate::dispatch) fn note(&self, key: &Key, error: Option<String>) {
        let All { keys, bytes, given_up } = &mut *self.0.lock();
        given_up.retain(|given_up| given_up.key != *key);
        let before = keys.remove(key);
        bytes.remove(before.as_ref().map_or(0, |failure| failure.error.len()));
        let Some(mut error) = error else { return };
        if !bytes.fits(error.len()) {
            error = cut(&error, BRIEF);
        }
        bytes.add(error.len());
        let since = before.map_or_else(Instant::now, |failure| failure.since);
        keys.insert(key.clone(), Failure { since, error });
    }

    /// Why the last try of a key failed, if it did.
    pub(in crate::dispatch) fn last_error(&self, key: &Key) -> Option<String> {
        self.0.lock().keys.get(key).map(|failure| failure.error.clone())
    }

    /// How many keys fail, and those that do for longest, at most so many. How often they have is left out.
    pub(in crate::dispatch) fn longest(&self, most: usize) -> (usize, Vec<FailingKey>) {
        let now = Instant::now();
        let all = &self.0.lock().keys;
        let mut longest = BinaryHeap::new();
        for (key, failure) in all {
            longest.push((failure.since, key, &failure.error));
            if longest.len() > most {
                longest.pop();
            }
        }
        let failing = |(since, key, error): (Instant, &Key, &String)| FailingKey {
            key: key.clone(),
            lasts: now.saturating_duration_since(since),
            failures: 0,
            error: error.clone(),
        };
        (all.len(), longest.into_sorted_vec().into_iter().map(failing).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(Some("default"), name)
    }

    #[tokio::test(start_paused = true)]
    async fn longest_failing_come_first_with_their_last_reason() {
        let failing = Failing::within(&Budget::new(4 << 20));
        let second = Duration::from_secs(1);
        for name in ["d", "b", "a", "c"] {
            failing.note(&key(name), Some(format!("{name} once")));
            tokio::time::advance(second).await;
        }
        failing.note(&key("b"), Some("b again".to_owned()));
        // It succeeded meanwhile, and so begins anew.
        failing.note(&key("d"), None);
        failing.note(&key("d"), Some("d anew".to_owned()));
        assert_eq!(failing.last_error(&key("b")).as_deref(), Some("b again"));
        let told =
            |name, lasts, error: &str| FailingKey { key: key(name), lasts, failures: 0, error: error.to_owned() };
        let longest = vec![told("b", 3 * second, "b again"), told("a", 2 * second, "a once")];
        assert_eq!(failing.longest(2), (4, longest));
        assert_eq!(failing.longest(0), (4, Vec::new()));
        assert_eq!(failing.longest(usize::MAX).1.len(), 4);
        for name in ["a", "b", "c", "d"] {
            failing.note(&key(name), None);
        }
        assert_eq!((failing.longest(2), failing.last_error(&key("b"))), ((0, Vec::new()), None));
    }

    #[test]
    fn last_that_were_given_up_are_known_until_they_are_tried_again() {
        let failing = Failing::within(&Budget::new(4 << 20));
        let (name, all) = (|number: usize| key(&number.to_string()), 0..GIVEN_UP + 2);
        failing.note(&name(3), Some("again".to_owned()));
        all.clone().for_each(|number| failing.give_up(&name(number), &number.to_string()));
        // Neither twice nor as one that is tried again.
        failing.give_up(&name(4), "4");
        failing.note(&name(5), None);
        let told = || failing.given_up().into_iter().map(|of| (of.key, of.error)).collect::<Vec<_>>();
        let left = all.skip(2).filter(|number| ![4, 5].contains(number)).chain([4]);
        assert_eq!(told(), left.map(|number| (name(number), number.to_string())).collect::<Vec<_>>());
        assert_eq!(failing.longest(1).0, 0);
    }

    #[test]
    fn reasons_are_kept_whole_as_long_as_there_is_room() {
        let failing = Failing::within(&Budget::new(4 << 20));
        let (name, reason) = (|number: usize| key(&number.to_string()), "x".repeat(4 << 10));
        let note = |number| failing.note(&name(number), Some(reason.clone()));
        let kept = |number| failing.last_error(&name(number)).map_or(0, |reason| reason.len());
        // Each three times: what is replaced takes no room.
        (0..3 * 1024).for_each(|number| note(number % 1024));
        note(1024);
        assert_eq!((kept(0), kept(1023), kept(1024)), (reason.len(), reason.len(), BRIEF));
        failing.note(&name(0), None);
        note(1024);
        assert_eq!(kept(1024), reason.len());
    }
}
