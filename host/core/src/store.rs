//! Caches the objects of one resource that one reflector watches, and reports what changes in them.
//!
//! The store decides what is new. It hears from three sources: lists, the watch, and the answers to the host's own
//! writes. They use different connections, so their order is arbitrary. The resourceVersion decides between them:
//!
//! - Within one history, an older version never replaces a newer one, whatever its source.
//! - An own answer that is not newer than what the watch has delivered is ignored: the store's state is from after it.
//!   A newer one enters at once, and the watch event that repeats it changes nothing.
//! - An own delete hides the object from late events, until its DELETED event or a later list.
//! - A list replaces everything: an object that it does not name is gone, unless the object is newer than the list.
//! - After an etcd restore, versions may have gone back: the list then replaces all objects from before it. If versions
//!   were raised instead, the list replaces objects that it has in an older version.
//!
//! Each object is held once, in a slot; the key table and the indexes refer to slots by number. The owner of the store
//! guards it with a lock. Nothing here waits. Long operations ([`page`](Store::page),
//! [`build_indexes`](Store::build_indexes)) take a bound on their work, so that the lock is released in between.
//! ```text
//!  list ─┐ upsert                          ┌─ names   namespace → slots
//! watch ─┤ remove          ┌───────┐       ├─ owners  owner's uid → slots           all in the order of keys
//!        ├────────────────►│ slots │◄──────┼─ labels  key → value → slots            once asked for
//!   own ─┘ …_own           └───┬───┘       └─ fields  path → value → slots          on request
//!        ├────────────────►│ slots │◄──────┼─ labels  key → value → slots            built on first use
//!   own ─┘ …_own           └───┬───┘       └─ fields  path → value → slots          on request
//!                              ▼           ┌─ past    what snapshots see differently
//!                 Change { old, new, … }   └─ deleted uids of own deletes
//! A [`Snapshot`] holds the watch off its reads: what is read through it fits together, but for own writes, which every read
//! sees at once.
//! Reads through a [`Snapshot`] do not see later changes by the watch, so they fit together. They do see own writes, as every
//! read does.
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

/// A change of the object of one key. At least one side is there.
///
/// If the sides differ in uid, the object was deleted and another was created under its name between two observations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The state that the previous change of this object reported.
    pub old: Option<Arc<Object>>,
    /// The present state; `None` if the object is gone.
    pub new: Option<Arc<Object>>,
    /// `true` if a deletion was inferred: a later list does not name the object, or another object has its name. `old`
    /// may then be older than the object's last state. `false` after a DELETED event or an own delete.
    pub missed: bool,
}

impl Change {
    /// Returns the object that changed: its present state, or its last one.
    pub fn object(&self) -> &Arc<Object> {
        self.new.as_ref().or(self.old.as_ref()).expect("a change has an old or a new object")
    }

    /// Returns the key of the object that changed.
    pub fn key(&self) -> &Key {
        self.object().key()
    }
}

/// The objects of one resource, fed by one reflector and by own writes.
#[derive(Debug)]
pub struct Store {
    of: TypeMeta,
    slots: Vec<Option<Slot>>,
    /// The lowest is taken first, so that the highest become free and their memory can be returned.
    free: BTreeSet<u32>,
    /// By hash of the key. Each event looks a key up; a tree would cost it a dozen cache misses.
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
    /// Number of lists begun. A slot that the current list named carries this number.
    mark: u32,
    replace: Option<Replace>,
    /// The watch has delivered every change up to this version.
    covered: ResourceVersion,
}

#[derive(Debug)]
struct Slot {
    object: Arc<Object>,
    mark: u32,
}

/// A list under way.
#[derive(Debug)]
struct Replace {
    went_back: bool,
    /// Slots that own answers wrote since the list began; used only if versions went back. Later contents of such a
    /// slot also belong to the present history.
    own: HashSet<u32>,
    /// The list's last state of slots that hold something newer.
    older: HashMap<u32, Object>,
}

/// Where an object comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Reflector,
    OwnWrite,
}

