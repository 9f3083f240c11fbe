//! Uids of objects that this host deleted, while events of them may still be on their way.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::object::Uid;

/// How many uids are remembered: more than the writes of a busy host in the time a watch may lag. Where the DELETED came
/// before the host was told of its success, a uid stays until it is pushed out or listed away.
const LIMIT: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct Deleted {
    /// The mark of the last list that had begun.
    uids: HashMap<Uid, u32>,
    /// The same, oldest first, and some that are forgotten already.
    order: VecDeque<Uid>,
}

impl Deleted {
    pub(super) fn contains(&self, uid: &Uid) -> bool {
        !self.uids.is_empty() && self.uids.contains_key(uid)
    }

    pub(super) fn remember(&mut self, uid: &Uid, mark: u32) {
        if self.uids.insert(uid.clone(), mark).is_some() {
            return;
        }
        self.order.push_back(uid.clone());
        if self.order.len() > LIMIT
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }

    pub(super) fn forget(&mut self, uid: &Uid) {
        if self.uids.is_empty() || self.uids.remove(uid).is_none() {
            return;
        }
        while self.order.front().is_some_and(|oldest| !self.uids.contains_key(oldest)) {
            self.order.pop_front();
        }
    }

    /// A list is complete that was the `mark`th to begin. A list asked for after the delete does not name the object, and the
    /// watch that follows it brings no event of it. Whether this one was asked for before or after the delete is not
    /// known; the one before it was not asked for later than this.
    pub(super) fn finish_list(&mut self, mark: u32) {
        self.uids.retain(|_, at| *at == mark || at.wrapping_add(1) == mark);
        self.order.retain(|uid| self.uids.contains_key(uid));
        self.uids.shrink_to_fit();
        self.order.shrink_to_fit();
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn bytes(&self) -> usize {
        self.uids.allocation_size() + self.order.capacity() * size_of::<Uid>()
    }
}
