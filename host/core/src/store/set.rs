//! Sets of slots in the order of their objects' keys, so that reads need no sorting and a page can begin anywhere.
//!
//! ```text
//! One(7)      Few[2 9 4]      Many[[2 9 4 …] [8 1 …] [5 …]]      each in the order of keys, not of numbers
//! ```
//!
//! Most sets have one slot, a few have very many. A slot costs 4 to 16 bytes, and an insertion about twenty comparisons
//! of keys. An object that sorts last, as in a list, costs one comparison.

use super::{Key, Slot};

/// The keys of objects by their slots.
#[derive(Clone, Copy)]
pub(super) struct Order<'a>(pub(super) &'a [Option<Slot>]);

impl<'a> Order<'a> {
    pub(super) fn key(self, slot: u32) -> &'a Key {
        self.0[slot as usize].as_ref().expect("indexes name slots in use").object.key()
    }
}

/// Largest number of slots in a chunk. An insertion moves at most a kilobyte.
const CHUNK: usize = 256;

/// Smallest growth of a small set. There is one such set per owner and label value; doubling would leave a third of
/// their memory unused.
const STEP: usize = 4;

/// Slots in the order of keys. Never empty between calls.
#[derive(Debug)]
pub(super) enum Set {
    One(u32),
    /// From two to [`CHUNK`] slots.
    Few(Vec<u32>),
    /// Chunks that are never empty; each has a capacity of [`CHUNK`].
    Many(Vec<Vec<u32>>),
}

impl Set {
    /// The slot must be in use.
    pub(super) fn insert(&mut self, slot: u32, order: Order<'_>) {
        match self {
            Self::One(one) if *one == slot => {}
            Self::One(one) if order.key(*one) < order.key(slot) => *self = Self::Few(vec![*one, slot]),
            Self::One(one) => *self = Self::Few(vec![slot, *one]),
            Self::Few(few) => {
                let Err(place) = find(few, slot, order) else { return };
                if few.len() < CHUNK {
                    if few.len() == few.capacity() {
                        few.reserve_exact((few.len() / 2).clamp(STEP, CHUNK - few.len()));
                    }
                    few.insert(place, slot);
                } else {
                    *self = Self::Many(vec![chunk(few)]);
                    self.insert(slot, order);
                }
            }
            Self::Many(chunks) => {
                let at = chunk_of(chunks, slot, order);
                let Err(place) = find(&chunks[at], slot, order) else { return };
                if chunks[at].len() < CHUNK {
                    chunks[at].insert(place, slot);
                } else if place == CHUNK {
                    // Insertion in order leaves full chunks behind.
                    chunks.insert(at + 1, chunk(&[slot]));
                } else {
                    let upper = chunk(&chunks[at][CHUNK / 2..]);
                    chunks[at].truncate(CHUNK / 2);
                    chunks.insert(at + 1, upper);
                    let (at, place) = if place > CHUNK / 2 { (at + 1, place - CHUNK / 2) } else { (at, place) };
                    chunks[at].insert(place, slot);
                }
            }
        }
    }

