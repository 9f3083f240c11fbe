//! Indexes by field path: from a value at a path to the slots of the objects that have it.
//!
//! The index keeps each object's indexed values. So an update needs one walk over the new text for all paths, and does
//! not read the old text.

use std::{borrow::Cow, sync::Arc};

use hashbrown::HashMap;

use super::{
    Slot,
    index::{Progress, shrink},
    set::{Order, Set},
};
use crate::{
    field::{FieldPath, FieldSet},
    object::{ARC, Object},
};

#[derive(Debug, Default)]
pub(super) struct FieldIndexes {
    indexes: Vec<FieldIndex>,
    /// The paths of all indexes, in the same order.
    paths: FieldSet,
}

/// A dropped index; empty if others still use it.
#[derive(Debug)]
#[must_use = "otherwise the index is freed here, perhaps under a lock"]
pub struct DroppedIndex {
    _index: Option<FieldIndex>,
}

#[derive(Debug)]
pub(super) struct FieldIndex {
    path: FieldPath,
    users: u32,
    values: HashMap<Arc<str>, Set>,
    by_slot: Vec<Values>,
    progress: Progress,
    /// Bytes of values, their sets and [`Values`], without the tables.
    heap: usize,
}

/// The values of one object.
#[derive(Debug)]
enum Values {
    /// Nearly every path without `[*]` has one value.
    One(Arc<str>),
    /// In ascending order.
    Several(Box<[Arc<str>]>),
}

impl Values {
    fn none() -> Self {
        Self::Several(Box::default())
    }

    fn values(&self) -> &[Arc<str>] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Several(values) => values,
        }
    }

    fn heap(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Several(values) => size_of_val(&**values),
        }
    }
}

impl FieldIndexes {
    pub(super) fn add(&mut self, path: &FieldPath) {
        if let Some(index) = self.indexes.iter_mut().find(|index| index.path == *path) {
            index.users += 1;
            return;
        }
        self.indexes.push(FieldIndex {
            path: path.clone(),
            users: 1,
            values: HashMap::new(),
            by_slot: Vec::new(),
            progress: Progress::default(),
            heap: 0,
        });
        self.name_paths();
    }

    pub(super) fn drop(&mut self, path: &FieldPath) -> Option<DroppedIndex> {
        let at = self.indexes.iter().position(|index| index.path == *path)?;
        self.indexes[at].users -= 1;
        if self.indexes[at].users > 0 {
            return Some(DroppedIndex { _index: None });
        }
        let index = self.indexes.swap_remove(at);
        self.name_paths();
        Some(DroppedIndex { _index: Some(index) })
    }

    fn name_paths(&mut self) {
        self.paths = FieldSet::new(self.indexes.iter().map(|index| index.path.clone()));
    }

    /// Takes up to `work` more slots into incomplete indexes. Returns `true` if all are complete.
    pub(super) fn build(&mut self, slots: &[Option<Slot>], work: &mut usize) -> bool {
        for index in &mut self.indexes {
            if index.progress == Progress::Done {
                continue;
            }
            let path = FieldSet::new([index.path.clone()]);
            for (slot, held) in index.progress.go_on(slots, work) {
                let json = held.object.json();
                let values = found(&path, &json).pop().unwrap_or_default();
                index.set(slot, &values, Order(slots));
            }
        }
        self.indexes.iter().all(|index| index.progress == Progress::Done)
    }

    pub(super) fn get(&self, path: &FieldPath) -> Option<&FieldIndex> {
        self.indexes.iter().find(|index| index.path == *path)
    }

    /// Records that the object in `slot` is now `new`.
    pub(super) fn update(&mut self, slot: u32, new: Option<&Object>, order: Order<'_>) {
        if self.indexes.is_empty() {
            return;
        }
        let json = new.map(Object::json);
        let mut found = json.as_deref().map_or(Vec::new(), |json| found(&self.paths, json)).into_iter();
        for index in &mut self.indexes {
            let values = found.next().unwrap_or_default();
            let comes_later = !index.progress.has(slot);
            if !comes_later {
                index.set(slot, &values, order);
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let of = |index: &FieldIndex| {
            index.values.allocation_size() + index.by_slot.capacity() * size_of::<Values>() + index.heap
        };
        self.indexes.capacity() * size_of::<FieldIndex>() + self.indexes.iter().map(of).sum::<usize>()
    }
}

/// Returns the values of each path in the text of an object.
fn found<'a>(paths: &FieldSet, json: &'a str) -> Vec<Vec<Cow<'a, str>>> {
    // The text was checked when it was parsed, so this cannot fail.
    paths.values(json).unwrap_or_default()
}

