//! Compresses the texts of a store, in steps that lock it briefly.
//!
//! An object is first held as it came, because routes and subscribers read it at once. Later a background thread asks
//! for [`Work`], runs it without the store, and returns the result:
//!
//! ```text
//!  put ─► plain ──┐  Store::packing     Work::run        Store::packed
//!                 └───────────────────► train, pack ───► packed
//!                   lock, to read       no lock, long    lock, to write
//! ```
//!
//! Objects that were replaced or deleted in between are skipped.

use std::sync::Arc;

use hashbrown::HashSet;

use super::Store;
use crate::{dictionary::Dictionary, object::Object};

/// Bytes of objects below which nothing is packed. A dictionary and its tables take some 500 kB, so the gain would be
/// small.
const MIN_BYTES: usize = 1 << 20;

/// Objects of an unfinished list that suffice for a first training: a page or two.
const FIRST: usize = 1_000;

/// Growth of the store after which the dictionary is trained again, as later objects may differ from the first.
const GROWTH: usize = 4;

/// Objects to train with, taken from all over the store.
const SAMPLES: usize = 4 * FIRST;

/// Objects packed at once: 1 to 2 ms of work, and some ten microseconds under the lock to replace them.
const BATCH: usize = 128;

/// The state of compression in a store.
#[derive(Debug, Default)]
pub(super) struct Packing {
    on: bool,
    /// Slots whose texts wait to be packed.
    waiting: HashSet<u32>,
    dictionary: Option<Arc<Dictionary>>,
    /// Number of objects at the last training, or attempt.
    trained_at: usize,
    /// Dictionaries in use, and the number of objects packed with each. One more for every time the store grew by
    /// [`GROWTH`].
    used: Vec<(Arc<Dictionary>, usize)>,
}

impl Packing {
    pub(super) fn entered(&mut self, slot: u32, object: &Object) {
        if let Some(dictionary) = object.dictionary() {
            match self.used.iter_mut().find(|(known, _)| Arc::ptr_eq(known, dictionary)) {
                Some((_, count)) => *count += 1,
                None => self.used.push((dictionary.clone(), 1)),
            }
        } else if self.on {
            self.waiting.insert(slot);
        }
    }

    pub(super) fn left(&mut self, slot: u32, object: &Object) {
        self.done(slot);
        let Some(dictionary) = object.dictionary() else { return };
        if let Some(at) = self.used.iter().position(|(known, _)| Arc::ptr_eq(known, dictionary)) {
            self.used[at].1 -= 1;
            if self.used[at].1 == 0 {
                self.used.swap_remove(at);
            }
        }
    }

    /// Takes `slot` off the list of waiting ones.
    fn done(&mut self, slot: u32) {
        self.waiting.remove(&slot);
        if self.waiting.is_empty() {
            // It grew to hold a whole list.
            self.waiting.shrink_to(FIRST);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let current = self.dictionary.iter().filter(|current| !self.used.iter().any(|(d, _)| Arc::ptr_eq(d, current)));
        let dictionaries = self.used.iter().map(|(dictionary, _)| dictionary).chain(current);
        self.waiting.allocation_size() + dictionaries.map(|dictionary| dictionary.bytes()).sum::<usize>()
    }
}

/// A step of compression, to be run without the store.
#[derive(Debug)]
pub struct Work(Task);

#[derive(Debug)]
enum Task {
    Train(Vec<Arc<Object>>),
    Pack(Arc<Dictionary>, Vec<(u32, Arc<Object>)>),
}

/// The result of [`Work`], for [`Store::packed`].
#[derive(Debug)]
pub struct Packed(Outcome);

#[derive(Debug)]
enum Outcome {
    Trained(Option<Arc<Dictionary>>),
    /// Slots, their objects, and the packed form; `None` if it would not be smaller.
    Packed(Vec<(u32, Arc<Object>, Option<Object>)>),
}

impl Work {
    /// Runs the step: some milliseconds to pack, up to a second to train. For a background thread.
    pub fn run(self) -> Packed {
        Packed(match self.0 {
            Task::Train(samples) => {
                let dictionary = Dictionary::train(samples.iter().map(|object| object.json()));
                Outcome::Trained(dictionary.map(Arc::new))
            }
            Task::Pack(dictionary, objects) => {
                let pack = |(slot, object): (u32, Arc<Object>)| {
                    let packed = object.pack(&dictionary);
                    (slot, object, packed)
                };
                Outcome::Packed(objects.into_iter().map(pack).collect())
            }
        })
    }
}

impl Store {
    /// Turns compression on or off. Packed texts stay packed until they are replaced.
    pub fn set_compressed(&mut self, on: bool) {
        if on == self.packing.on {
            return;
        }
        let used = std::mem::take(&mut self.packing.used);
        self.packing = Packing { on, used, ..Packing::default() };
        if on {
            let slots = (0_u32..).zip(&self.slots);
            let plain = slots.filter(|(_, held)| held.as_ref().is_some_and(|held| held.object.dictionary().is_none()));
            self.packing.waiting = plain.map(|(slot, _)| slot).collect();
        }
    }

