//! Changes that wait to be told to a plugin, for its `map` and its `observe`.
//!
//! Owns their order, what becomes of several of one object, and when a batch that failed is told again. Who calls the plugin, and
//! what a call may cost, is the host's.
//!
//! ```text
//! change ─► push ─► waiting, by arrival ─► take ─► in flight ─┬─ done ───► over
//!                      ▲   │ of one object: merged            │
//!                      └───┴──────────────────────────────────┴─ failed ─► merged, alone, after a delay
//! ```
//!
//! What failed and is due takes turns with what was not tried yet, and goes in the order in which it became due: nothing keeps another
//! waiting for ever.
//!
//! There is one entry for each object, and never two calls about one object at once: what comes while it is in flight waits.
//! Several changes of an object are told as one, from before the first to after the last; an object that was added and deleted
//! meanwhile is told as deleted, in its last known state. So every state that a plugin was told is the `old` of what it is
//! told next, and whoever it mapped the old state to is mapped again.
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

/// Delays of failed calls: those of the workqueue, because keys wait behind them.
pub const MAPPER: Limits = Limits { base: Duration::from_millis(5), cap: Duration::from_secs(1000) };

/// Objects that are gone and still to be told, at most. Of what is there, one entry an object is bounded by the cache; what is
/// gone would gather for ever where names are not used again and the plugin takes nothing. As many Pods as a large cluster has.
pub const MAX_GONE: usize = 100_000;

/// Bytes of these at most: nobody else holds them.
pub const MAX_GONE_BYTES: usize = 128 << 20;

/// The bound for objects that are gone, over all buffers of a plugin that keep some: a plugin has a backlog for each of its controllers.
#[derive(Clone, Debug)]
pub struct Vanished {
    /// How many.
    pub objects: Budget,
    /// Their bytes.
    pub bytes: Budget,
}

impl Vanished {
    /// A bound of its own.
    pub fn new(objects: usize, bytes: usize) -> Self {
        Self { objects: Budget::new(objects), bytes: Budget::new(bytes) }
    }
}

impl Default for Vanished {
    /// [`MAX_GONE`] and [`MAX_GONE_BYTES`].
    fn default() -> Self {
        Self::new(MAX_GONE, MAX_GONE_BYTES)
    }
}

/// What became of one object since a plugin was told of it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The kind.
    pub of: TypeMeta,
    /// Before the first change; none: it was not there. Of an object that came and went, its last known state.
    pub old: Option<Arc<Object>>,
    /// After the last; none: it is gone.
    pub new: Option<Arc<Object>>,
    /// How many changes this one stands for.
    pub merged: u32,
    /// It is gone, and nobody saw how.
    pub missed: bool,
}

/// Changes of different objects in one call's hands. It ends with [`Backlog::done`] or [`Backlog::failed`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is taken and neither done nor failed is never told again"]
pub struct Batch {
    changes: Vec<Pending>,
    subjects: Vec<Arc<Subject>>,
}

impl Batch {
    /// In the order in which their objects first changed; at least one.
    pub fn changes(&self) -> &[Pending] {
        &self.changes
    }
}

