//! The cached objects of one resource, as far as one reflector watches them, and what changes in them.
//!
//! The store decides what is news. Three voices speak to it: lists, the watch, and the answers to the host's own writes. They
//! come over different connections and so in any order; what holds the store together is the resourceVersion:
//!
//! - Within a history an older version never replaces a newer one, whoever says it.
//! - An own answer that is not newer than what the watch has delivered says nothing: whatever the store holds, or does not
//!   hold, came after it. Otherwise it enters at once, and the watch event that repeats it is no news.
//! - An own delete hides the object from events that lag behind it, until its DELETED or a later list.
//! - A list replaces the whole: what it does not name is gone, unless it is newer than the list. After an etcd restore, where
//!   versions went back, the list is believed against everything from before it; where versions were raised, against what it has
//!   in an older version and should have in the one held.
//!
//! Each object is held once, in a slot; key table and indexes name slots by their numbers. Whoever holds the store guards it
//! with a lock: nothing here waits, and what may take long ([`page`](Store::page), [`build_indexes`](Store::build_indexes)) is
//! told how much to do before the lock is let go.
//!
//! ```text
//!  list ─┐ upsert                          ┌─ names   namespace → slots
//! watch ─┤ remove          ┌───────┐       ├─ owners  owner's uid → slots           all in the order of keys
//!        ├────────────────►│ slots │◄──────┼─ labels  key → value → slots            once asked for
//!   own ─┘ …_own           └───┬───┘       └─ fields  path → value → slots          on request
//!                              ▼           ┌─ past    what snapshots see otherwise
//!                 Change { old, new, … }   └─ deleted uids of own deletes
//! ```
//!
//! A [`Snapshot`] holds the watch off its reads: what is read through it fits together, but for own writes, which every read
//! sees at once.
//!
//! ```
//! use pilothouse_core::{key::TypeMeta, object::Object, selector::Selector, store::Store};
//!
//! let of = TypeMeta::new("v1", "ConfigMap");
//! let mut store = Store::new(of.clone());
//! let json = br#"{"metadata":{"name":"a","namespace":"b","uid":"1","resourceVersion":"7","labels":{"app":"web"}}}"#;
//! let change = store.upsert(Object::parse(json, &of)?).expect("it is new");
//! assert!(change.old.is_none());
//! assert!(store.upsert(Object::parse(json, &of)?).is_none());
//! let selector = Selector::parse("app=web").expect("a selector");
//! assert_eq!(store.list(Some("b"), &selector, None).count(), 1);
//! # Ok::<(), pilothouse_core::ParseError>(())
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hashbrown::{DefaultHashBuilder, HashMap, HashSet, HashTable};

use crate::{
    field::FieldPath,
    key::{Key, TypeMeta},
    object::{Object, ResourceVersion, Uid},
};

mod deleted;
mod fields;
mod index;
mod packing;
mod page;
mod past;
mod set;
mod slots;

use deleted::Deleted;
pub use fields::DroppedIndex;
use fields::FieldIndexes;
use index::{LabelIndex, OwnerIndex};
use packing::Packing;
pub use packing::{Packed, Work};
pub use page::{IndexError, Page, Query};
use past::Past;
pub use past::{MAX_SUPERSEDED, MAX_SUPERSEDED_BYTES, Snapshot};
use set::Set;
use slots::in_namespace;

/// What became of the object of one key. At least one side is there.
///
/// Both sides may be there with different uids: the object was deleted and another of its name created, and nobody saw the
/// moment between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What was there before, as the last change of this object told it.
    pub old: Option<Arc<Object>>,
    /// What is there now; none: the object is gone.
    pub new: Option<Arc<Object>>,
    /// True if `new` is none because a list no longer names the object, or its name has passed on: nobody saw the deletion, and
    /// `old` may be older than the object's end. False for what a DELETED event or an own delete says.
    pub missed: bool,
}

impl Change {
    /// The object that changed: as it is, or as it was last.
    pub fn object(&self) -> &Arc<Object> {
        self.new.as_ref().or(self.old.as_ref()).expect("a change has an old or a new object")
    }

    /// The key of the object that changed.
    pub fn key(&self) -> &Key {
        self.object().key()
    }
}

