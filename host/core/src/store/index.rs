//! The indexes: from an owner's uid, and from a label, to the slots of the objects that carry it.
//!
//! Owners are asked for all the time. Labels are asked for of some kinds and of others never, and each object has several: so they are
//! indexed once somebody has asked.

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
    /// Of the sets.
    heap: usize,
}

impl OwnerIndex {
    pub(super) fn slots(&self, owner: &Uid) -> impl Iterator<Item = u32> + use<'_> {
        self.owners.get(owner).into_iter().flat_map(Set::iter)
    }

    /// The object in `slot` was `old` and is `new`.
    pub(super) fn update(&mut self, slot: u32, old: Option<&Object>, new: Option<&Object>, order: Order<'_>) {
        let text = [old, new].map(|object| object.map_or("", Object::owners_json));
        // Nearly always.
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

    /// Goes on by as many slots as are left of `work`, which are returned.
    pub(super) fn go_on<'a>(
        &mut self,
        slots: &'a [Option<Slot>],
        work: &mut usize,
    ) -> impl Iterator<Item = (u32, &'a Slot)> + use<'a> {
        // The highest slots may have gone since.
        let below = if let Self::Below(below) = *self { below.min(slots.len()) } else { slots.len() };
        let end = slots.len().min(below.saturating_add(*work));
        *work -= end - below;
        *self = if end == slots.len() { Self::Done } else { Self::Below(end) };
        let numbered = (0..).zip(slots).take(end).skip(below);
        numbered.filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }
}

/// Label key → value → slots, once somebody has asked.
#[derive(Debug, Default)]
pub(super) struct LabelIndex {
    wanted: AtomicBool,
    progress: Progress,
    keys: HashMap<Box<str>, Values>,
    /// Of the values and their sets, apart from the tables.
    heap: usize,
}

#[derive(Debug, Default)]
struct Values {
    values: HashMap<Box<str>, Set>,
    /// How many objects have the key.
    count: usize,
}

impl LabelIndex {
    /// How many objects the index gives for a requirement; none: it has no answer, because objects without the label match, or it is
    /// not there yet. From now on it is wanted.
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

    /// Objects that meet a requirement which has a [`count`](Self::count), and perhaps others: a set for each value.
    pub(super) fn sets<'a>(&'a self, requirement: &'a Requirement) -> impl Iterator<Item = &'a Set> {
        let wanted = if let Requirement::In(_, values) = requirement { Some(values) } else { None };
        let values = self.keys.get(requirement.key()).map(|of| &of.values);
        let named = wanted.into_iter().flat_map(|wanted| wanted.iter()).filter_map(move |value| values?.get(value));
        let all = values.filter(|_| wanted.is_none()).into_iter().flat_map(HashMap::values);
        named.chain(all)
    }

    /// Somebody has asked, and it is not complete.
    pub(super) fn is_lacking(&self) -> bool {
        self.progress != Progress::Done && self.wanted.load(Ordering::Relaxed)
    }

    /// Takes so many slots more in, if somebody has asked. True if none is lacking.
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

    /// The object in `slot` was `old` and is `new`.
    pub(super) fn update(&mut self, slot: u32, old: Option<&Object>, new: Option<&Object>, order: Order<'_>) {
        if !self.progress.has(slot) {
            return;
        }
        let text = [old, new].map(|object| object.map_or("", Object::labels_json));
        // Nearly always.
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

/// Gives room back that a table needed once. Called after each removal: what is moved was paid for by what went.
pub(super) fn shrink<K: Eq + std::hash::Hash, V>(table: &mut HashMap<K, V>) {
    if table.len() < table.capacity() / 8 {
        table.shrink_to(table.len() * 2);
    }
}

#[cfg(test)]
pub(super) mod tests;
