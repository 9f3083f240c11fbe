//! One store with its watch.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::{Mutex, RwLock};
use pilothouse_core::{
    field::FieldPath,
    informer::{Filter, InformerKey},
    key::Key,
    object::{Object, ResourceVersion, Uid},
    reflector::{Failure, RelistReason, State},
    store::{Change, DroppedIndex, Packed, Store, Work},
};
use tokio::{sync::Notify, time::Instant};

use super::{
    Health, Lapse, Origin, Tally,
    health::OwnWrites,
    outlet::{Cuts, Outlet, shown},
    shared::Shared,
};
use crate::guests::tell_later;

/// Objects that enter an index under one lock: each is read through, some microseconds long.
const INDEX_STEP: usize = 50;

/// A store of one kind's objects in one scope, kept up to date.
pub struct Informer {
    pub(super) key: InformerKey,
    /// Of two informers, the one with the lower number is locked first.
    pub(super) number: u64,
    pub(super) inner: RwLock<Inner>,
    /// A handover waits for this one to come further.
    pub(super) awaited: AtomicBool,
    /// All who use it would have its objects compressed.
    compressed: AtomicBool,
    /// Rung when there may be something to compress.
    pub(super) unpacked: Notify,
    /// An index was added that may lack objects.
    indexing: AtomicBool,
    state: Mutex<State>,
    health: Mutex<Health>,
    /// The reflector watches. Beside the two locks, as each reconcile with children asks.
    is_watching: AtomicBool,
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) synced: bool,
    pub(super) outlets: Vec<Outlet>,
    /// The list under way is of another history.
    went_back: bool,
    tally: Tally,
    own_writes: OwnWrites,
}

impl Inner {
    /// The objects of a lease, ordered by key.
    pub(super) fn shown<'a>(&'a self, filter: Option<&'a Filter>) -> impl Iterator<Item = &'a Arc<Object>> {
        shown(&self.store, filter)
    }

    /// Whoever needed these indexes is shown by another, or by none. What is returned is to be freed without the lock.
    pub(super) fn drop_indexes(&mut self, paths: &[FieldPath]) -> Vec<DroppedIndex> {
        paths.iter().filter_map(|path| self.store.drop_index(path)).collect()
    }

    pub(super) fn outlet(&mut self, lease: u64) -> Option<&mut Outlet> {
        self.outlets.iter_mut().find(|outlet| outlet.lease == lease)
    }

    fn announce(&mut self, change: &Change, version: Option<ResourceVersion>, origin: Origin) {
        let count = match (&change.old, &change.new) {
            (None, _) => &mut self.tally.added,
            (_, Some(_)) => &mut self.tally.updated,
            (_, None) => &mut self.tally.deleted,
        };
        *count += 1;
        let mut cuts = Cuts::default();
        for outlet in &mut self.outlets {
            outlet.pass(change, version, origin, &mut cuts);
        }
    }
}

impl Informer {
    pub(super) fn new(key: InformerKey, shared: Arc<Shared>) -> Self {
        let store = Store::new(key.of.clone());
        Self {
            number: shared.number(),
            inner: RwLock::new(Inner {
                store,
                synced: false,
                outlets: Vec::new(),
                went_back: false,
                tally: Tally::default(),
                own_writes: OwnWrites::default(),
            }),
            awaited: AtomicBool::new(false),
            compressed: AtomicBool::new(false),
            unpacked: Notify::new(),
            indexing: AtomicBool::new(false),
            state: Mutex::new(State::Resolving),
            health: Mutex::new(Health::new()),
            is_watching: AtomicBool::new(false),
            key,
            shared,
        }
    }

    /// What it watches.
    pub fn key(&self) -> &InformerKey {
        &self.key
    }

    /// True if the first list is in the store and was handed to all subscribers.
    pub fn is_synced(&self) -> bool {
        self.inner.read().synced
    }

    /// `true` if the first list is in the store, or something has kept it from being there.
    pub fn has_looked(&self) -> bool {
        let inner = self.inner.read();
        inner.synced || !inner.tally.failures.is_empty()
    }

    /// What the reflector is doing.
    pub fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// How many objects there are, and the bytes that they and their indexes take.
    pub fn size(&self) -> (usize, usize) {
        let store = &self.inner.read().store;
        (store.len(), store.bytes())
    }

    /// What is counted since the start.
    pub fn tally(&self) -> Tally {
        let inner = self.inner.read();
        Tally { snapshots_given_up: inner.store.snapshots_given_up(), ..inner.tally.clone() }
    }

    /// True while an index that somebody needs lacks objects: lookups do without it.
    pub fn is_indexing(&self) -> bool {
        self.indexing.load(Ordering::Acquire)
    }

