//! Sets of numbers of keys and dependencies. Most have one number, a few have very many.

use hashbrown::HashSet;

/// Size above which a set uses a hash table.
const FEW: usize = 32;

/// A set that is never empty: the caller drops it with its last number.
#[derive(Debug)]
pub(super) enum Ids {
    One(u32),
    Few(Vec<u32>),
    Many(Box<HashSet<u32>>),
}

impl Ids {
    pub(super) fn insert(&mut self, id: u32) {
        match self {
            Self::One(one) if *one == id => {}
            Self::One(one) => *self = Self::Few(vec![*one, id]),
            Self::Few(few) if few.contains(&id) => {}
            Self::Few(few) if few.len() < FEW => few.push(id),
            Self::Few(few) => *self = Self::Many(Box::new(few.iter().copied().chain([id]).collect())),
            Self::Many(many) => {
                many.insert(id);
            }
        }
    }

    /// Returns `true` if the set would now be empty and must be dropped.
    pub(super) fn remove(&mut self, id: u32) -> bool {
        match self {
            Self::One(one) => return *one == id,
            Self::Few(few) => {
                few.retain(|one| *one != id);
                if let [one] = few[..] {
                    *self = Self::One(one);
                }
            }
            Self::Many(many) => {
                many.remove(&id);
                if many.len() <= FEW / 2 {
                    *self = Self::Few(many.iter().copied().collect());
                } else if many.len() < many.capacity() / 8 {
                    many.shrink_to(many.len() * 2);
                }
            }
        }
        false
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        match self {
            Self::One(one) => *one == id,
            Self::Few(few) => few.contains(&id),
            Self::Many(many) => many.contains(&id),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let (few, many) = match self {
            Self::One(one) => (std::slice::from_ref(one), None),
            Self::Few(few) => (&few[..], None),
            Self::Many(many) => (&[][..], Some(many)),
        };
        few.iter().chain(many.into_iter().flat_map(|many| many.iter())).copied()
    }

    /// Returns the bytes on the heap.
    pub(super) fn heap(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Few(few) => few.capacity() * size_of::<u32>(),
            Self::Many(many) => size_of::<HashSet<u32>>() + many.allocation_size(),
        }
    }
}
