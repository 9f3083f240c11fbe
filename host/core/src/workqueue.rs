//! The keys that wait to be reconciled by one controller.
//!
//! Owns order, de-duplication, delays and per-key failures. A key is in the queue at most once, and at most one worker
//! has it at a time. A key that is added while a worker has it is handed out once more after [`done`](Workqueue::done),
//! in the order in which it was added. The host owns the workers and wakes them.
//!
//! ```text
//!  add ──────────────► ready ──get──► processing ──done──► (gone)
//!  add_after ─► delayed ─┘ ▲              │
//!  add_rate_limited        └──────────────┘ added meanwhile
//! ```
//!
//! Ready keys leave by priority, the highest first, and within a priority first in, first out. Adding a waiting key
//! again keeps the higher priority and the earlier time. A key whose priority rises goes to the end of its new line. If
//! the queue has a [rate](Pace::rate), ready keys wait for that as well.
//!
//! The queue has no bound of its own. It holds each key once, so it is bounded by the keys that are added and not
//! [discarded](Workqueue::discard). Memory for a longer queue is returned when the queue runs empty.
//!
//! ```
//! use pilothouse_core::workqueue::{CHANGE, INITIAL, Workqueue};
//! use std::time::Duration;
//!
//! let now = Duration::ZERO;
//! let mut queue = Workqueue::default();
//! queue.add(now, "old", INITIAL);
//! queue.add(now, "changed", CHANGE);
//! queue.add(now, "old", INITIAL);
//! let item = queue.get(now).expect("two keys are ready");
//! assert_eq!(item.key, "changed");
//! queue.add(now, "changed", CHANGE); // while it is being reconciled
//! assert_eq!(queue.get(now).map(|item| item.key), Some("old"));
//! assert_eq!(queue.get(now), None);
//! queue.done(now, &"changed");
//! assert_eq!(queue.get(now).map(|item| item.key), Some("changed"));
//! ```

mod lines;

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hash},
    time::Duration,
};

use hashbrown::{DefaultHashBuilder, HashTable};
use lines::Lines;

pub use crate::backoff::Limits;
use crate::rate::Rate;

/// The priority of a change.
pub const CHANGE: i32 = 0;

/// The priority of objects from the first list and from resyncs: they wait for changes.
pub const INITIAL: i32 = -100;

/// The delays after a key's failures: those of controller-runtime and client-go.
pub const LIMITS: Limits = Limits { base: Duration::from_millis(5), cap: Duration::from_secs(1000) };

/// How fast keys are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The delays of a key that fails.
    pub backoff: Limits,
    /// How often any key is handed out; `None` for no limit.
    pub rate: Option<Rate>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { backoff: LIMITS, rate: None }
    }
}

/// Keys for which an emptied queue keeps room: those of a small cluster, some ten kilobytes.
const KEPT: usize = 1024;

/// Index in the slab.
type Index = u32;

/// A key that a worker is to reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<K> {
    /// The key; return it with [`Workqueue::done`].
    pub key: K,
    /// The priority that it waited with, also for a retry.
    pub priority: i32,
    /// How long it was ready before it was handed out, without any requested delay.
    pub waited: Duration,
}

/// How a key waits to be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// It does not wait.
    No,
    /// Until `due`; `order` orders keys that are due at the same time.
    Delayed { due: Duration, order: u64 },
    /// In the line of its priority. Skipped while a worker has the key.
    InLine,
    /// It reached the head of its line while a worker had the key, and was taken out until the worker is done.
    Blocked,
}

/// The state of one key that waits, is processed, or has failures to remember.
#[derive(Debug)]
struct KeyState<K> {
    key: K,
    hash: u64,
    wait: Wait,
    /// Of the waiting key; unused while `wait` is `No`.
    priority: i32,
    /// Since when it is ready, if it is.
    ready_since: Duration,
    processing: Option<Processing>,
    failures: u32,
}

#[derive(Clone, Copy, Debug)]
struct Processing {
    since: Duration,
    /// Its index in `Workqueue::processing`.
    place: usize,
}

/// The workqueue of one controller, over keys of type `K`.
#[derive(Debug)]
pub struct Workqueue<K> {
    pace: Pace,
    /// The used part of the rate, as in [`Rate::take`].
    used: Duration,
    hasher: DefaultHashBuilder,
    index: HashTable<Index>,
    slab: Vec<Option<KeyState<K>>>,
    free: Vec<Index>,
    lines: Lines,
    delayed: BTreeMap<(Duration, u64), Index>,
    processing: Vec<Index>,
    /// The last number given to a delayed key.
    order: u64,
    adds: u64,
    retries: u64,
    shut_down: bool,
}