impl Store {
    /// Creates an empty store for objects of kind `of`.
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

    /// Returns the kind of the objects.
    pub fn type_meta(&self) -> &TypeMeta {
        &self.of
    }

    /// Returns the version up to which the watch has delivered every change. 0 until a list is complete.
    pub fn covered(&self) -> ResourceVersion {
        self.covered
    }

    /// Records that the watch has delivered every change up to `version`, as a bookmark reports.
    pub fn advance(&mut self, version: ResourceVersion) {
        self.cover(version);
    }

    /// Stores an object from a list or a watch.
    ///
    /// Returns `None` if it is not newer than the stored one, or if it is a late event of an object that this host
    /// deleted.
    pub fn upsert(&mut self, object: Object) -> Option<Change> {
        self.cover(object.resource_version());
        if self.deleted.hides(&object) {
            return None;
        }
        self.accept(object, Source::Reflector)
    }

    /// Keeps the object of `key` through the current list, which names it in a form that could not be read.
    pub fn keep(&mut self, key: &Key) {
        let mark = self.mark;
        if let Some(slot) = self.find_key(key).and_then(|slot| self.slots.get_mut(slot as usize)?.as_mut()) {
            slot.mark = mark;
        }
    }

    /// Stores the server's answer to a create, update, patch or apply of this host. The caller passes only objects of
    /// this store's scope and selector.
    ///
    /// Returns `None` if the watch already delivered this version or a later one.
    ///
    /// # Guarantees
    /// From now on every read returns this version, a newer one, or nothing if the object was deleted later (invariant
    /// 3).
    pub fn upsert_own(&mut self, object: Object) -> Option<Change> {
        self.past.reveal(object.key());
        if object.resource_version() <= self.covered || self.deleted.hides(&object) {
            return None;
        }
        self.accept(object, Source::OwnWrite)
    }

    /// Removes an object after its DELETED event, which carries its last state.
    ///
    /// Returns `None` if the object is not stored, or if the stored one has another uid or is newer.
    ///
    /// The change's `old` is the stored state, even if the event's state differs (an event between may have been
    /// unreadable). So everything that the stored labels and owners had matched learns of the end.
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

    /// Removes an object that this host deleted. Call it only once the object is gone, not while it waits for
    /// finalizers.
    ///
    /// Returns `None` if the store does not hold that uid under that name.
    ///
    /// # Guarantees
    /// Late events of this uid are ignored until its DELETED event, or until a list that began later is complete. At
    /// most 8,192 uids are remembered; the oldest is forgotten first.
    pub fn remove_own(&mut self, key: &Key, uid: &Uid) -> Option<Change> {
        let slot = self.find_key(key).filter(|slot| self.object(*slot).uid() == uid);
        // A version of a lost history does not bound the versions of events to come.
        let held = slot.filter(|slot| !self.is_of_lost_history(*slot));
        let held = held.map(|slot| self.object(slot).resource_version());
        self.deleted.remember(key, uid, held, self.mark);
        self.past.reveal(key);
        let slot = slot?;
        Some(Change { old: Some(self.take(slot)), new: None, missed: false })
    }

    /// Removes an object that, after an own write of `version`, no longer matches the selector.
    ///
    /// Returns `None` if the store holds nothing older under that name, or if the watch has already passed `version`.
    ///
    /// # Guarantees
    /// Events from before that write are ignored; newer ones enter as usual. An earlier object of that name is gone as
    /// well, even before its DELETED event.
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

    /// Begins a list. Its objects come through [`upsert`](Self::upsert), until [`finish_replace`](Self::finish_replace)
    /// or [`abort_replace`](Self::abort_replace). Call it before the list's first object.
    ///
    /// `went_back`: the list shows a history whose versions are lower than what the watch had delivered. The list then
    /// replaces all objects from before, whatever their versions. Own deletes from before are forgotten, as they may be
    /// undone.
    pub fn begin_replace(&mut self, went_back: bool) {
        self.mark = self.mark.wrapping_add(1);
        self.replace = Some(Replace { went_back, own: HashSet::new(), older: HashMap::new() });
        if went_back {
            self.covered = ResourceVersion(0);
            self.deleted.clear();
        }
    }