/// Changes that wait, and those that are being told.
#[derive(Debug)]
pub struct Backlog {
    limits: Limits,
    entries: HashMap<Arc<Subject>, Entry>,
    /// What can be taken for the first time since it was told last, by arrival.
    ready: BTreeMap<u64, Arc<Subject>>,
    /// What failed and can be taken again, by since when, then by arrival.
    again: BTreeMap<(Duration, u64), Arc<Subject>>,
    /// What was taken last had failed before.
    took_again: bool,
    /// What failed, by when it can be taken again, then by arrival.
    delayed: BTreeMap<(Duration, u64), Arc<Subject>>,
    /// Arrivals of what was not tried yet: it waits, and nothing of its object has failed, or it is in flight for the first time.
    untried: BTreeSet<u64>,
    /// Arrivals of what waits and is gone.
    gone: BTreeMap<u64, Arc<Subject>>,
    /// How many they are, and their bytes, in a bound that may be others' too.
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

/// At least one of `waiting` and `flying` is there.
#[derive(Debug, Default)]
struct Entry {
    waiting: Option<Told>,
    flying: Option<Told>,
    /// Calls in a row that failed.
    failures: u32,
    due: Option<Duration>,
}

/// What is to be told of an object.
#[derive(Clone, Debug)]
struct Told {
    arrival: u64,
    /// As the plugin knows it.
    before: Option<Arc<Object>>,
    /// The last state that was there.
    last: Arc<Object>,
    gone: bool,
    merged: u32,
    missed: bool,
}

impl Told {
    fn new(change: &Change, arrival: u64) -> Self {
        let (last, gone) = (change.object().clone(), change.new.is_none());
        Self { arrival, before: change.old.clone(), last, gone, merged: 1, missed: change.missed }
    }

    /// This, and then `later`.
    fn and_then(self, later: Self) -> Self {
        Self { arrival: self.arrival, before: self.before, merged: self.merged.saturating_add(later.merged), ..later }
    }

    fn pending(&self, of: &TypeMeta) -> Pending {
        let last = || self.last.clone();
        Pending {
            of: of.clone(),
            old: self.before.clone().or_else(|| self.gone.then(last)),
            new: (!self.gone).then(last),
            merged: self.merged,
            missed: self.missed,
        }
    }

    fn bytes(&self) -> usize {
        // Where both sides are one object it is counted twice: it is there twice in what a call is given.
        self.last.bytes() + self.before.as_ref().map_or(0, |object| object.bytes())
    }
}

impl Backlog {
    /// An empty one; `limits` are the delays after failures, object by object.
    pub fn new(limits: Limits) -> Self {
        Self::within(limits, &Vanished::default())
    }

    /// An empty one. What it keeps of objects that are gone counts in `vanished`, with what others keep.
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

    /// Adds what became of an object of kind `of`.
    pub fn push(&mut self, of: &TypeMeta, change: &Change) {
        self.push_merged(of, change, 1);
    }

    /// Adds what became of an object of kind `of` by so many changes.
    pub fn push_merged(&mut self, of: &TypeMeta, change: &Change, merged: u32) {
        let told = Told { merged, ..Told::new(change, self.arrivals) };
        self.arrivals += 1;
        let subject = Subject { of: of.clone(), key: change.key().clone() };
        let subject =
            self.entries.get_key_value(&subject).map_or_else(|| Arc::new(subject), |(known, _)| known.clone());
        let waiting = self.stop_waiting(&subject);
        let told = match waiting {
            Some(before) => before.and_then(told),
            None => told,
        };
        self.wait(&subject, told);
        self.drop_beyond_bound();
    }