impl<K> Default for Workqueue<K> {
    fn default() -> Self {
        Self {
            pace: Pace::default(),
            used: Duration::ZERO,
            hasher: DefaultHashBuilder::default(),
            index: HashTable::new(),
            slab: Vec::new(),
            free: Vec::new(),
            lines: Lines::default(),
            delayed: BTreeMap::new(),
            processing: Vec::new(),
            order: 0,
            adds: 0,
            retries: 0,
            shut_down: false,
        }
    }
}

impl<K: Clone + Eq + Hash> Workqueue<K> {
    /// Creates an empty queue.
    pub fn new(pace: Pace) -> Self {
        Self { pace, ..Self::default() }
    }

    /// Changes the pace. Delays of waiting keys stay.
    pub fn set_pace(&mut self, pace: Pace) {
        if self.pace.rate != pace.rate {
            self.used = Duration::ZERO;
        }
        self.pace = pace;
    }

    /// Returns the pace.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Makes `key` ready at once.
    pub fn add(&mut self, now: Duration, key: K, priority: i32) {
        self.promote(now);
        if self.shut_down {
            return;
        }
        let index = self.entry(key);
        self.enqueue(now, index, priority);
    }

    /// Makes `key` ready after `delay`, or earlier if it is already due earlier.
    pub fn add_after(&mut self, now: Duration, key: K, priority: i32, delay: Duration) {
        if delay.is_zero() {
            return self.add(now, key, priority);
        }
        self.promote(now);
        if self.shut_down {
            return;
        }
        let index = self.entry(key);
        self.defer(now.saturating_add(delay), index, priority);
    }

    /// Counts a failure of `key` and makes it ready after the backoff for its failures, and after at least `least`.
    /// Returns that delay.
    pub fn add_rate_limited(&mut self, now: Duration, key: K, priority: i32, least: Duration) -> Duration {
        self.promote(now);
        if self.shut_down {
            return self.pace.backoff.delay(self.failures(&key)).max(least);
        }
        let index = self.entry(key);
        let entry = self.at(index);
        let failures = entry.failures;
        entry.failures = failures.saturating_add(1);
        let delay = self.pace.backoff.delay(failures).max(least);
        self.retries += 1;
        if delay.is_zero() {
            self.enqueue(now, index, priority);
        } else {
            self.defer(now.saturating_add(delay), index, priority);
        }
        delay
    }

    /// Hands out the first ready key that no worker has. Returns `None` if there is none, if the rate allows none yet,
    /// or after [`shut_down`](Self::shut_down).
    pub fn get(&mut self, now: Duration) -> Option<Item<K>> {
        self.promote(now);
        if now < self.not_before() {
            return None;
        }
        loop {
            let (index, priority) = self.lines.first()?;
            let place = self.processing.len();
            let entry = self.at(index);
            if entry.processing.is_some() {
                entry.wait = Wait::Blocked;
                self.lines.remove(index, priority, false);
                continue;
            }
            entry.wait = Wait::No;
            entry.processing = Some(Processing { since: now, place });
            let item = Item { key: entry.key.clone(), priority, waited: now.saturating_sub(entry.ready_since) };
            self.lines.remove(index, priority, true);
            self.processing.push(index);
            self.used = self.pace.rate.map_or(Duration::ZERO, |rate| rate.take(self.used, now));
            return Some(item);
        }
    }

    /// Takes `key` back from its worker and returns how long it took. Does nothing if no worker had the key.
    pub fn done(&mut self, now: Duration, key: &K) -> Duration {
        self.promote(now);
        let Some(index) = self.find(key) else {
            return Duration::ZERO;
        };
        let entry = self.at(index);
        let Some(Processing { since, place }) = entry.processing.take() else {
            return Duration::ZERO;
        };
        let (wait, priority) = (entry.wait, entry.priority);
        match wait {
            Wait::InLine => self.lines.make_takeable(priority),
            Wait::Blocked => {
                entry.wait = Wait::InLine;
                self.lines.put_back(index, priority);
            }
            Wait::Delayed { .. } => {}
            Wait::No => self.remove_if_unused(index),
        }
        self.processing.swap_remove(place);
        if let Some(&moved) = self.processing.get(place)
            && let Some(processing) = &mut self.at(moved).processing
        {
            processing.place = place;
        }
        now.saturating_sub(since)
    }

    /// Forgets the failures of `key`. Call it after a success, and when the key is given up.
    pub fn forget(&mut self, key: &K) {
        if let Some(index) = self.find(key) {
            self.at(index).failures = 0;
            self.remove_if_unused(index);
        }
    }