    /// Completes a list of the state at `version`: removes the objects that it did not name.
    ///
    /// Objects newer than `version` stay: they are own writes that the list could not know. If versions went back, only
    /// objects written since the list began stay.
    ///
    /// An object up to `version` that the list has in an older version was lost: etcd was restored, and its versions
    /// were raised above all known ones (`etcdutl snapshot restore --bump-revision`). The list's state replaces it.
    pub fn finish_replace(&mut self, version: ResourceVersion) -> Vec<Change> {
        let Some(replace) = self.replace.take() else { return Vec::new() };
        let mut changes = Vec::new();
        for (slot, object) in replace.older {
            if self.object(slot).resource_version() > version {
                continue;
            }
            let change = if self.deleted.hides(&object) {
                // This host has deleted the object since the list read it.
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

    /// Ends a list that failed. The objects that it brought stay, and none is removed.
    pub fn abort_replace(&mut self) {
        self.replace = None;
    }

    /// Returns the object of that name. `namespace` is `None` for cluster-scoped kinds.
    pub fn get(&self, namespace: Option<&str>, name: &str) -> Option<&Arc<Object>> {
        self.find(namespace.unwrap_or(""), name).map(|slot| self.object(slot))
    }

    /// Returns the object as it was when the snapshot was taken.
    pub fn get_at(&self, snapshot: &Snapshot, key: &Key) -> Option<&Arc<Object>> {
        match self.past.get(snapshot, key) {
            Some(then) => then,
            None => self.find_key(key).map(|slot| self.object(slot)),
        }
    }

    /// Returns the objects with an owner reference to that uid, ordered by key.
    pub fn owned_by(&self, owner: &Uid) -> impl Iterator<Item = &Arc<Object>> {
        self.owners.slots(owner).map(|slot| self.object(slot))
    }

    /// Returns all objects, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.in_order(None, None).map(|slot| self.object(slot))
    }

    /// Returns a snapshot of the present. It costs a counter until the watch changes something.
    pub fn snapshot(&self) -> Snapshot {
        self.past.snapshot()
    }

    /// Returns the keys that the snapshot sees differently from now, and the objects that it sees there (`None`: none).
    /// Returns `None` if the snapshot was given up.
    pub fn superseded<'a>(
        &'a self,
        snapshot: &Snapshot,
    ) -> Option<impl Iterator<Item = (&'a Key, Option<&'a Arc<Object>>)> + use<'a>> {
        self.past.has(snapshot).then(|| self.past.after(snapshot, None, None))
    }

    /// Compares what the snapshot shows, or showed before an own write, with the present. Looks at up to `work` keys
    /// after `after`; the returned key is where to continue. Returns `None` if the snapshot was given up.
    ///
    /// A reader learns from this what had changed between the snapshot and its reads.
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

    /// Drops versions that were kept for snapshots which have ended. Every change does so too; this is for times
    /// without changes.
    pub fn release(&mut self) {
        self.past.release();
    }

    /// Returns `true` if a version is kept for this snapshot, so that [`release`](Self::release) is useful after its
    /// end.
    pub fn keeps_for(&self, snapshot: &Snapshot) -> bool {
        self.past.keeps_for(snapshot)
    }

    /// Returns the number of open snapshots, clones included, without those that were given up.
    pub fn snapshots(&self) -> usize {
        self.past.snapshots()
    }

    /// Counts the snapshots that were given up since the start, because too much was superseded while they were open.
    pub fn snapshots_given_up(&self) -> u64 {
        self.past.given_up()
    }

    /// Adds an index by the values at `path`, which [`build_indexes`](Self::build_indexes) then fills. An index that is
    /// added twice is one index, and must be dropped twice.
    pub fn add_index(&mut self, path: &FieldPath) {
        self.fields.add(path);
    }