/// The objects of one resource, fed by one reflector and by own writes.
#[derive(Debug)]
pub struct Store {
    of: TypeMeta,
    slots: Vec<Option<Slot>>,
    /// The lowest are taken first, so that the highest fall free and can be given back.
    free: BTreeSet<u32>,
    /// By hash of the key: each event asks, and a tree of names would cost it a dozen cache misses.
    keys: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// By namespace (empty for objects without one), for lists.
    names: BTreeMap<Arc<str>, Set>,
    owners: OwnerIndex,
    labels: LabelIndex,
    fields: FieldIndexes,
    past: Past,
    deleted: Deleted,
    object_bytes: usize,
    packing: Packing,
    /// Counts lists that began. A slot that the present list named carries it.
    mark: u32,
    replace: Option<Replace>,
    /// The watch has delivered all that happened up to here.
    covered: ResourceVersion,
}

#[derive(Debug)]
struct Slot {
    object: Arc<Object>,
    mark: u32,
}

/// A list that has begun.
#[derive(Debug)]
struct Replace {
    went_back: bool,
    /// Slots written by own answers since it began, where versions went back. What takes such a slot afterwards is of the
    /// present history as well.
    own: HashSet<u32>,
    /// What the list last said of slots that hold something newer.
    older: HashMap<u32, Object>,
}

/// Who brings an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Voice {
    Reflector,
    OwnWrite,
}

impl Store {
    /// An empty store for objects of kind `of`.
    pub fn new(of: TypeMeta) -> Self {
        Self {
            of,
            slots: Vec::new(),
            free: BTreeSet::new(),
            keys: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            names: BTreeMap::new(),
            owners: OwnerIndex::default(),
            labels: LabelIndex::default(),
            fields: FieldIndexes::default(),
            past: Past::default(),
            deleted: Deleted::default(),
            object_bytes: 0,
            packing: Packing::default(),
            mark: 0,
            replace: None,
            covered: ResourceVersion(0),
        }
    }

    /// The kind of its objects.
    pub fn type_meta(&self) -> &TypeMeta {
        &self.of
    }

    /// How far the watch has come: all that happened up to this version is here. 0: no list is complete yet.
    pub fn covered(&self) -> ResourceVersion {
        self.covered
    }

    /// Says that the watch has delivered all that happened up to `version`, as a bookmark does.
    pub fn advance(&mut self, version: ResourceVersion) {
        self.cover(version);
    }

    /// Takes an object from a list or a watch.
    ///
    /// None: nothing newer than what is held, or a lagging event of an object that this host deleted itself.
    pub fn upsert(&mut self, object: Object) -> Option<Change> {
        self.cover(object.resource_version());
        if self.deleted.hides(&object) {
            return None;
        }
        self.accept(object, Voice::Reflector)
    }

    /// Says that the list under way names an object that could not be read: what is held under its key is not gone.
    pub fn keep(&mut self, key: &Key) {
        let mark = self.mark;
        if let Some(slot) = self.find_key(key).and_then(|slot| self.slots.get_mut(slot as usize)?.as_mut()) {
            slot.mark = mark;
        }
    }

    /// Takes the server's answer to a create, update, patch or apply of this host. The caller gives only what belongs to
    /// this store: its scope, and what its selector matches.
    ///
    /// None: the watch already delivered this version or what came after it.
    ///
    /// # Guarantees
    /// From now on every read gives this version, a newer one, or none if the object was deleted after it (invariant 3).
    pub fn upsert_own(&mut self, object: Object) -> Option<Change> {
        self.past.reveal(object.key());
        if object.resource_version() <= self.covered || self.deleted.hides(&object) {
            return None;
        }
        self.accept(object, Voice::OwnWrite)
    }

    /// Takes a DELETED event with the last state of its object.
    ///
    /// None: the object is not held, or what is held under its name has another uid or is newer.
    ///
    /// The change's `old` is what was held, though the last state may differ, where an event between could not be read: who was told of
    /// an object, because of its labels or owners, is told of its end.
    pub fn remove(&mut self, last: &Object) -> Option<Change> {
        self.cover(last.resource_version());
        self.deleted.forget(last);
        let slot = self.find_key(last.key())?;
        let held = self.object(slot);
        let older = last.resource_version() < held.resource_version() && !self.is_of_lost_history(slot);
        if held.uid() != last.uid() || older {
            return None;
        }
        let held = self.take(slot);
        self.past.supersede(held.key(), Some(&held));
        Some(Change { old: Some(held), new: None, missed: false })
    }

