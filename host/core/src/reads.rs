//! Tracked reads (invariant 11): a reconcile is woken by what it read.
//!
//! Owns, for one controller, an index from what was read to the keys that read it: objects, absences of objects, and
//! selections. The host performs the reads, and decides what a woken key does.
//!
//! ```text
//!  run of a/b ──► object v1 Secret x/y            ─┐
//!             ──► selection v1 Pod, x, app=web     ├─► dependency ──► { a/b, a/c, … }
//!  run of a/c ──► selection v1 Pod, x, app=web    ─┘       ▲
//!                                                  change ─┘ wakes
//! ```
//!
//! Equal reads are held once. A change finds the dependencies that it may concern by hash (`anchor`). Ten thousand keys
//! that read the same selection cost one match; ten thousand that read different ones by one label cost one look-up.
//!
//! A read counts from the moment it is recorded. Record it before looking into the store, so that no change is missed
//! in between. When a run succeeds, its reads replace those of the last success. When it fails, its reads are dropped
//! and those stay. That loses nothing: the failed key is retried, and reads again.
//!
//! ```
//! use std::sync::Arc;
//! use pilothouse_core::{key::{Key, TypeMeta}, object::Object, reads::Tracker, store::Change};
//!
//! let (secrets, web) = (TypeMeta::new("v1", "Secret"), Key::new(Some("a"), "web"));
//! let mut tracker = Tracker::default();
//! let run = tracker.begin(&web);
//! tracker.read_object(run, &secrets, &Key::new(Some("a"), "password")); // there is none yet
//! tracker.commit(run);
//!
//! let json = br#"{"metadata":{"name":"password","namespace":"a","uid":"1","resourceVersion":"7"}}"#;
//! let appears = Change { old: None, new: Some(Arc::new(Object::parse(json, &secrets)?)), missed: false };
//! let mut woken = Vec::new();
//! tracker.wakes(&secrets, &appears, &mut woken);
//! assert_eq!(woken, [web]);
//! # Ok::<(), pilothouse_core::ParseError>(())
//! ```

use std::{collections::BTreeMap, sync::Arc};

use hashbrown::{DefaultHashBuilder, HashSet, HashTable};

use crate::{
    budget::{Budget, Share},
    field::{FieldPath, FieldSet},
    key::{Key, TypeMeta},
    object::Object,
    selector::Selector,
    store::Change,
};

mod anchor;
mod dependency;
mod ids;
mod tables;

use anchor::Anchors;
use dependency::{Dependency, Thing, ThingRef};

/// Distinct reads of one kind that one run may make. A run that reads more depends on the whole kind instead, or on the
/// whole namespace that it read in.
pub const MAX_READS: usize = 1000;

/// Bytes of these reads: twice a thousand of the longest usual names.
pub const MAX_READ_BYTES: usize = 512 << 10;

/// Selections that are filed under the same anchor (a label's value, or none) and differ in the rest. A change is
/// compared with each, which takes some tens of microseconds. Beyond that, a further selection counts as everything
/// under the anchor.
const MAX_ALIKE: usize = 64;

/// Default bound for the bytes of all trackers of a plugin. Beyond it, a run depends on the whole, as if it had read
/// too much. It suffices for a hundred thousand keys with ten reads each that no other key shares.
pub const MAX_BYTES: usize = 256 << 20;

/// A read of more than one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selection {
    /// `None` for every namespace.
    pub namespace: Option<Arc<str>>,
    /// The selector for labels.
    pub labels: Selector,
    /// Only objects with this value at this path, as an index finds them.
    pub index: Option<(FieldPath, Box<str>)>,
    /// How much of each object the run received.
    pub aspect: Aspect,
}

/// What a run has seen of the selected objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Aspect {
    /// The whole objects.
    Whole,
    /// Their keys: only objects that enter or leave matter.
    Keys,
    /// The values of these fields.
    Fields(Box<[FieldPath]>),
}

