//! Tables of a [`Tracker`]: keys and dependencies, numbered and found by hash.
//!
//! A dependency lives while a key has it, from its last success or its current run. A key lives while it has either.

use std::{collections::BTreeMap, hash::BuildHasher, sync::Arc};

use super::{
    Kind, MAX_READ_BYTES, MAX_READS, Reads, Run, RunReads, Scope, Tracked, Tracker, anchor,
    dependency::{Dependency, Thing, ThingRef},
    ids::Ids,
};
use crate::{
    field::FieldSet,
    key::{Key, TypeMeta},
    reads::anchor::Anchors,
};

/// Smallest number of namespaces that triggers a sweep.
const NAMESPACES: usize = 64;
/// Bytes of the two counters in an `Arc`.
const ARC: usize = 2 * size_of::<usize>();

impl Tracker {
    pub(super) fn read(&mut self, run: Run, of: &TypeMeta, namespace: Option<Arc<str>>, thing: Thing) {
        let kind = self.kind_number(of);
        let Some(running) = self.running(run) else { return };
        let before = running.kinds.capacity();
        if running.of_kind(kind).is_none() {
            running.kinds.push((kind, Reads::default()));
        }
        let grown_by = (running.kinds.capacity() - before) * size_of::<(u32, Reads)>();
        let Some(reads) = running.of_kind(kind) else { return };
        let grown = reads.scope.include(namespace);
        let whole = reads.whole;
        self.heap += grown_by;
        if !whole {
            let thing = self.bounded(kind, thing);
            let bytes = thing.heap();
            let dependency = self.depend(kind, thing, run.key);
            let Some(reads) = self.running(run).and_then(|running| running.of_kind(kind)) else { return };
            let before = reads.dependencies.allocation_size();
            if reads.dependencies.insert(dependency) {
                reads.bytes += bytes;
            }
            let is_too_much = reads.dependencies.len() > MAX_READS || reads.bytes > MAX_READ_BYTES;
            let grown_by = reads.dependencies.allocation_size() - before;
            self.heap += grown_by;
            self.count();
            if !is_too_much && !self.share.is_over() {
                return;
            }
            if let Some(reads) = self.running(run).and_then(|running| running.of_kind(kind)) {
                reads.whole = true;
            }
        } else if !grown {
            return;
        }
        self.depend_on_whole(run, kind);
        self.count();
    }

    /// Returns the read itself, or the whole of its anchor if too many distinct selections are filed there.
    fn bounded(&self, kind: u32, thing: Thing) -> Thing {
        let Thing::Selection(selection) = &thing else { return thing };
        let known = self.find_thing(kind, ThingRef::Selection(selection)).is_some();
        if known || self.kinds[kind as usize].selections.choose(selection, self.alike).is_some() {
            return thing;
        }
        Thing::Selection(Box::new(anchor::widest(selection)))
    }

    /// Replaces all that the run has read of a kind by a dependency on the whole scope.
    fn depend_on_whole(&mut self, run: Run, kind: u32) {
        let Some(reads) = self.running(run).and_then(|running| running.of_kind(kind)) else { return };
        let whole = Thing::Selection(Box::new(reads.scope.selection()));
        let single = std::mem::take(&mut reads.dependencies);
        self.heap -= single.allocation_size();
        let whole = self.depend(kind, whole, run.key);
        self.release_unless_committed(run.key, single.into_iter().filter(|single| *single != whole));
        if let Some(reads) = self.running(run).and_then(|running| running.of_kind(kind)) {
            reads.dependencies.insert(whole);
            let grown_by = reads.dependencies.allocation_size();
            self.heap += grown_by;
        }
    }

    fn kind_number(&mut self, of: &TypeMeta) -> u32 {
        let known = self.kinds.iter().position(|kind| kind.of == *of);
        number(known.unwrap_or_else(|| {
            let indexed = FieldSet::new([]);
            self.kinds.push(Kind { of: of.clone(), selections: Anchors::default(), paths: BTreeMap::new(), indexed });
            self.kinds.len() - 1
        }))
    }

