//! The keys that fail: why, and since when. Also the keys that the plugin gave up.
//!
//! The queue counts a key's consecutive failures and decides when it is retried.

use std::{
    collections::{BinaryHeap, HashMap, VecDeque},
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use pilothouse_core::{
    budget::{Budget, Share},
    event::cut,
    key::Key,
};
use tokio::time::Instant;

/// Bytes to which an error is cut when the budget is used up. A hundred thousand keys may fail at once.
const BRIEF: usize = 256;

/// Number of given-up keys that are remembered: the latest ones.
const GIVEN_UP: usize = 20;

/// Failing keys: at most one entry for each key that is being retried.
pub(super) struct Failing(Mutex<Failures>);

struct Failures {
    keys: HashMap<Key, Failure>,
    /// Bytes of their errors.
    bytes: Share,
    /// Oldest first.
    given_up: VecDeque<GivenUp>,
}

struct Failure {
    /// Time of the first failure after a success.
    since: Instant,
    /// The latest error.
    error: String,
}

/// A key that fails.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FailingKey {
    /// The key.
    #[serde(serialize_with = "crate::metrics::as_text")]
    pub key: Key,
    /// Time since its first failure after a success.
    #[serde(rename = "seconds", serialize_with = "crate::metrics::as_seconds")]
    pub lasts: Duration,
    /// Consecutive failures.
    pub failures: u32,
    /// The latest error.
    pub error: String,
}

/// A key that is not retried until something changes, because its plugin returned a terminal failure.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct GivenUp {
    /// The key.
    #[serde(serialize_with = "crate::metrics::as_text")]
    pub key: Key,
    /// When it was given up.
    #[serde(serialize_with = "crate::metrics::as_text")]
    pub at: Timestamp,
    /// The error.
    pub error: String,
}

impl Failing {
    /// Creates an empty record. Errors are kept whole as long as the budget allows.
    pub(super) fn within(errors: &Budget) -> Self {
        Self(Mutex::new(Failures { keys: HashMap::new(), bytes: errors.share(), given_up: VecDeque::new() }))
    }

    /// Records that a key is not retried after this error.
    pub(super) fn give_up(&self, key: &Key, error: &str) {
        self.record(key, None);
        let given_up = &mut self.0.lock().given_up;
        if given_up.len() == GIVEN_UP {
            given_up.pop_front();
        }
        given_up.push_back(GivenUp { key: key.clone(), at: Timestamp::now(), error: cut(error, BRIEF) });
    }

    /// Returns the latest keys that were given up and not tried since, oldest first.
    pub(super) fn given_up(&self) -> Vec<GivenUp> {
        self.0.lock().given_up.iter().cloned().collect()
    }

    /// Records how a try of a key ended: with an error that is retried, or with none.
    pub(super) fn record(&self, key: &Key, error: Option<String>) {
        let Failures { keys, bytes, given_up } = &mut *self.0.lock();
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

    /// Returns the error of the key's last try, if it failed.
    pub(super) fn last_error(&self, key: &Key) -> Option<String> {
        self.0.lock().keys.get(key).map(|failure| failure.error.clone())
    }

    /// Returns the number of failing keys, and the `most` of them that have failed for longest. Leaves their `failures`
    /// at zero.
    pub(super) fn longest(&self, most: usize) -> (usize, Vec<FailingKey>) {
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
    async fn keys_that_fail_for_longest_come_first_with_their_latest_error() {
        let failing = Failing::within(&Budget::new(4 << 20));
        let second = Duration::from_secs(1);
        for name in ["d", "b", "a", "c"] {
            failing.record(&key(name), Some(format!("{name} once")));
            tokio::time::advance(second).await;
        }
        failing.record(&key("b"), Some("b again".to_owned()));
        // `d` succeeded in between.
        failing.record(&key("d"), None);
        failing.record(&key("d"), Some("d anew".to_owned()));
        assert_eq!(failing.last_error(&key("b")).as_deref(), Some("b again"));
        let row = |name, lasts, error: &str| FailingKey { key: key(name), lasts, failures: 0, error: error.to_owned() };
        let longest = vec![row("b", 3 * second, "b again"), row("a", 2 * second, "a once")];
        assert_eq!(failing.longest(2), (4, longest));
        assert_eq!(failing.longest(0), (4, Vec::new()));
        assert_eq!(failing.longest(usize::MAX).1.len(), 4);
        for name in ["a", "b", "c", "d"] {
            failing.record(&key(name), None);
        }
        assert_eq!((failing.longest(2), failing.last_error(&key("b"))), ((0, Vec::new()), None));
    }

    #[test]
    fn latest_given_up_keys_are_known_until_they_are_tried_again() {
        let failing = Failing::within(&Budget::new(4 << 20));
        let (name, all) = (|number: usize| key(&number.to_string()), 0..GIVEN_UP + 2);
        failing.record(&name(3), Some("again".to_owned()));
        all.clone().for_each(|number| failing.give_up(&name(number), &number.to_string()));
        // A key that was given up twice is listed once. A key that was tried again is not listed.
        failing.give_up(&name(4), "4");
        failing.record(&name(5), None);
        let listed = || failing.given_up().into_iter().map(|of| (of.key, of.error)).collect::<Vec<_>>();
        let expected = all.skip(2).filter(|number| ![4, 5].contains(number)).chain([4]);
        assert_eq!(listed(), expected.map(|number| (name(number), number.to_string())).collect::<Vec<_>>());
        assert_eq!(failing.longest(1).0, 0);
    }

    #[test]
    fn errors_are_cut_when_the_budget_is_used_up() {
        let failing = Failing::within(&Budget::new(4 << 20));
        let (name, error) = (|number: usize| key(&number.to_string()), "x".repeat(4 << 10));
        let fail = |number| failing.record(&name(number), Some(error.clone()));
        let kept = |number| failing.last_error(&name(number)).map_or(0, |kept| kept.len());
        // Each key fails three times: a replaced error takes no room.
        (0..3 * 1024).for_each(|number| fail(number % 1024));
        fail(1024);
        assert_eq!((kept(0), kept(1023), kept(1024)), (error.len(), error.len(), BRIEF));
        failing.record(&name(0), None);
        fail(1024);
        assert_eq!(kept(1024), error.len());
    }
}