    /// Returns the next step of compression, or `None` if there is nothing to do. Give its result to
    /// [`packed`](Self::packed) before asking again. Ask after changes, as often as suits.
    ///
    /// ```
    /// # use pilothouse_core::{key::TypeMeta, store::Store};
    /// let mut store = Store::new(TypeMeta::new("v1", "Secret"));
    /// store.set_compressed(true);
    /// // … changes …
    /// while let Some(work) = store.packing() { // with the store's lock, to read
    ///     let mut done = work.run(); // without it
    ///     store.packed(&mut done); // with it, to write
    /// }
    /// ```
    pub fn packing(&self) -> Option<Work> {
        let Packing { on, waiting, dictionary, trained_at, .. } = &self.packing;
        if !on || waiting.is_empty() {
            return None;
        }
        let due = match dictionary {
            None => self.object_bytes >= MIN_BYTES && (self.replace.is_none() || self.len() >= FIRST),
            Some(_) => true,
        };
        if due && self.len() >= GROWTH * trained_at {
            return Some(Work(Task::Train(self.samples())));
        }
        let dictionary = dictionary.clone()?;
        let batch = waiting.iter().take(BATCH).map(|slot| (*slot, self.object(*slot).clone())).collect();
        Some(Work(Task::Pack(dictionary, batch)))
    }

    /// Replaces objects by their packed form, if they are still the stored ones. No change is reported.
    ///
    /// `done` then holds the replaced objects; drop it without the lock.
    pub fn packed(&mut self, done: &mut Packed) {
        if !self.packing.on {
            return;
        }
        match &mut done.0 {
            Outcome::Trained(dictionary) => {
                self.packing.trained_at = self.len().max(1);
                if dictionary.is_some() {
                    self.packing.dictionary = dictionary.take();
                }
            }
            Outcome::Packed(objects) => {
                for (slot, was, packed) in objects {
                    self.pack_slot(*slot, was, packed.take());
                }
            }
        }
    }

    fn pack_slot(&mut self, slot: u32, was: &Arc<Object>, packed: Option<Object>) {
        let held = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        let Some(held) = held.filter(|held| Arc::ptr_eq(&held.object, was)) else { return };
        self.packing.done(slot);
        if let Some(packed) = packed {
            self.object_bytes = self.object_bytes + packed.bytes() - was.bytes();
            self.packing.entered(slot, &packed);
            held.object = Arc::new(packed);
        }
    }

    /// Returns objects from all over the store.
    fn samples(&self) -> Vec<Arc<Object>> {
        let step = (self.slots.len() / SAMPLES).max(1);
        let held = self.slots.iter().step_by(step).flatten();
        held.map(|held| held.object.clone()).take(SAMPLES).collect()
    }
}

#[cfg(test)]
mod tests;