    /// Removes `key` and its failures, because there is nothing to reconcile. A worker that has it continues. Later
    /// adds count as usual.
    pub fn discard(&mut self, key: &K) {
        let Some(index) = self.find(key) else { return };
        let entry = self.at(index);
        entry.failures = 0;
        let wait = std::mem::replace(&mut entry.wait, Wait::No);
        let (priority, takeable) = (entry.priority, entry.processing.is_none());
        match wait {
            Wait::No | Wait::Blocked => {}
            Wait::Delayed { due, order } => {
                self.delayed.remove(&(due, order));
            }
            Wait::InLine => self.lines.remove(index, priority, takeable),
        }
        self.remove_if_unused(index);
    }

    /// Returns the failures of `key` since it was last forgotten.
    pub fn failures(&self, key: &K) -> u32 {
        self.find(key).and_then(|index| self.slab[index as usize].as_ref()).map_or(0, |entry| entry.failures)
    }

    /// Returns `true` if `key` waits and is due: it leaves in its turn, once its worker is done.
    pub fn is_ready(&self, key: &K) -> bool {
        let entry = self.find(key).and_then(|index| self.slab[index as usize].as_ref());
        entry.is_some_and(|entry| matches!(entry.wait, Wait::InLine | Wait::Blocked))
    }

    /// Returns when [`get`](Self::get) next has a key if nothing else happens; `None` for never. In the past if it has
    /// one now.
    pub fn next_due(&self) -> Option<Duration> {
        let ready =
            if self.is_empty() { self.delayed.first_key_value().map(|(&(due, _), _)| due)? } else { Duration::ZERO };
        Some(ready.max(self.not_before()))
    }

    /// Returns when the rate allows one more key.
    fn not_before(&self) -> Duration {
        self.pace.rate.map_or(Duration::ZERO, |rate| rate.wait(self.used, Duration::ZERO))
    }

    /// Returns the number of keys that [`get`](Self::get) could hand out, apart from its rate. A delayed key counts
    /// from the first call after its time.
    pub fn len(&self) -> usize {
        self.lines.takeable()
    }

    /// Returns `true` if no key is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns [`len`](Self::len) by priority, the highest first, without empty ones.
    pub fn depths(&self) -> impl Iterator<Item = (i32, usize)> {
        self.lines.depths()
    }

    /// Returns the number of keys that wait for their time.
    pub fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// Returns the number of keys that workers have.
    pub fn processing(&self) -> usize {
        self.processing.len()
    }

    /// Returns how long the slowest worker has had its key; zero if no worker has one.
    pub fn longest_running(&self, now: Duration) -> Duration {
        self.running(now).max().unwrap_or_default()
    }

    /// Returns the time spent so far on all keys that workers have.
    pub fn unfinished(&self, now: Duration) -> Duration {
        self.running(now).fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Counts how often a key began to wait, ready or delayed. Adding a waiting key does not count.
    pub fn adds(&self) -> u64 {
        self.adds
    }

    /// Counts the failures from [`add_rate_limited`](Self::add_rate_limited).
    pub fn retries(&self) -> u64 {
        self.retries
    }

    /// Returns `true` if no worker has a key and none is ready. After [`shut_down`](Self::shut_down), the queue has
    /// then drained.
    pub fn is_idle(&self) -> bool {
        self.processing.is_empty() && self.is_empty()
    }

    /// Stops handing out and accepting keys, and drops those that wait. Workers finish theirs; see
    /// [`is_idle`](Self::is_idle).
    pub fn shut_down(&mut self) {
        self.shut_down = true;
        self.lines = Lines::default();
        self.delayed.clear();
        for slot in &mut self.slab {
            let Some(entry) = slot else { continue };
            entry.wait = Wait::No;
            entry.failures = 0;
            if entry.processing.is_none() {
                *slot = None;
            }
        }
        let slab = &self.slab;
        self.index.retain(|&mut index| slab[index as usize].is_some());
    }

    /// Returns `true` after [`shut_down`](Self::shut_down).
    pub fn is_shut_down(&self) -> bool {
        self.shut_down
    }

    fn running(&self, now: Duration) -> impl Iterator<Item = Duration> {
        let entries = self.processing.iter().filter_map(|&index| self.slab[index as usize].as_ref());
        entries.filter_map(move |entry| entry.processing.map(|processing| now.saturating_sub(processing.since)))
    }

    /// Moves due keys to the ends of their lines, in the order in which they became due.
    fn promote(&mut self, now: Duration) {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            let ((due, _), index) = first.remove_entry();
            self.enter_line(due, index);
        }
    }