/// One reconcile of one key, from [`Tracker::begin`] to [`Tracker::commit`] or [`Tracker::abandon`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    key: u32,
    number: u64,
}

/// What the keys of one controller have read.
#[derive(Debug)]
pub struct Tracker {
    kinds: Vec<Kind>,
    dependencies: Vec<Option<Dependency>>,
    free_dependencies: Vec<u32>,
    /// By hash of the kind's number and the read.
    things: HashTable<u32>,
    keys: Vec<Option<Tracked>>,
    free_keys: Vec<u32>,
    /// By hash of the key.
    key_numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Namespaces in reads, each held once.
    namespaces: HashSet<Arc<str>>,
    /// Number of namespaces that triggers a sweep of unused ones.
    namespaces_until: usize,
    /// Number of runs begun.
    runs: u64,
    /// Bytes behind the tables.
    heap: usize,
    /// Part of the plugin's budget for all its trackers.
    share: Share,
    alike: usize,
}

/// The reads of one kind.
#[derive(Debug)]
struct Kind {
    of: TypeMeta,
    selections: Anchors,
    /// Paths by which selections look up, and the number of selections.
    paths: BTreeMap<FieldPath, usize>,
    /// The same paths, for one walk over an object.
    indexed: FieldSet,
}

/// One key of the controller.
#[derive(Debug)]
struct Tracked {
    key: Key,
    /// Dependencies of the last successful run, in order.
    committed: Box<[u32]>,
    running: Option<Box<RunReads>>,
}

/// What a run has read so far.
#[derive(Debug)]
struct RunReads {
    number: u64,
    /// `true` if a change woke the key since the run began.
    woken: bool,
    /// By number of the kind. A run reads few kinds.
    kinds: Vec<(u32, Reads)>,
}

impl RunReads {
    fn of_kind(&mut self, kind: u32) -> Option<&mut Reads> {
        self.kinds.iter_mut().find(|(of, _)| *of == kind).map(|(_, reads)| reads)
    }

    /// Returns the heap bytes, its own included.
    fn heap(&self) -> usize {
        let sets = self.kinds.iter().map(|(_, reads)| reads.dependencies.allocation_size()).sum::<usize>();
        size_of::<Self>() + self.kinds.capacity() * size_of::<(u32, Reads)>() + sets
    }
}

#[derive(Debug, Default)]
struct Reads {
    dependencies: HashSet<u32>,
    /// Bytes of the reads.
    bytes: usize,
    scope: Scope,
    /// `true` if there were too many: the only dependency is then on the whole scope.
    whole: bool,
}

/// The namespaces that a run has read in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Scope {
    #[default]
    Nowhere,
    Namespace(Arc<str>),
    Everywhere,
}

impl Scope {
    fn selection(&self) -> Selection {
        let namespace = if let Self::Namespace(namespace) = self { Some(namespace.clone()) } else { None };
        Selection { namespace, labels: Selector::default(), index: None, aspect: Aspect::Whole }
    }
}

impl Default for Tracker {
    /// Creates a tracker with its own budget.
    fn default() -> Self {
        Self::within(&Budget::new(MAX_BYTES))
    }
}

impl Tracker {
    /// Creates a tracker whose bytes count in `budget`.
    pub fn within(budget: &Budget) -> Self {
        Self {
            kinds: Vec::new(),
            dependencies: Vec::new(),
            free_dependencies: Vec::new(),
            things: HashTable::new(),
            keys: Vec::new(),
            free_keys: Vec::new(),
            key_numbers: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            namespaces: HashSet::new(),
            namespaces_until: 0,
            runs: 0,
            heap: 0,
            share: budget.share(),
            alike: MAX_ALIKE,
        }
    }

