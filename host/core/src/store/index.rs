//! The indexes: from an owner's uid, and from a label, to the slots of the objects that carry it.

use hashbrown::{HashMap, HashSet};

use crate::{
    object::{Object, Uid},
    selector::Requirement,
};

/// A set of slots: most have one, few have very many.
#[derive(Debug)]
enum Slots {
    One(u32),
    Few(Vec<u32>),
    Many(HashSet<u32>),
}

/// Above it a set is searched by hash.
const FEW: usize = 32;

impl Slots {
    fn insert(&mut self, slot: u32) {
        match self {
            Self::One(one) if *one == slot => {}
            Self::One(one) => *self = Self::Few(vec![*one, slot]),
            Self::Few(few) if few.contains(&slot) => {}
            Self::Few(few) if few.len() < FEW => few.push(slot),
            Self::Few(few) => *self = Self::Many(few.iter().copied().chain([slot]).collect()),
            Self::Many(many) => {
                many.insert(slot);
            }
        }
    }

    /// True if the set is empty afterwards, and to be dropped.
    fn remove(&mut self, slot: u32) -> bool {
        match self {
            Self::One(one) => return *one == slot,
            Self::Few(few) => {
                few.retain(|one| *one != slot);
                if let [one] = few[..] {
                    *self = Self::One(one);
                }
            }
            Self::Many(many) => {
                many.remove(&slot);
                if many.len() <= FEW / 2 {
                    *self = Self::Few(many.iter().copied().collect());
                } else if many.len() < many.capacity() / 8 {
                    many.shrink_to(many.len() * 2);
                }
            }
        }
        false
    }

    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        let (few, many) = match self {
            Self::One(one) => (std::slice::from_ref(one), None),
            Self::Few(few) => (&few[..], None),
            Self::Many(many) => (&[][..], Some(many)),
        };
        few.iter().chain(many.into_iter().flatten()).copied()
    }

    fn heap(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Few(few) => few.capacity() * size_of::<u32>(),
            Self::Many(many) => many.allocation_size(),
        }
    }
}

/// Owner's uid → slots.
#[derive(Debug, Default)]
pub(super) struct OwnerIndex {
    owners: HashMap<Uid, Slots>,
    /// Of the sets.
    heap: usize,
}

impl OwnerIndex {
    pub(super) fn slots(&self, owner: &Uid) -> impl Iterator<Item = u32> + use<'_> {
        self.owners.get(owner).into_iter().flat_map(Slots::iter)
    }

    /// The object in `slot` was `old` and is `new`.
    pub(super) fn update(&mut self, slot: u32, old: Option<&Object>, new: Option<&Object>) {
        let [old, new] = [old, new].map(|object| object.map_or(&[][..], Object::owners));
        // Nearly always.
        if old.iter().map(|owner| &owner.uid).eq(new.iter().map(|owner| &owner.uid)) {
            return;
        }
        for owner in old {
            let Some(slots) = self.owners.get_mut(&owner.uid) else { continue };
            self.heap -= slots.heap();
            if slots.remove(slot) {
                self.owners.remove(&owner.uid);
            } else {
                self.heap += slots.heap();
            }
        }
        for owner in new {
            let slots = self.owners.entry_ref(&owner.uid).or_insert(Slots::One(slot));
            self.heap -= slots.heap();
            slots.insert(slot);
            self.heap += slots.heap();
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.owners.allocation_size() + self.heap
    }
}

/// Label key → value → slots.
#[derive(Debug, Default)]
pub(super) struct LabelIndex {
    keys: HashMap<Box<str>, Values>,
    /// Of the values and their sets, apart from the tables.
    heap: usize,
}

#[derive(Debug, Default)]
struct Values {
    values: HashMap<Box<str>, Slots>,
    /// How many objects have the key.
    count: usize,
}

impl LabelIndex {
    /// How many objects the index gives for a requirement; none: it has no answer, because objects without the label match.
    pub(super) fn count(&self, requirement: &Requirement) -> Option<usize> {
        let of = |key: &str| self.keys.get(key);
        match requirement {
            Requirement::In(key, values) => {
                Some(of(key).map_or(0, |of| {
                    values.iter().filter_map(|value| of.values.get(value.as_str())).map(Slots::len).sum()
                }))
            }
            Requirement::Exists(key) | Requirement::Greater(key, _) | Requirement::Less(key, _) => {
                Some(of(key).map_or(0, |of| of.count))
            }
            Requirement::NotIn(..) | Requirement::Absent(_) => None,
        }
    }

    /// Slots of all objects that meet a requirement which has a [`count`](Self::count), and perhaps of others.
    pub(super) fn slots(&self, requirement: &Requirement) -> impl Iterator<Item = u32> {
        let (key, wanted) = match requirement {
            Requirement::In(key, values) | Requirement::NotIn(key, values) => (key, Some(values)),
            Requirement::Exists(key) | Requirement::Absent(key) => (key, None),
            Requirement::Greater(key, _) | Requirement::Less(key, _) => (key, None),
        };
        let values = self.keys.get(key.as_str()).map(|of| &of.values);
        let named = wanted.into_iter().flatten().filter_map(move |value| values?.get(value.as_str()));
        let all = values.filter(|_| wanted.is_none()).into_iter().flat_map(HashMap::values);
        named.chain(all).flat_map(Slots::iter)
    }

    /// The object in `slot` was `old` and is `new`.
    pub(super) fn update(&mut self, slot: u32, old: Option<&Object>, new: Option<&Object>) {
        let text = [old, new].map(|object| object.map_or("", Object::labels_json));
        // Nearly always.
        if text[0] == text[1] {
            return;
        }
        for (key, value) in old.into_iter().flat_map(Object::labels) {
            self.remove(&key, &value, slot);
        }
        for (key, value) in new.into_iter().flat_map(Object::labels) {
            self.insert(&key, &value, slot);
        }
    }

    fn insert(&mut self, key: &str, value: &str, slot: u32) {
        let of = match self.keys.get_mut(key) {
            Some(of) => of,
            None => self.keys.entry(key.into()).or_default(),
        };
        of.count += 1;
        let slots = match of.values.get_mut(value) {
            Some(slots) => slots,
            None => {
                self.heap += value.len();
                of.values.entry(value.into()).or_insert(Slots::One(slot))
            }
        };
        self.heap -= slots.heap();
        slots.insert(slot);
        self.heap += slots.heap();
    }

    fn remove(&mut self, key: &str, value: &str, slot: u32) {
        let Some(of) = self.keys.get_mut(key) else { return };
        let Some(slots) = of.values.get_mut(value) else { return };
        of.count -= 1;
        self.heap -= slots.heap();
        if !slots.remove(slot) {
            self.heap += slots.heap();
            return;
        }
        self.heap -= value.len();
        of.values.remove(value);
        if of.values.is_empty() {
            self.keys.remove(key);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let tables = self.keys.iter().map(|(key, of)| key.len() + of.values.allocation_size());
        self.keys.allocation_size() + tables.sum::<usize>() + self.heap
    }
}

#[cfg(test)]
pub(super) mod tests;