    /// How many calls of plugins read it as it was at a moment of theirs.
    pub fn snapshots(&self) -> usize {
        self.inner.read().store.snapshots()
    }

    /// How the connection fares.
    pub fn health(&self) -> Health {
        self.health.lock().clone()
    }

    /// Why what is cached is not to be believed; none: a watch keeps it up to date, or was lost just now.
    pub fn lapse(&self) -> Option<Lapse> {
        if self.is_watching.load(Ordering::Acquire) {
            return None;
        }
        let synced = self.is_synced();
        let (state, health) = (self.state(), self.health.lock());
        health.lapse(&state, synced)
    }

    /// How far the watch has come; 0: no list is complete.
    pub fn version(&self) -> ResourceVersion {
        self.inner.read().store.covered()
    }

    /// The newest version that the store has been told of, whoever said so; none: nothing has come. It looks through all objects.
    pub(super) fn newest(&self) -> Option<ResourceVersion> {
        let store = &self.inner.read().store;
        let versions = store.iter().map(|object| object.resource_version());
        versions.chain([store.covered()]).max().filter(|version| version.0 > 0)
    }

    /// How many versions the newest that the host has seen of any kind is ahead of this watch. Where one etcd serves all kinds, a
    /// watch of a quiet kind lags by what happens to others, until its next bookmark.
    pub fn behind(&self) -> u64 {
        self.shared.newest.load(Ordering::Relaxed).saturating_sub(self.version().0)
    }

    /// Somebody needs these indexes. They are there when [`Informer::build_indexes`] has come to its end.
    pub(super) fn add_indexes(&self, inner: &mut Inner, paths: &[FieldPath]) {
        for path in paths {
            inner.store.add_index(path);
            self.indexing.store(true, Ordering::Release);
        }
    }

    /// Somebody asked for objects by labels, which are not indexed yet. The caller holds the lock.
    pub(super) fn index_labels(&self) {
        if !self.indexing.swap(true, Ordering::AcqRel) {
            self.shared.bell.notify_one();
        }
    }

    /// Takes some more objects into indexes that lack some. False: none does.
    pub(super) fn build_indexes(&self) -> bool {
        // Nearly always there is nothing to do, and no reason for a lock.
        if !self.indexing.load(Ordering::Acquire) {
            return false;
        }
        let inner = &mut *self.inner.write();
        let lack = !inner.store.build_indexes(INDEX_STEP);
        // Still locked: an index that is added says so afterwards.
        self.indexing.store(lack, Ordering::Release);
        lack
    }

    /// True where the API server does not let this be read.
    pub(super) fn is_denied(&self) -> bool {
        matches!(*self.state.lock(), State::Denied(_))
    }
}

// How objects are held.
impl Informer {
    /// Whether objects are kept compressed, as far as that has been done.
    pub fn is_compressed(&self) -> bool {
        self.compressed.load(Ordering::Relaxed)
    }

    /// All who use it would have it so, or not all.
    pub(super) fn set_compressed(&self, on: bool) {
        if self.compressed.swap(on, Ordering::Relaxed) != on {
            self.inner.write().store.set_compressed(on);
            self.look_for_unpacked();
        }
    }

    /// The next thing to do so that objects are compressed.
    pub(super) fn packing(&self) -> Option<Work> {
        self.inner.read().store.packing()
    }

    /// It was done.
    pub(super) fn packed(&self, mut done: Packed) {
        self.inner.write().store.packed(&mut done);
        // What was replaced is let go here, without the lock.
    }

    fn look_for_unpacked(&self) {
        if self.is_compressed() {
            self.unpacked.notify_one();
        }
    }
}

// What own writes bring.
impl Informer {
    /// Takes in the answer to one of the host's own writes, so that the next read sees it though the watch lags.
    pub(super) fn own_write(&self, object: &Arc<Object>) {
        let key = object.key();
        if !self.key.covers_namespace(key.namespace.as_deref()) {
            return;
        }
        let shows = self.key.shows(object);
        // Each store interns for itself.
        let kept = || if self.key.keep.is_whole() { (**object).clone() } else { object.kept(&self.key.keep) };
        self.shared.saw(object.resource_version());
        self.own_change(Some(object.resource_version()), |store| {
            // Only the server can tell: what was here stays until the watch says otherwise.
            let is_held = |held: &Arc<Object>| held.uid() == object.uid();
            match shows {
                Some(true) => store.upsert_own(kept()),
                Some(false) => store.leave_own(key, object.uid(), object.resource_version()),
                None if store.get(key.namespace.as_deref(), &key.name).is_some_and(is_held) => store.upsert_own(kept()),
                None => None,
            }
        });
    }

