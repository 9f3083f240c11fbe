//! Changes that wait to be delivered to a plugin, to its `map` and its `observe`.
//!
//! Owns their order, the merging of several changes of one object, and the retries of failed batches. The host calls
//! the plugin and bounds the cost of a call.
//!
//! ```text
//! change ─► push ─► waiting, by arrival ─► take ─► in flight ─┬─ done ───► over
//!                      ▲   │ of one object: merged            │
//!                      └───┴──────────────────────────────────┴─ failed ─► merged, alone, after a delay
//! ```
//!
//! Changes that failed and are due take turns with untried ones, in the order in which they became due. So neither
//! waits for ever.
//!
//! There is one entry for each object, and at most one call about an object at a time: changes that come during the
//! call wait. Several changes of an object are delivered as one, from the state before the first to the state after the
//! last. An object that was added and deleted meanwhile is delivered as deleted, in its last known state. So every
//! state that a plugin received is the `old` of the next delivery, and the objects to which it mapped that state are
//! mapped again.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use pilothouse_core::backlog::{Backlog, MAPPER};
//! use pilothouse_core::{key::TypeMeta, object::Object, store::Change};
//!
//! let of = TypeMeta::new("v1", "Pod");
//! let pod = |version| {
//!     let json = format!(r#"{{"metadata":{{"name":"a","uid":"1","resourceVersion":"{version}"}}}}"#);
//!     Object::parse(json.as_bytes(), &of).map(|object| Some(Arc::new(object)))
//! };
//! let now = Duration::ZERO;
//! let mut backlog = Backlog::new(MAPPER);
//! backlog.push(&of, &Change { old: None, new: pod(1)?, missed: false });
//! backlog.push(&of, &Change { old: pod(1)?, new: pod(2)?, missed: false });
//! let batch = backlog.take(now, 100, 1 << 20).expect("one object waits");
//! assert_eq!((batch.changes().len(), batch.changes()[0].merged), (1, 2));
//! assert_eq!((&batch.changes()[0].old, &batch.changes()[0].new), (&None, &pod(2)?));
//! backlog.done(batch);
//! assert!(backlog.is_empty());
//! # Ok::<(), pilothouse_core::ParseError>(())
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashMap;

use crate::{
    backoff::Limits,
    budget::{Budget, Share},
    key::{Key, TypeMeta},
    object::Object,
    store::Change,
};

/// Delays after failed calls: those of the workqueue, because keys wait behind them.
pub const MAPPER: Limits = Limits { base: Duration::from_millis(5), cap: Duration::from_secs(1000) };

/// Largest number of gone objects that wait for delivery: as many as a large cluster has Pods. Entries of existing
/// objects are bounded by the cache. Gone ones would accumulate if names are not reused and the plugin fails every
/// call.
pub const MAX_GONE: usize = 100_000;

/// Largest sum of bytes of gone objects: the cache no longer holds them.
pub const MAX_GONE_BYTES: usize = 128 << 20;

/// The bound for gone objects over all buffers of a plugin, which has a backlog for each of its controllers.
#[derive(Clone, Debug)]
pub struct Vanished {
    /// Their number.
    pub objects: Budget,
    /// Their bytes.
    pub bytes: Budget,
}

impl Vanished {
    /// Creates a separate bound.
    pub fn new(objects: usize, bytes: usize) -> Self {
        Self { objects: Budget::new(objects), bytes: Budget::new(bytes) }
    }
}

impl Default for Vanished {
    /// Uses [`MAX_GONE`] and [`MAX_GONE_BYTES`].
    fn default() -> Self {
        Self::new(MAX_GONE, MAX_GONE_BYTES)
    }
}

/// The change of one object since the last delivery to the plugin. At least one of `old` and `new` is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The kind.
    pub of: TypeMeta,
    /// The state before the first change; `None` if there was no object. For an object that came and went, its last
    /// known state.
    pub old: Option<Arc<Object>>,
    /// The state after the last change; `None` if the object is gone.
    pub new: Option<Arc<Object>>,
    /// Number of changes in it.
    pub merged: u32,
    /// `true` if the object is gone and its deletion was not observed.
    pub missed: bool,
    /// `true` if the object was there when the listener began, and has not been delivered before.
    pub initial: bool,
}