    /// Says that a delete by this host succeeded and the object is gone (not: waits for its finalizers).
    ///
    /// None: the store does not hold that uid under that name.
    ///
    /// # Guarantees
    /// Events of this uid that lag behind are ignored until its DELETED, or until a list that began later is over; of
    /// uids whose DELETED never comes the last 8,192 are remembered.
    pub fn remove_own(&mut self, key: &Key, uid: &Uid) -> Option<Change> {
        let slot = self.find_key(key).filter(|slot| self.object(*slot).uid() == uid);
        // A version of a lost history says nothing about events to come.
        let held = slot.filter(|slot| !self.is_of_lost_history(*slot));
        let held = held.map(|slot| self.object(slot).resource_version());
        self.deleted.remember(key, uid, held, self.mark);
        self.past.reveal(key);
        let slot = slot?;
        Some(Change { old: Some(self.take(slot)), new: None, missed: false })
    }

    /// Takes an own write after which the selector no longer matches the object. The caller gives its version.
    ///
    /// None: the store holds nothing older under that name, or the watch has come to this version or beyond.
    ///
    /// # Guarantees
    /// Events from before that write are ignored; what is newer enters as ever. An earlier object of that name is over, though its
    /// DELETED has not come.
    pub fn leave_own(&mut self, key: &Key, uid: &Uid, version: ResourceVersion) -> Option<Change> {
        self.past.reveal(key);
        if version <= self.covered {
            return None;
        }
        self.deleted.remember_left(key, version, self.covered);
        let slot = self
            .find_key(key)
            .filter(|slot| self.object(*slot).resource_version() < version || self.is_of_lost_history(*slot))?;
        let held = self.take(slot);
        Some(Change { missed: held.uid() != uid, old: Some(held), new: None })
    }

    /// Says that a list begins, whose objects come by [`upsert`](Self::upsert) until
    /// [`finish_replace`](Self::finish_replace) or [`abort_replace`](Self::abort_replace). To be called before the list is
    /// asked for, or at the latest before its first object.
    ///
    /// `went_back`: the list shows a history whose versions are lower than what the watch had delivered. Objects from before
    /// are then replaced by whatever the list says, and own deletes from before are forgotten: they may be undone.
    pub fn begin_replace(&mut self, went_back: bool) {
        self.mark = self.mark.wrapping_add(1);
        self.replace = Some(Replace { went_back, own: HashSet::new(), older: HashMap::new() });
        if went_back {
            self.covered = ResourceVersion(0);
            self.deleted.clear();
        }
    }

    /// Says that the list, which shows the state at `version`, is complete: objects that it did not name are gone.
    ///
    /// Kept are objects newer than `version`, of which the list could not know: own writes. Where versions went back, only
    /// those written since the list began.
    ///
    /// An object that is held in a version up to `version`, and that the list has in an older one, was lost: etcd was restored,
    /// and its versions were raised above all that were given out (`etcdutl snapshot restore --bump-revision`). It becomes what
    /// the list says.
    pub fn finish_replace(&mut self, version: ResourceVersion) -> Vec<Change> {
        let Some(replace) = self.replace.take() else { return Vec::new() };
        let mut changes = Vec::new();
        for (slot, object) in replace.older {
            if self.object(slot).resource_version() > version {
                continue;
            }
            let change = if self.deleted.hides(&object) {
                // This host has deleted since what the list still had.
                Change { old: Some(self.take(slot)), new: None, missed: true }
            } else {
                self.put(Some(slot), object)
            };
            self.past.supersede(change.key(), change.old.as_ref());
            changes.push(change);
        }
        for slot in (0_u32..).take(self.slots.len()) {
            let Some(Slot { object, mark }) = &self.slots[slot as usize] else { continue };
            let unknown_to_list =
                object.resource_version() > version && (!replace.went_back || replace.own.contains(&slot));
            if *mark != self.mark && !unknown_to_list {
                let last = self.take(slot);
                self.past.supersede(last.key(), Some(&last));
                changes.push(Change { old: Some(last), new: None, missed: true });
            }
        }
        self.covered = self.covered.max(version);
        self.deleted.finish_list(self.mark);
        changes
    }

