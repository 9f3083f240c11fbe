//! Packing the texts of a store, in steps that hold its lock briefly.
//!
//! What comes in is held as it came: routes and subscribers read it while it is news. Later somebody with time to spare asks
//! for [`Work`], does it without the store, and gives the result back:
//!
//! ```text
//!  put ─► plain ──┐  Store::packing     Work::run        Store::packed
//!                 └───────────────────► train, pack ───► packed
//!                   lock, to read       no lock, long    lock, to write
//! ```
//!
//! What was replaced or deleted between the two stays as it is.

use std::sync::Arc;

use hashbrown::HashSet;

use super::Store;
use crate::{dictionary::Dictionary, object::Object};

/// Objects that together are smaller are left as they are: a dictionary and its tables take some 500 kB, and nobody would notice
/// what is left of the gain.
const BORDER: usize = 1 << 20;

/// As many objects of a list that is still going on are enough to begin with: a page or two.
const FIRST: usize = 1_000;

/// A dictionary serves until the store has grown so many times over: what came first need not be like what came later.
const GROWTH: usize = 4;

/// From how many objects to learn, taken from all over the store.
const SAMPLES: usize = 4 * FIRST;

/// Objects packed at once: 1 to 2 ms of work, and some ten microseconds under the lock to put them into their places.
const BATCH: usize = 128;

/// How the texts of a store are kept.
#[derive(Debug, Default)]
pub(super) struct Packing {
    on: bool,
    /// Slots whose texts are to be packed.
    waiting: HashSet<u32>,
    dictionary: Option<Arc<Dictionary>>,
    /// How many objects there were when it was trained, or was to be.
    trained_at: usize,
    /// What objects of the store are packed with, and how many are. As many as times that the store grew so much.
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

    /// Nothing is to be done in `slot` any more.
    fn done(&mut self, slot: u32) {
        self.waiting.remove(&slot);
        if self.waiting.is_empty() {
            // After a list it has room for all.
            self.waiting.shrink_to(FIRST);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let current = self.dictionary.iter().filter(|current| !self.used.iter().any(|(d, _)| Arc::ptr_eq(d, current)));
        let dictionaries = self.used.iter().map(|(dictionary, _)| dictionary).chain(current);
        self.waiting.allocation_size() + dictionaries.map(|dictionary| dictionary.bytes()).sum::<usize>()
    }
}

/// Something to do for a store, apart from it.
#[derive(Debug)]
pub struct Work(Task);

#[derive(Debug)]
enum Task {
    Train(Vec<Arc<Object>>),
    Pack(Arc<Dictionary>, Vec<(u32, Arc<Object>)>),
}

/// What came of [`Work`], for [`Store::packed`].
#[derive(Debug)]
pub struct Packed(Outcome);

#[derive(Debug)]
enum Outcome {
    Trained(Option<Arc<Dictionary>>),
    /// Each with its slot, and none where it is to stay as it is.
    Packed(Vec<(u32, Arc<Object>, Option<Object>)>),
}

impl Work {
    /// Does it: some milliseconds to pack, up to a second to train. For a thread on which nobody waits.
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
    /// Says that texts are to be kept compressed from now on, or as they come. What is packed stays so until it is replaced.
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

    /// The next thing to do so that texts are compressed; none for now. One at a time: its result first, by
    /// [`packed`](Self::packed). To be asked after changes, as often as suits: what waits is read without being unpacked.
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
            None => self.object_bytes >= BORDER && (self.replace.is_none() || self.len() >= FIRST),
            Some(_) => true,
        };
        if due && self.len() >= GROWTH * trained_at {
            return Some(Work(Task::Train(self.samples())));
        }
        let dictionary = dictionary.clone()?;
        let batch = waiting.iter().take(BATCH).map(|slot| (*slot, self.object(*slot).clone())).collect();
        Some(Work(Task::Pack(dictionary, batch)))
    }

    /// Takes the result in: what is still held as it was given out is replaced by the same object, packed. No change to anybody.
    ///
    /// `done` then holds what was replaced: to be dropped where no lock is held.
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

    /// Objects from all over the store.
    fn samples(&self) -> Vec<Arc<Object>> {
        let step = (self.slots.len() / SAMPLES).max(1);
        let held = self.slots.iter().step_by(step).flatten();
        held.map(|held| held.object.clone()).take(SAMPLES).collect()
    }
}

#[cfg(test)]
mod tests;