/// How a change came to the backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Number of changes that it stands for; at least 1.
    pub merged: u32,
    /// `true` if the object was there when the listener began. Counts only for an addition.
    pub initial: bool,
}

impl Default for Seen {
    /// One change of an object that the listener knows, or that is new.
    fn default() -> Self {
        Self { merged: 1, initial: false }
    }
}

/// Changes of different objects, for one call. Ends with [`Backlog::done`] or [`Backlog::failed`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is taken and neither done nor failed is never delivered again"]
pub struct Batch {
    changes: Vec<News>,
    subjects: Vec<Arc<Subject>>,
}

impl Batch {
    /// Returns the changes in the order of their first arrival; at least one.
    pub fn changes(&self) -> &[News] {
        &self.changes
    }
}

/// Changes that wait, and those in flight.
#[derive(Debug)]
pub struct Backlog {
    limits: Limits,
    entries: HashMap<Arc<Subject>, Progress>,
    /// Untried changes that can be taken, by arrival.
    ready: BTreeMap<u64, Arc<Subject>>,
    /// Failed changes that can be taken again, by the time since when, then by arrival.
    again: BTreeMap<(Duration, u64), Arc<Subject>>,
    /// `true` if the last batch was a retry.
    took_again: bool,
    /// Failed changes, by the time of their retry, then by arrival.
    delayed: BTreeMap<(Duration, u64), Arc<Subject>>,
    /// Arrivals of untried changes: they wait behind no failure, or are in flight for the first time.
    untried: BTreeSet<u64>,
    /// Arrivals of waiting changes of gone objects.
    gone: BTreeMap<u64, Arc<Subject>>,
    /// Their number and bytes, in a bound that may be shared.
    gone_objects: Share,
    gone_bytes: Share,
    arrivals: u64,
    bytes: usize,
    dropped: u64,
}

/// One object.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Subject {
    of: TypeMeta,
    key: Key,
}

/// At least one of `waiting` and `in_flight` is set.
#[derive(Debug, Default)]
struct Progress {
    waiting: Option<Delivery>,
    in_flight: Option<Delivery>,
    /// Consecutive failed calls.
    failures: u32,
    due: Option<Duration>,
}

/// A change to deliver.
#[derive(Clone, Debug)]
struct Delivery {
    arrival: u64,
    /// The state that the plugin knows.
    before: Option<Arc<Object>>,
    /// The last state of the object.
    last: Arc<Object>,
    gone: bool,
    merged: u32,
    missed: bool,
    /// The last addition in it was of an object that was there when the listener began.
    initial: bool,
}

impl Delivery {
    fn new(change: &Change, seen: Seen, arrival: u64) -> Self {
        let (last, gone) = (change.object().clone(), change.new.is_none());
        let Seen { merged, initial } = seen;
        Self { arrival, before: change.old.clone(), last, gone, merged, missed: change.missed, initial }
    }

    /// Merges this change with the one after it.
    ///
    /// An object that was there at the start stays initial until it is delivered. Another one of its name is not.
    fn and_then(self, later: Self) -> Self {
        let initial = if later.is_added() { later.initial } else { self.initial };
        let merged = self.merged.saturating_add(later.merged);
        Self { arrival: self.arrival, before: self.before, merged, initial, ..later }
    }

    fn is_added(&self) -> bool {
        self.before.is_none() && !self.gone
    }

    fn pending(&self, of: &TypeMeta) -> News {
        let last = || self.last.clone();
        News {
            of: of.clone(),
            old: self.before.clone().or_else(|| self.gone.then(last)),
            new: (!self.gone).then(last),
            merged: self.merged,
            missed: self.missed,
            initial: self.initial && self.is_added(),
        }
    }

    fn bytes(&self) -> usize {
        // If both sides are the same object it counts twice, as a call receives it twice.
        self.last.bytes() + self.before.as_ref().map_or(0, |object| object.bytes())
    }
}