    /// Returns the shared copy of a namespace's name.
    pub(super) fn shared(&mut self, namespace: &Arc<str>) -> Arc<str> {
        if self.namespaces.len() >= self.namespaces_until.max(NAMESPACES) {
            self.namespaces.retain(|namespace| Arc::strong_count(namespace) > 1);
            self.namespaces_until = self.namespaces.len() * 2;
        }
        self.namespaces.get_or_insert_with(&**namespace, |_| namespace.clone()).clone()
    }

    fn depend(&mut self, kind: u32, thing: Thing, key: u32) -> u32 {
        if let Some(known) = self.find_thing(kind, thing.borrowed()) {
            let dependency = self.dependencies[known as usize].as_mut().expect(LIVE);
            self.heap -= dependency.keys.heap();
            dependency.keys.insert(key);
            self.heap += dependency.keys.heap();
            return known;
        }
        let choice = match &thing {
            Thing::Selection(selection) => self.kinds[kind as usize].selections.choose(selection, self.alike),
            Thing::Object(..) => None,
        };
        // A selection without room was widened, and covers all later ones.
        let choice = number(choice.unwrap_or(0));
        let dependency = Dependency { kind, choice, thing, keys: Ids::One(key) };
        self.heap += dependency.heap();
        let place = self.free_dependencies.pop().unwrap_or_else(|| {
            self.dependencies.push(None);
            number(self.dependencies.len() - 1)
        });
        let hash = self.hasher.hash_one((kind, dependency.thing.borrowed()));
        if let Thing::Selection(selection) = &dependency.thing {
            let kind = &mut self.kinds[kind as usize];
            kind.selections.insert(selection, choice as usize, place);
            if let Some((path, _)) = &selection.index {
                let users = kind.paths.entry(path.clone()).or_default();
                *users += 1;
                if *users == 1 {
                    kind.indexed = FieldSet::new(kind.paths.keys().cloned());
                }
            }
        }
        self.dependencies[place as usize] = Some(dependency);
        let Self { things, dependencies, hasher, .. } = self;
        things.insert_unique(hash, place, |place| {
            let dependency = dependencies[*place as usize].as_ref().expect(LIVE);
            hasher.hash_one((dependency.kind, dependency.thing.borrowed()))
        });
        place
    }

    /// Removes a key from a dependency.
    pub(super) fn release(&mut self, place: u32, key: u32) {
        let dependency = self.dependencies[place as usize].as_mut().expect(LIVE);
        self.heap -= dependency.keys.heap();
        if !dependency.keys.remove(key) {
            self.heap += dependency.keys.heap();
            return;
        }
        let hash = self.hasher.hash_one((dependency.kind, dependency.thing.borrowed()));
        if let Ok(entry) = self.things.find_entry(hash, |one| *one == place) {
            entry.remove();
        }
        let Some(dependency) = self.dependencies[place as usize].take() else { return };
        self.heap -= dependency.heap();
        self.free_dependencies.push(place);
        if let Thing::Selection(selection) = &dependency.thing {
            let kind = &mut self.kinds[dependency.kind as usize];
            kind.selections.remove(selection, dependency.choice as usize, place);
            if let Some((path, _)) = &selection.index
                && let Some(users) = kind.paths.get_mut(path)
            {
                *users -= 1;
                if *users == 0 {
                    kind.paths.remove(path);
                    kind.indexed = FieldSet::new(kind.paths.keys().cloned());
                }
            }
        }
        self.shrink();
    }

    fn release_unless_committed(&mut self, key: u32, dependencies: impl Iterator<Item = u32>) {
        for dependency in dependencies {
            if self.tracked(key).committed.binary_search(&dependency).is_err() {
                self.release(dependency, key);
            }
        }
    }

    pub(super) fn drop_running(&mut self, key: u32, running: Option<Box<RunReads>>) {
        if let Some(running) = running {
            self.heap -= running.heap();
            let reads = running.kinds.into_iter().flat_map(|(_, reads)| reads.dependencies);
            self.release_unless_committed(key, reads);
        }
    }