    /// Makes the key ready, with at least `priority`.
    fn enqueue(&mut self, now: Duration, index: Index, priority: i32) {
        let entry = self.at(index);
        let (wait, before) = (entry.wait, entry.priority);
        match wait {
            Wait::No => {
                entry.priority = priority;
                self.adds += 1;
                self.enter_line(now, index);
            }
            Wait::Delayed { due, order } => {
                entry.priority = before.max(priority);
                self.delayed.remove(&(due, order));
                self.enter_line(now, index);
            }
            Wait::InLine | Wait::Blocked => self.raise(index, priority),
        }
    }

    /// Makes the key ready at `due` or earlier, with at least `priority`.
    fn defer(&mut self, due: Duration, index: Index, priority: i32) {
        self.order += 1;
        let order = self.order;
        let entry = self.at(index);
        match entry.wait {
            Wait::No => {
                entry.priority = priority;
                entry.wait = Wait::Delayed { due, order };
                self.adds += 1;
                self.delayed.insert((due, order), index);
            }
            Wait::Delayed { due: before, order: place } => {
                entry.priority = entry.priority.max(priority);
                if due < before {
                    entry.wait = Wait::Delayed { due, order };
                    self.delayed.remove(&(before, place));
                    self.delayed.insert((due, order), index);
                }
            }
            Wait::InLine | Wait::Blocked => self.raise(index, priority),
        }
    }

    /// Moves a ready key to the end of the line of `priority`, if that is higher than its own.
    fn raise(&mut self, index: Index, priority: i32) {
        let entry = self.at(index);
        if entry.priority >= priority {
            return;
        }
        let before = std::mem::replace(&mut entry.priority, priority);
        let in_line = std::mem::replace(&mut entry.wait, Wait::InLine) == Wait::InLine;
        let takeable = entry.processing.is_none();
        if in_line {
            self.lines.remove(index, before, takeable);
        }
        self.lines.push_back(index, priority, takeable);
    }

    /// Puts a key that is in no line at the end of the line of its priority.
    fn enter_line(&mut self, ready_since: Duration, index: Index) {
        let entry = self.at(index);
        entry.wait = Wait::InLine;
        entry.ready_since = ready_since;
        let (priority, takeable) = (entry.priority, entry.processing.is_none());
        self.lines.push_back(index, priority, takeable);
    }

    fn find(&self, key: &K) -> Option<Index> {
        let hash = self.hasher.hash_one(key);
        self.index
            .find(hash, |&index| self.slab[index as usize].as_ref().is_some_and(|entry| entry.key == *key))
            .copied()
    }

    /// Finds or creates the state of `key`.
    fn entry(&mut self, key: K) -> Index {
        let hash = self.hasher.hash_one(&key);
        let slab = &mut self.slab;
        let is_it = |&index: &Index| slab[index as usize].as_ref().is_some_and(|entry| entry.key == key);
        if let Some(&index) = self.index.find(hash, is_it) {
            return index;
        }
        let entry = KeyState {
            key,
            hash,
            wait: Wait::No,
            priority: 0,
            ready_since: Duration::ZERO,
            processing: None,
            failures: 0,
        };
        let index = if let Some(index) = self.free.pop() {
            slab[index as usize] = Some(entry);
            index
        } else {
            slab.push(Some(entry));
            Index::try_from(slab.len() - 1).expect("four billion keys do not fit in memory")
        };
        let hash_of = |&index: &Index| slab[index as usize].as_ref().map_or(0, |entry| entry.hash);
        self.index.insert_unique(hash, index, hash_of);
        index
    }

    fn at(&mut self, index: Index) -> &mut KeyState<K> {
        self.slab[index as usize]
            .as_mut()
            .expect("indices lead to entries until `remove_if_unused` takes them from the index")
    }

    fn remove_if_unused(&mut self, index: Index) {
        let entry = self.at(index);
        if entry.wait != Wait::No || entry.processing.is_some() || entry.failures > 0 {
            return;
        }
        let hash = entry.hash;
        if let Ok(found) = self.index.find_entry(hash, |&other| other == index) {
            found.remove();
        }
        self.slab[index as usize] = None;
        self.free.push(index);
        if self.index.is_empty() && self.slab.capacity() > KEPT {
            self.index = HashTable::new();
            self.slab = Vec::new();
            self.free = Vec::new();
            self.lines = Lines::default();
        }
    }
}

#[cfg(test)]
mod tests;
