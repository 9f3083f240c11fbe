//! Indexes from an owner's uid, and from a label, to the slots of the objects that carry it.
//!
//! Owners are looked up all the time. Many kinds are never read by label, and each object has several labels. So labels
//! are indexed only after the first such read.

use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;

use super::{
    Slot,
    set::{Order, Set},
};
use crate::{
    object::{Object, Uid},
    selector::Requirement,
};

/// Owner's uid → slots.
#[derive(Debug, Default)]
pub(super) struct OwnerIndex {
    owners: HashMap<Uid, Set>,
    /// Bytes of the sets.
    heap: usize,
}

impl OwnerIndex {
    pub(super) fn slots(&self, owner: &Uid) -> impl Iterator<Item = u32> + use<'_> {
        self.owners.get(owner).into_iter().flat_map(Set::iter)
    }

    /// Records that the object in `slot` was `old` and is now `new`.
    pub(super) fn update(&mut self, slot: u32, old: Option<&Object>, new: Option<&Object>, order: Order<'_>) {
        let text = [old, new].map(|object| object.map_or("", Object::owners_json));
        // The common case.
        if text[0] == text[1] {
            return;
        }
        for owner in old.into_iter().flat_map(Object::owners) {
            let Some(slots) = self.owners.get_mut(&owner.uid) else { continue };
            self.heap -= slots.heap();
            if slots.remove(slot, order) {
                self.owners.remove(&owner.uid);
                shrink(&mut self.owners);
            } else {
                self.heap += slots.heap();
            }
        }
        for owner in new.into_iter().flat_map(Object::owners) {
            let slots = self.owners.entry(owner.uid).or_insert(Set::One(slot));
            self.heap -= slots.heap();
            slots.insert(slot, order);
            self.heap += slots.heap();
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.owners.allocation_size() + self.heap
    }
}

/// How far an index is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Slots below this one are in the index.
    Below(usize),
    Done,
}

impl Default for Progress {
    fn default() -> Self {
        Self::Below(0)
    }
}

impl Progress {
    pub(super) fn has(self, slot: u32) -> bool {
        match self {
            Self::Below(below) => (slot as usize) < below,
            Self::Done => true,
        }
    }

    /// Advances by up to `work` slots, subtracts them from `work`, and returns them.
    pub(super) fn go_on<'a>(
        &mut self,
        slots: &'a [Option<Slot>],
        work: &mut usize,
    ) -> impl Iterator<Item = (u32, &'a Slot)> + use<'a> {
        // The highest slots may have been freed meanwhile.
        let below = if let Self::Below(below) = *self { below.min(slots.len()) } else { slots.len() };
        let end = slots.len().min(below.saturating_add(*work));
        *work -= end - below;
        *self = if end == slots.len() { Self::Done } else { Self::Below(end) };
        let numbered = (0..).zip(slots).take(end).skip(below);
        numbered.filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }
}

/// Label key → value → slots, built after the first read by label.
#[derive(Debug, Default)]
pub(super) struct LabelIndex {
    wanted: AtomicBool,
    progress: Progress,
    keys: HashMap<Box<str>, Values>,
    /// Bytes of the values and their sets, without the tables.
    heap: usize,
}

#[derive(Debug, Default)]
struct Values {
    values: HashMap<Box<str>, Set>,
    /// Number of objects that have the key.
    count: usize,
}

impl LabelIndex {
    /// Returns how many objects the index yields for a requirement. Returns `None` if objects without the label match,
    /// or if the index is not complete; the latter asks for it to be built.
    pub(super) fn count(&self, requirement: &Requirement) -> Option<usize> {
        if self.progress != Progress::Done {
            self.wanted.store(true, Ordering::Relaxed);
            return None;
        }
        let of = |key: &str| self.keys.get(key);
        match requirement {
            Requirement::In(key, values) => {
                Some(of(key).map_or(0, |of| values.iter().filter_map(|value| of.values.get(value)).map(Set::len).sum()))
            }
            Requirement::Exists(key) | Requirement::Greater(key, _) | Requirement::Less(key, _) => {
                Some(of(key).map_or(0, |of| of.count))
            }
            Requirement::NotIn(..) | Requirement::Absent(_) => None,
        }
    }