    pub(super) fn running(&mut self, run: Run) -> Option<&mut RunReads> {
        let running = self.keys.get_mut(run.key as usize)?.as_mut()?.running.as_deref_mut()?;
        (running.number == run.number).then_some(running)
    }

    pub(super) fn take_running(&mut self, run: Run) -> Option<Box<RunReads>> {
        self.running(run)?;
        self.tracked(run.key).running.take()
    }

    pub(super) fn find_thing(&self, kind: u32, thing: ThingRef<'_>) -> Option<u32> {
        let is = |place: &u32| {
            let dependency = self.dependency(*place);
            dependency.kind == kind && dependency.thing.is(thing)
        };
        self.things.find(self.hasher.hash_one((kind, thing)), is).copied()
    }

    pub(super) fn dependency(&self, place: u32) -> &Dependency {
        self.dependencies[place as usize].as_ref().expect(LIVE)
    }

    pub(super) fn tracked(&mut self, key: u32) -> &mut Tracked {
        self.keys[key as usize].as_mut().expect(LIVE)
    }

    pub(super) fn find_key(&self, key: &Key) -> Option<u32> {
        let is = |place: &u32| self.keys[*place as usize].as_ref().is_some_and(|tracked| tracked.key == *key);
        self.key_numbers.find(self.hasher.hash_one(key), is).copied()
    }

    pub(super) fn number_of(&mut self, key: &Key) -> u32 {
        if let Some(known) = self.find_key(key) {
            return known;
        }
        let place = self.free_keys.pop().unwrap_or_else(|| {
            self.keys.push(None);
            number(self.keys.len() - 1)
        });
        self.heap += ARC + key.name.len();
        self.keys[place as usize] = Some(Tracked { key: key.clone(), committed: Box::default(), running: None });
        let Self { key_numbers, keys, hasher, .. } = self;
        key_numbers.insert_unique(hasher.hash_one(key), place, |place| {
            hasher.hash_one(&keys[*place as usize].as_ref().expect(LIVE).key)
        });
        place
    }

    pub(super) fn drop_key_without_reads(&mut self, key: u32) {
        let tracked = self.tracked(key);
        if !tracked.committed.is_empty() || tracked.running.is_some() {
            return;
        }
        let Some(tracked) = self.keys[key as usize].take() else { return };
        self.heap -= ARC + tracked.key.name.len();
        if let Ok(entry) = self.key_numbers.find_entry(self.hasher.hash_one(&tracked.key), |one| *one == key) {
            entry.remove();
        }
        self.free_keys.push(key);
    }

    /// Returns memory of tables that are an eighth full. Free places in the middle stay, for reuse.
    fn shrink(&mut self) {
        if self.things.len() >= self.things.capacity() / 8 {
            return;
        }
        let Self { things, dependencies, hasher, .. } = self;
        things.shrink_to(things.len() * 2, |place| {
            let dependency = dependencies[*place as usize].as_ref().expect(LIVE);
            hasher.hash_one((dependency.kind, dependency.thing.borrowed()))
        });
        if self.things.is_empty() {
            (self.dependencies, self.free_dependencies) = (Vec::new(), Vec::new());
        }
    }
}

const LIVE: &str = "a number leads to something as long as anything names it";

impl Scope {
    /// Returns `true` if the scope grew.
    fn include(&mut self, namespace: Option<Arc<str>>) -> bool {
        let grown = match (&*self, namespace) {
            (Self::Everywhere, _) => return false,
            (Self::Namespace(known), Some(namespace)) if *known == namespace => return false,
            (Self::Nowhere, Some(namespace)) => Self::Namespace(namespace),
            (_, _) => Self::Everywhere,
        };
        *self = grown;
        true
    }
}

/// Converts an index; tables use 32 bits.
fn number(place: usize) -> u32 {
    u32::try_from(place).expect("fewer than 2^32 keys and dependencies fit into memory")
}