    /// Begins a run of `key`, and abandons an earlier one that is open.
    pub fn begin(&mut self, key: &Key) -> Run {
        self.runs += 1;
        let run = Run { key: self.number_of(key), number: self.runs };
        let running = Box::new(RunReads { number: run.number, woken: false, kinds: Vec::new() });
        self.heap += running.heap();
        let before = self.tracked(run.key).running.replace(running);
        self.drop_running(run.key, before);
        run
    }

    /// Records that the run is about to read one object, whether it exists or not.
    pub fn read_object(&mut self, run: Run, of: &TypeMeta, key: &Key) {
        let namespace = key.namespace.as_ref().map(|namespace| self.shared(namespace));
        self.read(run, of, namespace.clone(), Thing::Object(namespace, (&*key.name).into()));
    }

    /// Records that the run is about to list a selection, from its first page.
    pub fn read_selection(&mut self, run: Run, of: &TypeMeta, selection: Selection) {
        let namespace = selection.namespace.as_ref().map(|namespace| self.shared(namespace));
        let selection = Selection { namespace: namespace.clone(), ..selection };
        self.read(run, of, namespace, Thing::Selection(Box::new(selection)));
    }

    /// Ends a successful run: its reads replace those before.
    pub fn commit(&mut self, run: Run) {
        let Some(running) = self.take_running(run) else { return };
        self.heap -= running.heap();
        let mut reads: Vec<u32> = running.kinds.into_iter().flat_map(|(_, reads)| reads.dependencies).collect();
        reads.sort_unstable();
        let reads = reads.into_boxed_slice();
        let before = std::mem::take(&mut self.tracked(run.key).committed);
        self.heap = self.heap + size_of_val(&*reads) - size_of_val(&*before);
        for dependency in before {
            if reads.binary_search(&dependency).is_err() {
                self.release(dependency, run.key);
            }
        }
        self.tracked(run.key).committed = reads;
        self.drop_key_without_reads(run.key);
        self.count();
    }

    /// Ends a failed run, whose reads are dropped.
    pub fn abandon(&mut self, run: Run) {
        let running = self.take_running(run);
        if running.is_some() {
            self.drop_running(run.key, running);
            self.drop_key_without_reads(run.key);
            self.count();
        }
    }

    /// Forgets a key that is gone and whose end has been reconciled.
    pub fn forget(&mut self, key: &Key) {
        let Some(at) = self.find_key(key) else { return };
        let running = self.tracked(at).running.take();
        self.drop_running(at, running);
        let committed = std::mem::take(&mut self.tracked(at).committed);
        self.heap -= size_of_val(&*committed);
        for dependency in committed {
            self.release(dependency, at);
        }
        self.drop_key_without_reads(at);
        self.count();
    }

    /// Forgets reads of the kinds for which `keep` returns `false`.
    pub fn retain(&mut self, mut keep: impl FnMut(&TypeMeta) -> bool) {
        let gone: HashSet<u32> =
            (0..).zip(&self.kinds).filter(|(_, kind)| !keep(&kind.of)).map(|(number, _)| number).collect();
        let keys: Vec<u32> = self.key_numbers.iter().copied().collect();
        for at in keys.into_iter().filter(|_| !gone.is_empty()) {
            let committed = std::mem::take(&mut self.tracked(at).committed);
            let (released, kept): (Vec<_>, Vec<_>) =
                committed.iter().copied().partition(|dependency| gone.contains(&self.dependency(*dependency).kind));
            self.heap -= size_of_val(&*released);
            let tracked = self.tracked(at);
            tracked.committed = kept.into();
            let mut released: HashSet<u32> = released.into_iter().collect();
            if let Some(running) = &mut tracked.running {
                let before = running.heap();
                for (_, reads) in running.kinds.extract_if(.., |(kind, _)| gone.contains(kind)) {
                    released.extend(reads.dependencies);
                }
                let shrunk_by = before - running.heap();
                self.heap -= shrunk_by;
            }
            for dependency in released {
                self.release(dependency, at);
            }
            self.drop_key_without_reads(at);
        }
        self.count();
    }