    /// The changes to tell now, of so many objects and about so many bytes at most; one object at least, however large. None:
    /// nothing is ready. What failed is taken alone.
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
            let told = self.stop_waiting(subject)?;
            let pending = told.pending(&subject.of);
            self.bytes += told.bytes();
            let entry = self.entries.entry(subject.clone()).or_default();
            if entry.failures == 0 {
                self.untried.insert(told.arrival);
            }
            entry.flying = Some(told);
            Some(pending)
        });
        let changes: Vec<_> = changes.collect();
        (!changes.is_empty()).then_some(Batch { changes, subjects })
    }

    fn first_ready(&self, most: usize, most_bytes: usize) -> Vec<Arc<Subject>> {
        let (mut subjects, mut bytes) = (Vec::new(), 0);
        for subject in self.ready.values() {
            let told = self.entries.get(subject).and_then(|entry| entry.waiting.as_ref());
            bytes += told.map_or(0, Told::bytes);
            if !subjects.is_empty() && (subjects.len() >= most || bytes > most_bytes) {
                break;
            }
            subjects.push(subject.clone());
        }
        subjects
    }

    /// The plugin has taken them.
    pub fn done(&mut self, batch: Batch) {
        for subject in batch.subjects {
            let Some(_) = self.land(&subject) else { continue };
            let Some(entry) = self.entries.get_mut(&subject) else { continue };
            (entry.failures, entry.due) = (0, None);
            match entry.waiting.take() {
                Some(told) => self.requeue(&subject, told),
                None => drop(self.entries.remove(&subject)),
            }
        }
    }

    /// The call failed at `now`: each is told again, alone, with what came meanwhile, after a delay of its own.
    pub fn failed(&mut self, batch: Batch, now: Duration) {
        for subject in batch.subjects {
            let Some(told) = self.land(&subject) else { continue };
            let Some(entry) = self.entries.get_mut(&subject) else { continue };
            entry.due = Some(now.saturating_add(self.limits.delay(entry.failures)));
            entry.failures = entry.failures.saturating_add(1);
            let told = match self.stop_waiting(&subject) {
                Some(meanwhile) => told.and_then(meanwhile),
                None => told,
            };
            self.wait(&subject, told);
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

    /// When something that failed can be taken again, if nothing is ready before.
    pub fn next_due(&self) -> Option<Duration> {
        self.delayed.first_key_value().map(|((due, _), _)| *due)
    }

    /// A number above those of all changes so far: each was tried when [`tried_until`](Self::tried_until) says so.
    pub fn mark(&self) -> u64 {
        self.arrivals
    }

    /// True if every change from before the mark was told, or could not be, or was dropped.
    pub fn tried_until(&self, mark: u64) -> bool {
        self.untried.first().is_none_or(|first| *first >= mark)
    }

    /// How many objects wait or are in flight.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nothing waits and nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of the objects that it refers to, most of which the store holds as well.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Objects of which telling failed, and that wait for their time.
    pub fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// Objects that were gone and never told, because there were more than the bound allows, or they had more bytes.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn wait(&mut self, subject: &Arc<Subject>, told: Told) {
        let entry = self.entries.entry(subject.clone()).or_default();
        if entry.failures == 0 {
            self.untried.insert(told.arrival);
        }
        self.bytes += told.bytes();
        if entry.flying.is_some() {
            entry.waiting = Some(told);
            return;
        }
        if told.gone {
            self.gone_objects.add(1);
            self.gone_bytes.add(told.bytes());
            self.gone.insert(told.arrival, subject.clone());
        }
        match entry.due {
            Some(due) => drop(self.delayed.insert((due, told.arrival), subject.clone())),
            None => drop(self.ready.insert(told.arrival, subject.clone())),
        }
        entry.waiting = Some(told);
    }

    fn stop_waiting(&mut self, subject: &Arc<Subject>) -> Option<Told> {
        let entry = self.entries.get_mut(subject)?;
        let told = entry.waiting.take()?;
        self.untried.remove(&told.arrival);
        if self.gone.remove(&told.arrival).is_some() {
            self.gone_objects.remove(1);
            self.gone_bytes.remove(told.bytes());
        }
        self.bytes -= told.bytes();
        if self.ready.remove(&told.arrival).is_none()
            && let Some(due) = entry.due
            && self.again.remove(&(due, told.arrival)).is_none()
        {
            self.delayed.remove(&(due, told.arrival));
        }
        Some(told)
    }

    /// What waited behind a call that is over can be taken.
    fn requeue(&mut self, subject: &Arc<Subject>, told: Told) {
        self.bytes -= told.bytes();
        self.wait(subject, told);
    }

    fn land(&mut self, subject: &Arc<Subject>) -> Option<Told> {
        let told = self.entries.get_mut(subject)?.flying.take()?;
        self.untried.remove(&told.arrival);
        self.bytes -= told.bytes();
        Some(told)
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