impl Backlog {
    /// Creates an empty backlog; `limits` are the delays after failures of each object.
    pub fn new(limits: Limits) -> Self {
        Self::within(limits, &Vanished::default())
    }

    /// Creates an empty backlog whose gone objects count in `vanished`.
    pub fn within(limits: Limits, vanished: &Vanished) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            ready: BTreeMap::new(),
            again: BTreeMap::new(),
            took_again: false,
            delayed: BTreeMap::new(),
            untried: BTreeSet::new(),
            gone: BTreeMap::new(),
            gone_objects: vanished.objects.share(),
            gone_bytes: vanished.bytes.share(),
            arrivals: 0,
            bytes: 0,
            dropped: 0,
        }
    }

    /// Adds a change of an object of kind `of`.
    pub fn push(&mut self, of: &TypeMeta, change: &Change) {
        self.push_seen(of, change, Seen::default());
    }

    /// Adds a change, and what is known of how it came.
    pub fn push_seen(&mut self, of: &TypeMeta, change: &Change, seen: Seen) {
        let delivery = Delivery::new(change, seen, self.arrivals);
        self.arrivals += 1;
        let subject = Subject { of: of.clone(), key: change.key().clone() };
        let subject =
            self.entries.get_key_value(&subject).map_or_else(|| Arc::new(subject), |(known, _)| known.clone());
        let waiting = self.stop_waiting(&subject);
        let delivery = match waiting {
            Some(before) => before.and_then(delivery),
            None => delivery,
        };
        self.wait(&subject, delivery);
        self.drop_beyond_bound();
    }

    /// Takes the next batch: up to `most` objects and about `most_bytes`, at least one object. A failed change is taken
    /// alone. Returns `None` if nothing is ready.
    pub fn take(&mut self, now: Duration, most: usize, most_bytes: usize) -> Option<Batch> {
        while let Some(entry) = self.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            let (since, subject) = entry.remove_entry();
            self.again.insert(since, subject);
        }
        let again = self.again.first_key_value().filter(|_| !self.took_again || self.ready.is_empty());
        self.took_again = again.is_some();
        let subjects = match again {
            Some((_, subject)) => vec![subject.clone()],
            None => self.first_ready(most, most_bytes),
        };
        let changes = subjects.iter().filter_map(|subject| {
            let delivery = self.stop_waiting(subject)?;
            let pending = delivery.pending(&subject.of);
            self.bytes += delivery.bytes();
            let entry = self.entries.entry(subject.clone()).or_default();
            if entry.failures == 0 {
                self.untried.insert(delivery.arrival);
            }
            entry.in_flight = Some(delivery);
            Some(pending)
        });
        let changes: Vec<_> = changes.collect();
        (!changes.is_empty()).then_some(Batch { changes, subjects })
    }

    fn first_ready(&self, most: usize, most_bytes: usize) -> Vec<Arc<Subject>> {
        let (mut subjects, mut bytes) = (Vec::new(), 0);
        for subject in self.ready.values() {
            let delivery = self.entries.get(subject).and_then(|entry| entry.waiting.as_ref());
            bytes += delivery.map_or(0, Delivery::bytes);
            if !subjects.is_empty() && (subjects.len() >= most || bytes > most_bytes) {
                break;
            }
            subjects.push(subject.clone());
        }
        subjects
    }

    /// Ends a batch that the plugin has accepted.
    pub fn done(&mut self, batch: Batch) {
        for subject in batch.subjects {
            let Some(_) = self.land(&subject) else { continue };
            let Some(entry) = self.entries.get_mut(&subject) else { continue };
            (entry.failures, entry.due) = (0, None);
            match entry.waiting.take() {
                Some(delivery) => self.requeue(&subject, delivery),
                None => drop(self.entries.remove(&subject)),
            }
        }
    }

    /// Ends a batch whose call failed at `now`. Each change is retried alone, merged with later ones, after its own
    /// delay.
    pub fn failed(&mut self, batch: Batch, now: Duration) {
        for subject in batch.subjects {
            let Some(delivery) = self.land(&subject) else { continue };
            let Some(entry) = self.entries.get_mut(&subject) else { continue };
            entry.due = Some(now.saturating_add(self.limits.delay(entry.failures)));
            entry.failures = entry.failures.saturating_add(1);
            let delivery = match self.stop_waiting(&subject) {
                Some(meanwhile) => delivery.and_then(meanwhile),
                None => delivery,
            };
            self.wait(&subject, delivery);
        }
        self.drop_beyond_bound();
    }

    /// Keeps only the objects for which `keep` returns `true`.
    pub fn retain(&mut self, mut keep: impl FnMut(&TypeMeta, &Key) -> bool) {
        let gone: Vec<_> = self.entries.keys().filter(|subject| !keep(&subject.of, &subject.key)).cloned().collect();
        for subject in gone {
            self.stop_waiting(&subject);
            self.land(&subject);
            self.entries.remove(&subject);
        }
    }

    /// Returns the time of the next retry.
    pub fn next_due(&self) -> Option<Duration> {
        self.delayed.first_key_value().map(|((due, _), _)| *due)
    }

    /// Returns a number above those of all changes so far, for [`tried_until`](Self::tried_until).
    pub fn mark(&self) -> u64 {
        self.arrivals
    }

    /// Returns `true` if every change from before the mark was delivered, failed at least once, or was dropped.
    pub fn tried_until(&self, mark: u64) -> bool {
        self.untried.first().is_none_or(|first| *first >= mark)
    }

    /// Returns the number of objects that wait or are in flight.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if nothing waits and nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the bytes of the objects that it refers to, most of which the store also holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of objects that wait for their retry.
    pub fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// Counts gone objects that were dropped because a bound was exceeded.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn wait(&mut self, subject: &Arc<Subject>, delivery: Delivery) {
        let entry = self.entries.entry(subject.clone()).or_default();
        if entry.failures == 0 {
            self.untried.insert(delivery.arrival);
        }
        self.bytes += delivery.bytes();
        if entry.in_flight.is_some() {
            entry.waiting = Some(delivery);
            return;
        }
        if delivery.gone {
            self.gone_objects.add(1);
            self.gone_bytes.add(delivery.bytes());
            self.gone.insert(delivery.arrival, subject.clone());
        }
        match entry.due {
            Some(due) => drop(self.delayed.insert((due, delivery.arrival), subject.clone())),
            None => drop(self.ready.insert(delivery.arrival, subject.clone())),
        }
        entry.waiting = Some(delivery);
    }

    fn stop_waiting(&mut self, subject: &Arc<Subject>) -> Option<Delivery> {
        let entry = self.entries.get_mut(subject)?;
        let delivery = entry.waiting.take()?;
        self.untried.remove(&delivery.arrival);
        if self.gone.remove(&delivery.arrival).is_some() {
            self.gone_objects.remove(1);
            self.gone_bytes.remove(delivery.bytes());
        }
        self.bytes -= delivery.bytes();
        if self.ready.remove(&delivery.arrival).is_none()
            && let Some(due) = entry.due
            && self.again.remove(&(due, delivery.arrival)).is_none()
        {
            self.delayed.remove(&(due, delivery.arrival));
        }
        Some(delivery)
    }

    /// Makes the changes that waited behind a finished call available.
    fn requeue(&mut self, subject: &Arc<Subject>, delivery: Delivery) {
        self.bytes -= delivery.bytes();
        self.wait(subject, delivery);
    }

    fn land(&mut self, subject: &Arc<Subject>) -> Option<Delivery> {
        let delivery = self.entries.get_mut(subject)?.in_flight.take()?;
        self.untried.remove(&delivery.arrival);
        self.bytes -= delivery.bytes();
        Some(delivery)
    }

    fn drop_beyond_bound(&mut self) {
        while self.gone_objects.is_over() || self.gone_bytes.is_over() {
            let Some(subject) = self.gone.first_key_value().map(|(_, subject)| subject.clone()) else { return };
            self.stop_waiting(&subject);
            self.entries.remove(&subject);
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests;