    /// Appends the keys whose reads this change affects, each once, in no particular order.
    ///
    /// # Guarantees
    /// A key is appended if the result of one of its reads is different after the change. Other keys are appended only
    /// where a bound was exceeded: [`MAX_READS`] or [`MAX_READ_BYTES`] for one kind in one run, 64 selections under one
    /// anchor over all keys, or the budget over all trackers.
    pub fn wakes(&mut self, of: &TypeMeta, change: &Change, out: &mut Vec<Key>) {
        let read = self.touched(of, change);
        let mut woken: Vec<u32> = read.iter().flat_map(|dependency| dependency.keys.iter()).collect();
        // The keys of one dependency are distinct.
        if read.len() > 1 {
            woken.sort_unstable();
            woken.dedup();
        }
        for at in woken {
            let Some(tracked) = &mut self.keys[at as usize] else { continue };
            out.push(tracked.key.clone());
            if let Some(running) = &mut tracked.running {
                running.woken = true;
            }
        }
    }

    /// Returns `true` if a change [woke](Self::wakes) the run's key since the run began. A read of this run, or of the
    /// last successful one, is then out of date.
    pub fn is_woken(&self, run: Run) -> bool {
        let tracked = self.keys.get(run.key as usize).and_then(Option::as_ref);
        let running = tracked.and_then(|tracked| tracked.running.as_ref());
        running.is_some_and(|running| running.number == run.number && running.woken)
    }

    /// Returns `true` if the change [wakes](Self::wakes) this key.
    pub fn wakes_key(&self, key: &Key, of: &TypeMeta, change: &Change) -> bool {
        let Some(at) = self.find_key(key) else { return false };
        self.touched(of, change).iter().any(|dependency| dependency.keys.contains(at))
    }

    /// Returns the dependencies that the change affects.
    fn touched(&self, of: &TypeMeta, change: &Change) -> Vec<&Dependency> {
        let mut read = Vec::new();
        let Some((kind_number, kind)) = (0_u32..).zip(&self.kinds).find(|(_, kind)| kind.of == *of) else {
            return read;
        };
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        let differs = old.map(Object::json) != new.map(Object::json);
        if !differs {
            return read;
        }
        let key = change.key();
        read.extend(self.find_thing(kind_number, ThingRef::object(key)).map(|at| self.dependency(at)));
        let sides = anchor::Sides::new(old, new, &kind.indexed);
        kind.selections.candidates(key.namespace.as_deref(), &sides, &mut |dependency| {
            let dependency = self.dependency(dependency);
            if let Thing::Selection(selection) = &dependency.thing
                && selection.tells_apart(&sides)
            {
                read.push(dependency);
            }
        });
        read
    }

    /// Returns the number of keys with reads.
    pub fn keys(&self) -> usize {
        self.key_numbers.len()
    }

    /// Returns the number of distinct dependencies.
    pub fn dependencies(&self) -> usize {
        self.things.len()
    }

    /// Returns the heap bytes, as requested from the allocator, without the shared names of namespaces.
    pub fn bytes(&self) -> usize {
        let kinds: usize = self.kinds.iter().map(|kind| kind.selections.bytes()).sum();
        let tables = self.things.allocation_size() + self.key_numbers.allocation_size();
        let places = self.dependencies.capacity() * size_of::<Option<Dependency>>()
            + self.keys.capacity() * size_of::<Option<Tracked>>()
            + (self.free_dependencies.capacity() + self.free_keys.capacity()) * size_of::<u32>()
            + self.kinds.capacity() * size_of::<Kind>();
        kinds + tables + places + self.namespaces.allocation_size() + self.heap
    }

    /// Updates this tracker's part of the budget.
    fn count(&mut self) {
        let bytes = self.bytes();
        self.share.set(bytes);
    }
}

#[cfg(test)]
mod tests;
