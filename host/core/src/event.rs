//! Decides which reports about objects become Events of the cluster, and which only count.
//!
//! - [`Event`] is an Event of a plugin, within the bounds of the contract.
//! - [`KeyEvents`] decides when the Events of an outcome are written, and which repeat an earlier one.
//! - [`Correlator`] counts, combines and drops Events. Its limits are client-go's. A repeated report within [ten
//!   minutes](SAME) only increases a count. More than [ten](SIMILAR) different messages for one reason are combined. An
//!   object gets [25 at once](RATE) from one source, then one each five minutes.
//!
//! The driver writes the Events.
//!
//! ```
//! use pilothouse_core::event::{Act, Correlator};
//! use std::time::Duration;
//!
//! let mut events = Correlator::new();
//! let now = Duration::from_secs(100);
//! let first = events.judge(now, &"a", &"Failed", "no", || "a.1".to_owned());
//! assert_eq!(first, Some(Act { name: "a.1".into(), count: 1, message: "no".into() }));
//! let again = events.judge(now, &"a", &"Failed", "no", || "a.2".to_owned());
//! assert_eq!(again, Some(Act { name: "a.1".into(), count: 2, message: "no".into() }));
//! ```

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use hashbrown::{DefaultHashBuilder, HashMap};

pub use self::{
    draft::{Event, Level, MAX_EVENTS, MAX_MESSAGE, MAX_REASON, cut},
    key::{KeyEvents, Release, StatusWrite},
};
use crate::rate::Rate;

mod draft;
mod key;

/// Time within which a repeated message only counts: client-go's `defaultAggregateIntervalInSeconds`.
pub const SAME: Duration = Duration::from_secs(600);

/// Different messages of one reason within [`SAME`]; more are combined: client-go's `defaultAggregateMaxEvents`.
pub const SIMILAR: usize = 10;

/// Rate of one object's Events: client-go's `defaultSpamBurst` and `defaultSpamQPS`.
pub const RATE: Rate = Rate { burst: 25, every: Duration::from_secs(300) };

/// Remembered objects, and messages; up to twice as many: client-go's `maxLruCacheEntries`.
const REMEMBERED: usize = 4096;

/// How to write a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// The Event's name.
    pub name: String,
    /// Number of reports. 1: create the Event. Otherwise it exists, unless writing it failed or it has expired.
    pub count: u32,
    /// The text of the Event.
    pub message: String,
}

/// The reports of type `R` about objects of type `O`.
///
/// `O` names the source of the report, too. So one source does not use up the rate of another. `R` is the reason of a
/// report, with its level.
#[derive(Debug)]
pub struct Correlator<O, R> {
    hasher: DefaultHashBuilder,
    rates: Recent<O, Duration>,
    similar: Recent<(O, R), Similar>,
    /// By the message's hash; `None` for combined messages.
    same: Recent<(O, R, Option<u64>), Same>,
}

#[derive(Clone, Debug, Default)]
struct Similar {
    last: Duration,
    messages: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Same {
    last: Duration,
    name: String,
    count: u32,
}

impl<O: Clone + Eq + Hash, R: Clone + Eq + Hash> Default for Correlator<O, R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<O: Clone + Eq + Hash, R: Clone + Eq + Hash> Correlator<O, R> {
    /// Creates a correlator without reports.
    pub fn new() -> Self {
        Self {
            hasher: DefaultHashBuilder::default(),
            rates: Recent::new(),
            similar: Recent::new(),
            same: Recent::new(),
        }
    }

    /// Decides about a report. Returns `None` if the object has had too many. `name` names a new Event.
    pub fn judge(
        &mut self,
        now: Duration,
        about: &O,
        reason: &R,
        message: &str,
        name: impl FnOnce() -> String,
    ) -> Option<Act> {
        let used = self.rates.entry(about.clone(), || Duration::ZERO);
        if !RATE.wait(*used, now).is_zero() {
            return None;
        }
        *used = RATE.take(*used, now);
        let hash = self.hasher.hash_one(message);
        let similar = self.similar.entry((about.clone(), reason.clone()), Similar::default);
        let (hash, message) = if similar.is_one_of_few(now, hash) {
            (Some(hash), message.to_owned())
        } else {
            (None, format!("(combined from similar events): {message}"))
        };
        let mut new = false;
        let same = self.same.entry((about.clone(), reason.clone(), hash), || {
            new = true;
            Same { last: now, name: String::new(), count: 0 }
        });
        if new || now.saturating_sub(same.last) > SAME {
            *same = Same { last: now, name: name(), count: 0 };
        }
        same.last = now;
        same.count = same.count.saturating_add(1);
        Some(Act { name: same.name.clone(), count: same.count, message })
    }
}

impl Similar {
    fn is_one_of_few(&mut self, now: Duration, message: u64) -> bool {
        if now.saturating_sub(self.last) > SAME {
            self.messages.clear();
        }
        self.last = now;
        if self.messages.contains(&message) {
            return true;
        }
        let few = self.messages.len() < SIMILAR;
        if few {
            self.messages.push(message);
        }
        few
    }
}

/// A bounded map of recent entries: two generations, of which the older is dropped when the younger is full.
#[derive(Debug)]
struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    fn new() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }

    fn entry(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        if self.young.len() >= REMEMBERED && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        let old = &mut self.old;
        match self.young.entry(key) {
            hashbrown::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hashbrown::hash_map::Entry::Vacant(entry) => {
                let value = old.remove(entry.key()).unwrap_or_else(new);
                entry.insert(value)
            }
        }
    }
}

#[cfg(test)]
mod tests;