    /// Returns one set per value for a requirement that has a [`count`](Self::count). The sets may hold other objects
    /// too.
    pub(super) fn sets<'a>(&'a self, requirement: &'a Requirement) -> impl Iterator<Item = &'a Set> {
        let wanted = if let Requirement::In(_, values) = requirement { Some(values) } else { None };
        let values = self.keys.get(requirement.key()).map(|of| &of.values);
        let named = wanted.into_iter().flat_map(|wanted| wanted.iter()).filter_map(move |value| values?.get(value));
        let all = values.filter(|_| wanted.is_none()).into_iter().flat_map(HashMap::values);
        named.chain(all)
    }

    /// Returns `true` if the index is wanted and not complete.
    pub(super) fn is_lacking(&self) -> bool {
        self.progress != Progress::Done && self.wanted.load(Ordering::Relaxed)
    }

    /// Takes up to `work` more slots in, if the index is wanted. Returns `true` if it is complete or not wanted.
    pub(super) fn build(&mut self, slots: &[Option<Slot>], work: &mut usize) -> bool {
        if self.is_lacking() {
            for (number, slot) in self.progress.go_on(slots, work) {
                for (key, value) in slot.object.labels() {
                    self.insert(&key, &value, number, Order(slots));
                }
            }
        }
        !self.is_lacking()
    }

    /// Records that the object in `slot` was `old` and is now `new`.
    pub(super) fn update(&mut self, slot: u32, old: Option<&Object>, new: Option<&Object>, order: Order<'_>) {
        if !self.progress.has(slot) {
            return;
        }
        let text = [old, new].map(|object| object.map_or("", Object::labels_json));
        // The common case.
        if text[0] == text[1] {
            return;
        }
        for (key, value) in old.into_iter().flat_map(Object::labels) {
            self.remove(&key, &value, slot, order);
        }
        for (key, value) in new.into_iter().flat_map(Object::labels) {
            self.insert(&key, &value, slot, order);
        }
    }

    fn insert(&mut self, key: &str, value: &str, slot: u32, order: Order<'_>) {
        let of = match self.keys.get_mut(key) {
            Some(of) => of,
            None => self.keys.entry(key.into()).or_default(),
        };
        of.count += 1;
        let slots = match of.values.get_mut(value) {
            Some(slots) => slots,
            None => {
                self.heap += value.len();
                of.values.entry(value.into()).or_insert(Set::One(slot))
            }
        };
        self.heap -= slots.heap();
        slots.insert(slot, order);
        self.heap += slots.heap();
    }

    fn remove(&mut self, key: &str, value: &str, slot: u32, order: Order<'_>) {
        let Some(of) = self.keys.get_mut(key) else { return };
        let Some(slots) = of.values.get_mut(value) else { return };
        of.count -= 1;
        self.heap -= slots.heap();
        if !slots.remove(slot, order) {
            self.heap += slots.heap();
            return;
        }
        self.heap -= value.len();
        of.values.remove(value);
        shrink(&mut of.values);
        if of.values.is_empty() {
            self.keys.remove(key);
            shrink(&mut self.keys);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let tables = self.keys.iter().map(|(key, of)| key.len() + of.values.allocation_size());
        self.keys.allocation_size() + tables.sum::<usize>() + self.heap
    }
}

/// Returns unused memory of a table. Called after each removal; the removals since have paid for the move.
pub(super) fn shrink<K: Eq + std::hash::Hash, V>(table: &mut HashMap<K, V>) {
    if table.len() < table.capacity() / 8 {
        table.shrink_to(table.len() * 2);
    }
}

#[cfg(test)]
pub(super) mod tests;