impl FieldIndex {
    pub(super) fn is_done(&self) -> bool {
        self.progress == Progress::Done
    }

    /// Returns the objects that have `value` at the path.
    pub(super) fn slots(&self, value: &str) -> Option<&Set> {
        self.values.get(value)
    }

    /// Returns `true` if the object of that slot has `value` at the path.
    pub(super) fn has(&self, slot: u32, value: &str) -> bool {
        self.by_slot.get(slot as usize).is_some_and(|held| held.values().iter().any(|one| **one == *value))
    }

    fn set(&mut self, slot: u32, new: &[Cow<'_, str>], order: Order<'_>) {
        let at = slot as usize;
        if self.by_slot.len() <= at {
            if new.is_empty() {
                return;
            }
            self.by_slot.resize_with(at + 1, Values::none);
        }
        // The common case.
        if self.by_slot[at].values().iter().map(|value| &**value).eq(new.iter().map(|value| &**value)) {
            return;
        }
        let old = std::mem::replace(&mut self.by_slot[at], Values::none());
        self.heap -= old.heap();
        for value in old.values() {
            if new.binary_search_by(|new| (**new).cmp(value)).is_err() {
                self.remove(value, slot, order);
            }
        }
        let values = new.iter().map(|value| self.insert(value, slot, order));
        let held = match new.len() {
            1 => values.last().map_or_else(Values::none, Values::One),
            _ => Values::Several(values.collect()),
        };
        self.heap += held.heap();
        self.by_slot[at] = held;
        while self.by_slot.pop_if(|last| last.values().is_empty()).is_some() {}
        if self.by_slot.len() < self.by_slot.capacity() / 4 {
            self.by_slot.shrink_to(self.by_slot.len() * 2);
        }
    }

    /// Adds the slot under `value`, and returns the table's copy of `value`.
    fn insert(&mut self, value: &str, slot: u32, order: Order<'_>) -> Arc<str> {
        if let Some((text, _)) = self.values.get_key_value(value) {
            let text = text.clone();
            if let Some(set) = self.values.get_mut(value) {
                self.heap -= set.heap();
                set.insert(slot, order);
                self.heap += set.heap();
            }
            return text;
        }
        let text: Arc<str> = value.into();
        self.heap += ARC + text.len();
        self.values.insert(text.clone(), Set::One(slot));
        text
    }

    fn remove(&mut self, value: &str, slot: u32, order: Order<'_>) {
        let Some(set) = self.values.get_mut(value) else { return };
        self.heap -= set.heap();
        if !set.remove(slot, order) {
            self.heap += set.heap();
            return;
        }
        self.heap -= ARC + value.len();
        self.values.remove(value);
        shrink(&mut self.values);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::store::set;

    /// Checks the indexes against ones built anew from the slots, and their counts.
    pub(in crate::store) fn check(indexes: &FieldIndexes, slots: &[Option<Slot>]) {
        assert!(indexes.paths.paths().iter().eq(indexes.indexes.iter().map(|index| &index.path)));
        for index in &indexes.indexes {
            let end = if let Progress::Below(below) = index.progress { below } else { usize::MAX }.min(slots.len());
            let mut expected: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
            let path = FieldSet::new([index.path.clone()]);
            for (slot, held) in (0..).zip(&slots[..end]) {
                let json = held.as_ref().map(|held| held.object.json());
                let values = json.as_deref().map_or(Vec::new(), |json| found(&path, json).remove(0));
                let kept = index.by_slot.get(slot as usize).map_or(&[][..], Values::values);
                assert!(kept.iter().map(|value| &**value).eq(values.iter().map(|value| &**value)));
                for value in values {
                    assert!(index.has(slot, &value));
                    expected.entry(value.into_owned()).or_default().insert(slot);
                }
            }
            let of = |set| set::tests::check(set, Order(slots)).into_iter().collect();
            let held = index.values.iter().map(|(value, set)| (value.to_string(), of(set)));
            assert_eq!(held.collect::<BTreeMap<_, BTreeSet<u32>>>(), expected);
            let texts = index.values.iter().map(|(value, set)| ARC + value.len() + set.heap()).sum::<usize>();
            assert_eq!(index.heap, texts + index.by_slot.iter().map(Values::heap).sum::<usize>());
        }
    }
}