    /// Says that the list failed: what it brought stays, and nothing is swept.
    pub fn abort_replace(&mut self) {
        self.replace = None;
    }

    /// The object of that name; `namespace` is none for objects of cluster-scoped kinds.
    pub fn get(&self, namespace: Option<&str>, name: &str) -> Option<&Arc<Object>> {
        self.find(namespace.unwrap_or(""), name).map(|slot| self.object(slot))
    }

    /// The object of that name as it was when the snapshot was taken.
    pub fn get_at(&self, snapshot: &Snapshot, key: &Key) -> Option<&Arc<Object>> {
        match self.past.get(snapshot, key) {
            Some(then) => then,
            None => self.find_key(key).map(|slot| self.object(slot)),
        }
    }

    /// Objects with an owner reference to that uid, ordered by key.
    pub fn owned_by(&self, owner: &Uid) -> impl Iterator<Item = &Arc<Object>> {
        self.owners.slots(owner).map(|slot| self.object(slot))
    }

    /// Objects that had an owner reference to that uid when the snapshot was taken, in no particular order.
    pub fn owned_by_at<'a>(&'a self, snapshot: &'a Snapshot, owner: &'a Uid) -> impl Iterator<Item = &'a Arc<Object>> {
        let present = self.owned_by(owner).filter(|object| self.past.get(snapshot, object.key()).is_none());
        let past = self.past.after(snapshot, None, None).filter_map(|(_, object)| object);
        present.chain(past.filter(|object| object.owners().any(|one| one.uid == *owner)))
    }

    /// All objects, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.in_order(None, None).map(|slot| self.object(slot))
    }

    /// Keeps the present for reads to come. It costs a counter until the watch changes something.
    pub fn snapshot(&self) -> Snapshot {
        self.past.snapshot()
    }

    /// What the snapshot sees otherwise than it is now: keys, and what stood there (none: nothing). None if the snapshot was
    /// given up, and nobody can say.
    pub fn superseded<'a>(
        &'a self,
        snapshot: &Snapshot,
    ) -> Option<impl Iterator<Item = (&'a Key, Option<&'a Arc<Object>>)> + use<'a>> {
        self.past.has(snapshot).then(|| self.past.after(snapshot, None, None))
    }

    /// What became of all that reads through the snapshot show, or have shown before an own write came, and that is another
    /// now: `work` keys after `after`, and where the rest begins. None if the snapshot was given up, and nobody can say.
    ///
    /// Who read something knows by this whether it changed before that read, though after the snapshot was taken.
    pub fn changes_since(
        &self,
        snapshot: &Snapshot,
        after: Option<&Key>,
        work: usize,
    ) -> Option<(Vec<Change>, Option<Key>)> {
        if !self.past.has(snapshot) {
            return None;
        }
        let (shown, last) = self.past.shown(snapshot, after, work);
        let changes = shown.into_iter().filter_map(|(key, old)| {
            let new = self.find_key(key).map(|slot| self.object(slot).clone());
            (old.is_some() || new.is_some()).then(|| Change { old: old.cloned(), new, missed: false })
        });
        Some((changes.collect(), last.cloned()))
    }

    /// Lets go of versions that were kept for snapshots which have ended since. Every change does the same: this is for
    /// times without changes.
    pub fn release(&mut self) {
        self.past.release();
    }

    /// True if something is kept for this snapshot, so that [`release`](Self::release) may let go of it when it has ended.
    pub fn keeps_for(&self, snapshot: &Snapshot) -> bool {
        self.past.keeps_for(snapshot)
    }

    /// How many snapshots are open, clones included, but for those that were given up.
    pub fn snapshots(&self) -> usize {
        self.past.snapshots()
    }

    /// How many snapshots were given up, since the start, because too much had been superseded while they were open.
    pub fn snapshots_given_up(&self) -> u64 {
        self.past.given_up()
    }

    /// Makes an index by the values at `path`. It is there when [`build_indexes`](Self::build_indexes) says so. An index that
    /// is added twice is one, and must be dropped twice.
    pub fn add_index(&mut self, path: &FieldPath) {
        self.fields.add(path);
    }

    /// Takes so many more objects into indexes that were added, and into that of labels once somebody has asked for some. True: all are
    /// complete. To be called until then; changes may come in between.
    pub fn build_indexes(&mut self, mut work: usize) -> bool {
        let labels = self.labels.build(&self.slots, &mut work);
        self.fields.build(&self.slots, &mut work) && labels
    }

    /// Somebody has asked for objects by their labels, and looked at all of them: [`build_indexes`](Self::build_indexes) helps.
    pub fn lacks_labels(&self) -> bool {
        self.labels.is_lacking()
    }

    /// Drops an index once for each time it was added. None: there is none. A large one takes its time to be freed: that is done
    /// when what is returned is dropped, without the lock.
    pub fn drop_index(&mut self, path: &FieldPath) -> Option<DroppedIndex> {
        self.fields.drop(path)
    }

    /// How many objects.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// True if there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held: [`Object::bytes`] of all objects, superseded versions that snapshots see included, their dictionaries, and
    /// slots, key table and indexes by their capacity, where a B-tree does not tell it by the usual filling.
    pub fn bytes(&self) -> usize {
        let slots = self.slots.capacity() * size_of::<Option<Slot>>() + self.free.len() * 2 * size_of::<u32>();
        let keys = self.keys.allocation_size();
        // A leaf has room for eleven; what comes in order fills six.
        let names = self.names.values().map(|slots| slots.heap() + 2 * size_of::<(Arc<str>, Set)>()).sum::<usize>();
        let indexes = self.owners.bytes() + self.labels.bytes() + self.fields.bytes();
        let beside = self.past.bytes() + self.deleted.bytes() + self.packing.bytes();
        self.object_bytes + slots + keys + names + indexes + beside
    }

    /// The watch delivers in the order of versions: what it brings outside a list, all before it has been brought.
    fn cover(&mut self, version: ResourceVersion) {
        if self.replace.is_none() {
            self.covered = self.covered.max(version);
        }
    }

    /// True for an object from before an etcd restore that the list has not come to yet.
    fn is_of_lost_history(&self, slot: u32) -> bool {
        let replace = self.replace.as_ref().filter(|replace| replace.went_back);
        replace.is_some_and(|replace| {
            !replace.own.contains(&slot)
                && self.slots[slot as usize].as_ref().is_some_and(|held| held.mark != self.mark)
        })
    }

    fn accept(&mut self, object: Object, voice: Voice) -> Option<Change> {
        let slot = self.find_key(object.key());
        let news = slot.is_none_or(|slot| {
            let held = self.object(slot);
            if self.is_of_lost_history(slot) {
                // A version that was given out twice need not mean the same.
                held.json() != object.json()
            } else {
                held.resource_version() < object.resource_version()
            }
        });
        let (change, other) = if news { (Some(self.put(slot, object)), None) } else { (None, Some(object)) };
        if voice == Voice::Reflector
            && let Some(change) = &change
        {
            self.past.supersede(change.key(), change.old.as_ref());
        }
        let slot = slot.or_else(|| change.as_ref().and_then(|change| self.find_key(change.key())));
        let slot = slot.expect("the object was held, or is now");
        match (voice, &mut self.replace) {
            (Voice::Reflector, replace) => {
                let held = self.slots[slot as usize].as_mut().expect("slot is in use");
                let named = std::mem::replace(&mut held.mark, self.mark) == self.mark;
                if let Some(Replace { older, .. }) = replace {
                    let is_older = |other: &Object| other.resource_version() < held.object.resource_version();
                    match (other.filter(is_older), older.get(&slot)) {
                        (Some(other), Some(before)) if other.resource_version() < before.resource_version() => {}
                        // The list has named what is held, and repeats itself.
                        (Some(_), None) if named => {}
                        (Some(other), _) => drop(older.insert(slot, other)),
                        (None, _) => drop(older.remove(&slot)),
                    }
                }
            }
            (Voice::OwnWrite, Some(replace)) if replace.went_back => {
                replace.own.insert(slot);
            }
            (Voice::OwnWrite, _) => {}
        }
        change
    }
}

#[cfg(test)]
mod tests;