    /// Returns `true` if the set is now empty and must be dropped. The slot must still be in use.
    pub(super) fn remove(&mut self, slot: u32, order: Order<'_>) -> bool {
        match self {
            Self::One(one) => return *one == slot,
            Self::Few(few) => {
                if let Ok(place) = find(few, slot, order) {
                    few.remove(place);
                }
                if let [one] = few[..] {
                    *self = Self::One(one);
                } else if few.len() < few.capacity() / 4 {
                    few.shrink_to(few.len() * 2);
                }
            }
            Self::Many(chunks) => {
                let at = chunk_of(chunks, slot, order);
                let Ok(place) = find(&chunks[at], slot, order) else { return false };
                chunks[at].remove(place);
                if chunks[at].len() < CHUNK / 4 {
                    merge(chunks, at);
                }
                if let [last] = &chunks[..]
                    && last.len() <= CHUNK / 2
                {
                    *self = Self::Few(last.clone());
                }
            }
        }
        false
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Few(few) => few.len(),
            Self::Many(chunks) => chunks.iter().map(Vec::len).sum(),
        }
    }

    /// Returns all slots, in the order of keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + use<'_> {
        let (few, many) = match self {
            Self::One(one) => (std::slice::from_ref(one), &[][..]),
            Self::Few(few) => (&few[..], &[][..]),
            Self::Many(chunks) => (&[][..], &chunks[..]),
        };
        few.iter().chain(many.iter().flatten()).copied()
    }

    /// Returns the slots in the order of keys, without those at the beginning for which `is_before` holds.
    pub(super) fn after(&self, is_before: impl Fn(u32) -> bool) -> impl Iterator<Item = u32> {
        let rest = |chunk: &[u32]| chunk.partition_point(|slot| is_before(*slot));
        let (first, others) = match self {
            Self::One(one) => (std::slice::from_ref(one), &[][..]),
            Self::Few(few) => (&few[..], &[][..]),
            Self::Many(chunks) => {
                let at = chunks.partition_point(|chunk| chunk.last().is_some_and(|slot| is_before(*slot)));
                (chunks.get(at).map_or(&[][..], |chunk| &chunk[..]), chunks.get(at + 1..).unwrap_or(&[]))
            }
        };
        first[rest(first)..].iter().chain(others.iter().flatten()).copied()
    }

    pub(super) fn heap(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Few(few) => few.capacity() * size_of::<u32>(),
            Self::Many(chunks) => chunks.capacity() * size_of::<Vec<u32>>() + chunks.len() * CHUNK * size_of::<u32>(),
        }
    }
}

fn chunk(slots: &[u32]) -> Vec<u32> {
    let mut chunk = Vec::with_capacity(CHUNK);
    chunk.extend_from_slice(slots);
    chunk
}

/// Returns the position of the slot, or where to insert it.
fn find(chunk: &[u32], slot: u32, order: Order<'_>) -> Result<usize, usize> {
    let key = order.key(slot);
    if chunk.last().is_some_and(|last| *last != slot && order.key(*last) < key) {
        return Err(chunk.len());
    }
    chunk.binary_search_by(|other| if *other == slot { std::cmp::Ordering::Equal } else { order.key(*other).cmp(key) })
}

/// Returns the chunk for the slot: the last one that begins no later.
fn chunk_of(chunks: &[Vec<u32>], slot: u32, order: Order<'_>) -> usize {
    let key = order.key(slot);
    let begins = |chunk: &Vec<u32>| chunk.first().is_some_and(|first| *first == slot || order.key(*first) <= key);
    if chunks.last().is_some_and(begins) {
        return chunks.len() - 1;
    }
    chunks.partition_point(begins).saturating_sub(1)
}

/// Joins a chunk that has become small with a neighbour that is at most half full. Other neighbours are fuller, so that
/// chunks stay a quarter full on average.
fn merge(chunks: &mut Vec<Vec<u32>>, at: usize) {
    let mut neighbours = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
    let small = |other: &usize| chunks.get(*other).is_some_and(|chunk| chunk.len() <= CHUNK / 2);
    if let Some(other) = neighbours.find(small) {
        let upper = chunks.remove(at.max(other));
        chunks[at.min(other)].extend_from_slice(&upper);
    } else if chunks[at].is_empty() {
        chunks.remove(at);
    }
    if chunks.len() < chunks.capacity() / 4 {
        chunks.shrink_to(chunks.len() * 2);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Checks order and chunks, and returns the slots.
    pub(in crate::store) fn check(set: &Set, order: Order<'_>) -> Vec<u32> {
        let slots: Vec<u32> = set.iter().collect();
        assert!(slots.is_sorted_by(|a, b| order.key(*a) < order.key(*b)), "in the order of keys");
        assert_eq!(slots.len(), set.len());
        match set {
            Set::One(_) => {}
            Set::Few(few) => assert!((2..=CHUNK).contains(&few.len())),
            Set::Many(chunks) => {
                assert!(chunks.iter().all(|chunk| (1..=CHUNK).contains(&chunk.len()) && chunk.capacity() == CHUNK));
                assert!(slots.len() * 8 > chunks.len() * CHUNK, "{} slots in {} chunks", slots.len(), chunks.len());
            }
        }
        slots
    }
}
