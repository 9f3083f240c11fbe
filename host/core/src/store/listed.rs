//! The order of a list, for objects that come in order and for those that an index gives.

use std::{cmp::Ordering, collections::BinaryHeap, sync::Arc};

use crate::object::Object;

/// Objects of a list, by the way they were found.
pub(super) enum Listed<'a, I> {
    InOrder(I),
    Found(BinaryHeap<ByKey<'a>>),
}

impl<'a, I: Iterator<Item = &'a Arc<Object>>> Iterator for Listed<'a, I> {
    type Item = &'a Arc<Object>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::InOrder(objects) => objects.next(),
            Self::Found(objects) => objects.pop().map(|ByKey(object)| object),
        }
    }
}

/// Greater is what comes earlier: a heap gives the greatest first.
pub(super) struct ByKey<'a>(pub(super) &'a Arc<Object>);

impl Ord for ByKey<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.key().cmp(self.0.key())
    }
}

impl PartialOrd for ByKey<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByKey<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByKey<'_> {}
