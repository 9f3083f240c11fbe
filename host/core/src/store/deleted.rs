//! Remembers this host's own deletes while older events may still arrive: those of the deleted object, and those of
//! earlier objects of its name that other clients deleted.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::{
    key::Key,
    object::{Object, ResourceVersion, Uid},
};

/// Uids that are remembered: more than a busy host deletes in the time that a watch may lag. If a DELETED event came
/// before the answer to the delete, its uid stays until it is pushed out or a list ends.
const LIMIT: usize = 8_192;

#[derive(Debug, Default)]
pub(super) struct Deleted {
    uids: HashMap<Uid, Delete>,
    /// For keys whose object was deleted, the version up to which events are ignored.
    floors: HashMap<Key, Floor>,
    /// For keys whose object left the selector by an own write, the version of that write. Older events are ignored.
    left: HashMap<Key, ResourceVersion>,
    /// The uids, oldest first, and some that are no longer remembered.
    order: VecDeque<Uid>,
}

#[derive(Debug)]
struct Delete {
    key: Key,
    /// Number of lists begun before it.
    mark: u32,
}

#[derive(Debug)]
struct Floor {
    /// The last stored version of the object with this uid.
    version: ResourceVersion,
    uid: Uid,
}

impl Deleted {
    /// Returns `true` for an object that was deleted, or that is older than a deleted one of its name.
    pub(super) fn hides(&self, object: &Object) -> bool {
        let left = !self.left.is_empty()
            && self.left.get(object.key()).is_some_and(|version| object.resource_version() < *version);
        left || !self.uids.is_empty()
            && (self.uids.contains_key(object.uid())
                || self.floors.get(object.key()).is_some_and(|floor| object.resource_version() <= floor.version))
    }

    /// Records a delete. `held` is the object's version if the store had it.
    pub(super) fn remember(&mut self, key: &Key, uid: &Uid, held: Option<ResourceVersion>, mark: u32) {
        if let Some(version) = held {
            self.floors.insert(key.clone(), Floor { version, uid: uid.clone() });
        }
        if self.uids.insert(uid.clone(), Delete { key: key.clone(), mark }).is_some() {
            return;
        }
        self.order.push_back(uid.clone());
        if self.order.len() > LIMIT
            && let Some(oldest) = self.order.pop_front()
        {
            self.drop_uid(&oldest);
        }
    }

    /// Records that an own write of `version` took the object out of the selector. The watch has come to `covered`.
    pub(super) fn remember_left(&mut self, key: &Key, version: ResourceVersion, covered: ResourceVersion) {
        if self.left.len() >= LIMIT {
            // A version that the watch has passed hides nothing any more.
            self.left.retain(|_, version| *version > covered);
        }
        if self.left.len() < LIMIT {
            self.left.insert(key.clone(), version);
        }
    }

    /// Forgets the delete of an object whose DELETED event arrived: the watch brings nothing older after it.
    pub(super) fn forget(&mut self, last: &Object) {
        if self.left.get(last.key()).is_some_and(|version| *version <= last.resource_version()) {
            self.left.remove(last.key());
        }
        if self.uids.is_empty() {
            return;
        }
        self.uids.remove(last.uid());
        if self.floors.get(last.key()).is_some_and(|floor| floor.version <= last.resource_version()) {
            self.floors.remove(last.key());
        }
        while self.order.front().is_some_and(|oldest| !self.uids.contains_key(oldest)) {
            self.order.pop_front();
        }
    }

    /// Forgets the deletes that began before the list numbered `mark`, which is complete.
    ///
    /// A list requested after the delete does not name the object, and the watch that follows it brings no event of it.
    /// Whether this list was requested before or after the delete is unknown. If another list began and ended in
    /// between, it was after.
    pub(super) fn finish_list(&mut self, mark: u32) {
        let is_recent = |entry: &Delete| entry.mark == mark || entry.mark.wrapping_add(1) == mark;
        let past: Vec<Uid> =
            self.order.iter().filter(|uid| !self.uids.get(*uid).is_some_and(is_recent)).cloned().collect();
        for uid in &past {
            self.drop_uid(uid);
        }
        self.order.retain(|uid| self.uids.contains_key(uid));
        self.uids.shrink_to_fit();
        self.floors.shrink_to_fit();
        self.order.shrink_to_fit();
    }

    fn drop_uid(&mut self, uid: &Uid) {
        let Some(Delete { key, .. }) = self.uids.remove(uid) else { return };
        // A later object of the name may have been deleted too.
        if self.floors.get(&key).is_some_and(|floor| floor.uid == *uid) {
            self.floors.remove(&key);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn bytes(&self) -> usize {
        self.uids.allocation_size()
            + self.left.allocation_size()
            + self.floors.allocation_size()
            + self.order.capacity() * size_of::<Uid>()
    }
}
