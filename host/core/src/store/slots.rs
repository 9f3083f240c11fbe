//! Holds the objects of a [`Store`], each in a numbered slot that the key table and the table of namespaces refer to.
//!
//! ```text
//! key ───────► keys ──┐
//!                     ├─► slot ─► object          free: slots to reuse, the lowest first
//! namespace ─► names ─┘
//! ```
//!
//! Updates every index when an object enters or leaves. The caller has decided that it may.

use std::{hash::BuildHasher, ops::Bound, sync::Arc};

use hashbrown::DefaultHashBuilder;

use super::{
    Change, Slot, Store,
    set::{Order, Set},
};
use crate::{key::Key, object::Object};

impl Store {
    pub(super) fn in_order(&self, namespace: Option<&str>, after: Option<&Key>) -> impl Iterator<Item = u32> {
        let bounds = match (namespace, after) {
            (Some(namespace), _) => (Bound::Included(namespace), Bound::Included(namespace)),
            (None, Some(after)) => (Bound::Included(in_namespace(after)), Bound::Unbounded),
            (None, None) => (Bound::Unbounded, Bound::Unbounded),
        };
        let order = Order(&self.slots);
        let is_before = move |slot| after.is_some_and(|after| order.key(slot) <= after);
        self.names.range::<str, _>(bounds).flat_map(move |(_, slots)| slots.after(is_before))
    }

    pub(super) fn find(&self, namespace: &str, name: &str) -> Option<u32> {
        let is_it = |slot: &u32| {
            let key = self.object(*slot).key();
            &*key.name == name && in_namespace(key) == namespace
        };
        self.keys.find(hash(&self.hasher, namespace, name), is_it).copied()
    }

    pub(super) fn find_key(&self, key: &Key) -> Option<u32> {
        self.find(in_namespace(key), &key.name)
    }

    pub(super) fn object(&self, slot: u32) -> &Arc<Object> {
        &self.slots[slot as usize].as_ref().expect("tables name slots in use").object
    }

    /// Stores `object` in the slot of its key, or in a free one.
    pub(super) fn put(&mut self, slot: Option<u32>, mut object: Object) -> Change {
        let old = slot.map(|slot| self.object(slot).clone());
        match &old {
            Some(old) => object.share_with(old),
            None => {
                let namespace = self.names.get_key_value(in_namespace(object.key()));
                object.share_words(&self.of, namespace.map(|(namespace, _)| namespace));
            }
        }
        let new = Arc::new(object);
        self.object_bytes += new.bytes();
        let slot = match (&old, slot) {
            (Some(old), Some(slot)) => {
                self.object_bytes -= old.bytes();
                self.packing.left(slot, old);
                self.slots[slot as usize].as_mut().expect("slot is in use").object = new.clone();
                slot
            }
            _ => self.put_in_free_slot(&new),
        };
        self.packing.entered(slot, &new);
        let order = Order(&self.slots);
        self.owners.update(slot, old.as_deref(), Some(&new), order);
        self.labels.update(slot, old.as_deref(), Some(&new), order);
        self.fields.update(slot, Some(&new), order);
        Change { old, new: Some(new), missed: false }
    }

    fn put_in_free_slot(&mut self, object: &Arc<Object>) -> u32 {
        // No list has named it yet.
        let held = Some(Slot { object: object.clone(), mark: self.mark.wrapping_sub(1) });
        let slot = match self.free.pop_first() {
            Some(slot) => {
                self.slots[slot as usize] = held;
                slot
            }
            None => {
                self.slots.push(held);
                u32::try_from(self.slots.len() - 1).expect("memory ends before 4 billion objects")
            }
        };
        let key = object.key();
        let (slots, hasher) = (&self.slots, &self.hasher);
        let rehash = |slot: &u32| {
            let held = slots[*slot as usize].as_ref().expect("tables name slots in use");
            hash_key(hasher, held.object.key())
        };
        self.keys.insert_unique(hash_key(hasher, key), slot, rehash);
        match self.names.get_mut(in_namespace(key)) {
            Some(names) => names.insert(slot, Order(&self.slots)),
            None => drop(self.names.insert(key.namespace.clone().unwrap_or_default(), Set::One(slot))),
        }
        slot
    }

    /// Returns unused memory. Called after each removal; the removals since have paid for the move.
    fn give_back(&mut self) {
        while let Some(None) = self.slots.last() {
            self.slots.pop();
            self.free.pop_last();
        }
        if self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to(self.slots.len() * 2);
        }
        if self.keys.len() < self.keys.capacity() / 8 {
            let (slots, hasher) = (&self.slots, &self.hasher);
            self.keys.shrink_to(self.keys.len() * 2, |slot| hash_key(hasher, Order(slots).key(*slot)));
        }
    }

    /// Removes the object from its slot and from all tables.
    pub(super) fn take(&mut self, slot: u32) -> Arc<Object> {
        let object = self.object(slot).clone();
        // Indexes find it by its key, which the slot still holds.
        let order = Order(&self.slots);
        self.owners.update(slot, Some(&object), None, order);
        self.labels.update(slot, Some(&object), None, order);
        self.fields.update(slot, None, order);
        if let Ok(entry) = self.keys.find_entry(hash_key(&self.hasher, object.key()), |other| *other == slot) {
            entry.remove();
        }
        let namespace = in_namespace(object.key());
        if self.names.get_mut(namespace).is_some_and(|names| names.remove(slot, order)) {
            self.names.remove(namespace);
        }
        self.slots[slot as usize] = None;
        if let Some(replace) = &mut self.replace {
            replace.older.remove(&slot);
        }
        self.packing.left(slot, &object);
        self.free.insert(slot);
        self.give_back();
        self.object_bytes -= object.bytes();
        object
    }
}

/// Returns the namespace; empty if there is none.
pub(super) fn in_namespace(key: &Key) -> &str {
    key.namespace.as_deref().unwrap_or("")
}

fn hash(hasher: &DefaultHashBuilder, namespace: &str, name: &str) -> u64 {
    hasher.hash_one((namespace, name))
}

fn hash_key(hasher: &DefaultHashBuilder, key: &Key) -> u64 {
    hash(hasher, in_namespace(key), &key.name)
}