    /// Takes up to `work` more objects into the indexes that are incomplete. Returns `true` if all are complete; call
    /// it until then. Changes may come in between.
    pub fn build_indexes(&mut self, mut work: usize) -> bool {
        let labels = self.labels.build(&self.slots, &mut work);
        self.fields.build(&self.slots, &mut work) && labels
    }

    /// Returns `true` if a read by labels had to scan all objects, and [`build_indexes`](Self::build_indexes) would
    /// help.
    pub fn lacks_labels(&self) -> bool {
        self.labels.is_lacking()
    }

    /// Drops an index once for each time it was added. Returns `None` if the index does not exist. A large one takes
    /// time to free; drop the returned value without the lock.
    pub fn drop_index(&mut self, path: &FieldPath) -> Option<DroppedIndex> {
        self.fields.drop(path)
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns `true` if there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes held: all objects by [`Object::bytes`], superseded versions, dictionaries, slots, the key
    /// table and the indexes. Tables count by capacity, B-trees by their usual filling.
    pub fn bytes(&self) -> usize {
        let slots = self.slots.capacity() * size_of::<Option<Slot>>() + self.free.len() * 2 * size_of::<u32>();
        let keys = self.keys.allocation_size();
        // A leaf has room for eleven entries; insertion in order fills six.
        let names = self.names.values().map(|slots| slots.heap() + 2 * size_of::<(Arc<str>, Set)>()).sum::<usize>();
        let indexes = self.owners.bytes() + self.labels.bytes() + self.fields.bytes();
        let beside = self.past.bytes() + self.deleted.bytes() + self.packing.bytes();
        self.object_bytes + slots + keys + names + indexes + beside
    }

    /// Outside a list, everything that the watch brings comes after all lower versions.
    fn cover(&mut self, version: ResourceVersion) {
        if self.replace.is_none() {
            self.covered = self.covered.max(version);
        }
    }

    /// Returns `true` for an object from before an etcd restore that the current list has not named yet.
    fn is_of_lost_history(&self, slot: u32) -> bool {
        let replace = self.replace.as_ref().filter(|replace| replace.went_back);
        replace.is_some_and(|replace| {
            !replace.own.contains(&slot)
                && self.slots[slot as usize].as_ref().is_some_and(|held| held.mark != self.mark)
        })
    }

    fn accept(&mut self, object: Object, source: Source) -> Option<Change> {
        let slot = self.find_key(object.key());
        let news = slot.is_none_or(|slot| {
            let held = self.object(slot);
            if self.is_of_lost_history(slot) {
                // After a restore, the same version may stand for another state.
                held.json() != object.json()
            } else {
                held.resource_version() < object.resource_version()
            }
        });
        let (change, other) = if news { (Some(self.put(slot, object)), None) } else { (None, Some(object)) };
        if source == Source::Reflector
            && let Some(change) = &change
        {
            self.past.supersede(change.key(), change.old.as_ref());
        }
        let slot = slot.or_else(|| change.as_ref().and_then(|change| self.find_key(change.key())));
        let slot = slot.expect("the object was held, or is now");
        match (source, &mut self.replace) {
            (Source::Reflector, replace) => {
                let held = self.slots[slot as usize].as_mut().expect("slot is in use");
                let named = std::mem::replace(&mut held.mark, self.mark) == self.mark;
                if let Some(Replace { older, .. }) = replace {
                    let is_older = |other: &Object| other.resource_version() < held.object.resource_version();
                    match (other.filter(is_older), older.get(&slot)) {
                        (Some(other), Some(before)) if other.resource_version() < before.resource_version() => {}
                        // The list has already named the stored version, and repeats an older one.
                        (Some(_), None) if named => {}
                        (Some(other), _) => drop(older.insert(slot, other)),
                        (None, _) => drop(older.remove(&slot)),
                    }
                }
            }
            (Source::OwnWrite, Some(replace)) if replace.went_back => {
                replace.own.insert(slot);
            }
            (Source::OwnWrite, _) => {}
        }
        change
    }
}

#[cfg(test)]
mod tests;