    /// Takes in that one of the host's own deletes succeeded at once.
    pub(super) fn own_delete(&self, key: &Key, uid: &Uid) {
        if self.key.covers_namespace(key.namespace.as_deref()) {
            self.own_change(None, |store| store.remove_own(key, uid));
        }
    }

    fn own_change(&self, version: Option<ResourceVersion>, apply: impl FnOnce(&mut Store) -> Option<Change>) {
        let _unlocked = tell_later();
        let inner = &mut *self.inner.write();
        if let Some(change) = apply(&mut inner.store) {
            if let Some(version) = version {
                inner.own_writes.wrote(version);
            }
            inner.announce(&change, None, Origin::Change);
        }
        self.look_for_unpacked();
    }
}

// What the driver brings.
impl Informer {
    pub(super) fn upsert(&self, object: Object) {
        let version = object.resource_version();
        self.watched(version, |store| store.upsert(object));
    }

    pub(super) fn remove(&self, last: &Object) {
        let version = last.resource_version();
        self.watched(version, |store| store.remove(last));
    }

    fn watched(&self, version: ResourceVersion, apply: impl FnOnce(&mut Store) -> Option<Change>) {
        let _unlocked = tell_later();
        let inner = &mut *self.inner.write();
        let origin = if inner.synced { Origin::Change } else { Origin::Initial };
        if let Some(change) = apply(&mut inner.store) {
            inner.announce(&change, Some(version), origin);
        }
        self.came_to(inner);
        self.look_for_unpacked();
    }

    /// An object cannot be read. If a list is under way, what is held of it stays.
    pub(super) fn skip(&self, key: Option<&Key>) {
        let inner = &mut *self.inner.write();
        inner.tally.skipped += 1;
        if let Some(key) = key {
            inner.store.keep(key);
        }
    }

    /// The watch has brought all up to `version`.
    pub(super) fn advance(&self, version: ResourceVersion) {
        let inner = &mut *self.inner.write();
        inner.store.advance(version);
        self.came_to(inner);
    }

    pub(super) fn begin_replace(&self, went_back: bool) {
        let inner = &mut *self.inner.write();
        inner.went_back = went_back;
        inner.store.begin_replace(went_back);
        if went_back {
            inner.own_writes.forget();
        }
    }

    pub(super) fn finish_replace(&self, version: ResourceVersion) {
        let _unlocked = tell_later();
        let inner = &mut *self.inner.write();
        for change in inner.store.finish_replace(version) {
            inner.announce(&change, Some(version), Origin::Change);
        }
        if std::mem::take(&mut inner.went_back) {
            // What was seen before was another history.
            for outlet in &mut inner.outlets {
                outlet.seen = version;
            }
            self.shared.newest.store(version.0, Ordering::Relaxed);
            self.shared.bell.notify_one();
        }
        self.health.lock().listed();
        self.came_to(inner);
        self.look_for_unpacked();
    }

    pub(super) fn abort_replace(&self) {
        let inner = &mut *self.inner.write();
        inner.went_back = false;
        inner.store.abort_replace();
    }

    pub(super) fn mark_synced(&self) {
        let _unlocked = tell_later();
        // Subscribers were called under the lock by every change so far: what is routed is routed.
        let inner = &mut *self.inner.write();
        inner.synced = true;
        for outlet in &inner.outlets {
            outlet.synced.send_replace(true);
        }
        let mut health = self.health.lock();
        let after = health.started.elapsed();
        health.synced_after.get_or_insert(after);
        self.shared.bell.notify_one();
    }

    fn came_to(&self, inner: &mut Inner) {
        let covered = inner.store.covered();
        inner.own_writes.covered(covered, &mut inner.tally);
        self.shared.saw(covered);
        if inner.synced && self.awaited.load(Ordering::Relaxed) {
            self.shared.bell.notify_one();
        }
    }

    pub(super) fn note(&self, state: State) {
        self.health.lock().turned(&state);
        self.is_watching.store(state == State::Watching, Ordering::Release);
        *self.state.lock() = state;
        self.shared.turns.send_modify(|turns| *turns += 1);
        self.shared.bell.notify_one();
    }

    pub(super) fn note_opened(&self) {
        let mut health = self.health.lock();
        let now = Instant::now();
        (health.heard, health.watching) = (Some(now), Some(now));
    }

    pub(super) fn note_heard(&self) {
        self.health.lock().heard = Some(Instant::now());
    }

    pub(super) fn note_relist(&self, reason: RelistReason) {
        *self.inner.write().tally.relists.entry(reason).or_default() += 1;
    }

    pub(super) fn note_failure(&self, failure: &Failure) {
        *self.inner.write().tally.failures.entry(failure.as_str()).or_default() += 1;
    }

    pub(super) fn note_restart(&self) {
        self.inner.write().tally.restarts += 1;
        self.abort_replace();
    }
}
