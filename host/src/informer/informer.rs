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
    outlet::{Announced, Outlet, shown},
    shared::Shared,
};
use crate::guests::defer_wakes;

/// Objects that enter an index under one lock. Each takes some microseconds, because its whole JSON is read.
const INDEX_STEP: usize = 50;

/// A store of one kind's objects in one scope, kept up to date.
pub struct Informer {
    pub(super) key: InformerKey,
    /// The lock order: of two informers, the one with the lower number is locked first.
    pub(super) number: u64,
    pub(super) cache: RwLock<Cache>,
    /// `true` while a handover waits until this informer's watch has come further.
    pub(super) awaited: AtomicBool,
    /// `true` if all leases on this informer allow compression.
    compressed: AtomicBool,
    /// Notified when there may be objects to compress.
    pub(super) unpacked: Notify,
    /// `true` while an index may lack objects.
    indexing: AtomicBool,
    state: Mutex<State>,
    health: Mutex<Health>,
    /// `true` while the reflector watches. Kept outside the two locks, because each reconcile with children reads it.
    is_watching: AtomicBool,
    pub(super) shared: Arc<Shared>,
}

/// What an informer's lock protects.
pub(super) struct Cache {
    pub(super) store: Store,
    pub(super) synced: bool,
    pub(super) outlets: Vec<Outlet>,
    /// `true` while a list is read after the server's versions went back.
    went_back: bool,
    tally: Tally,
    own_writes: OwnWrites,
}

impl Cache {
    /// Returns the objects that a filter shows, ordered by key.
    pub(super) fn shown<'a>(&'a self, filter: Option<&'a Filter>) -> impl Iterator<Item = &'a Arc<Object>> {
        shown(&self.store, filter)
    }

    /// Drops indexes that a lease no longer needs here. The caller frees the result after it has released the lock.
    pub(super) fn drop_indexes(&mut self, paths: &[FieldPath]) -> Vec<DroppedIndex> {
        paths.iter().filter_map(|path| self.store.drop_index(path)).collect()
    }

    pub(super) fn outlet(&mut self, lease: u64) -> Option<&mut Outlet> {
        self.outlets.iter_mut().find(|outlet| outlet.lease == lease)
    }

    /// Counts a change and passes it to all outlets.
    fn announce(&mut self, change: &Change, version: Option<ResourceVersion>, origin: Origin) {
        let count = match (&change.old, &change.new) {
            (None, _) => &mut self.tally.added,
            (_, Some(_)) => &mut self.tally.updated,
            (_, None) => &mut self.tally.deleted,
        };
        *count += 1;
        let mut announced = Announced::new(change);
        for outlet in &mut self.outlets {
            outlet.pass(&mut announced, version, origin);
        }
    }
}

impl Informer {
    pub(super) fn new(key: InformerKey, shared: Arc<Shared>) -> Self {
        let store = Store::new(key.of.clone());
        Self {
            number: shared.number(),
            cache: RwLock::new(Cache {
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

    /// What this informer watches.
    pub fn key(&self) -> &InformerKey {
        &self.key
    }

    /// `true` if the first list is in the store and all subscribers have received it.
    pub fn is_synced(&self) -> bool {
        self.cache.read().synced
    }

    /// `true` if the first list is in the store, or an attempt to get it has failed.
    pub fn has_looked(&self) -> bool {
        let cache = self.cache.read();
        cache.synced || !cache.tally.failures.is_empty()
    }

    /// What the reflector is doing.
    pub fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// Returns the number of objects, and the bytes of these objects and their indexes.
    pub fn size(&self) -> (usize, usize) {
        let store = &self.cache.read().store;
        (store.len(), store.bytes())
    }

    /// The counters since the informer's start.
    pub fn tally(&self) -> Tally {
        let cache = self.cache.read();
        Tally { snapshots_given_up: cache.store.snapshots_given_up(), ..cache.tally.clone() }
    }

    /// `true` while an index lacks objects. Lookups scan meanwhile.
    pub fn is_indexing(&self) -> bool {
        self.indexing.load(Ordering::Acquire)
    }

    /// Number of plugin calls that hold a snapshot of this informer.
    pub fn snapshots(&self) -> usize {
        self.cache.read().store.snapshots()
    }

    /// The state of the connection.
    pub fn health(&self) -> Health {
        self.health.lock().clone()
    }

    /// Returns why the cache is not trustworthy, or `None` if a watch keeps it up to date or was lost only just now.
    pub fn lapse(&self) -> Option<Lapse> {
        if self.is_watching.load(Ordering::Acquire) {
            return None;
        }
        let synced = self.is_synced();
        let (state, health) = (self.state(), self.health.lock());
        health.lapse(&state, synced)
    }

    /// The version up to which the watch has delivered all changes; 0 before the first complete list.
    pub fn version(&self) -> ResourceVersion {
        self.cache.read().store.covered()
    }

    /// Returns the newest version in the store, or `None` if the store has received nothing. Reads all objects.
    pub(super) fn newest(&self) -> Option<ResourceVersion> {
        let store = &self.cache.read().store;
        let versions = store.iter().map(|object| object.resource_version());
        versions.chain([store.covered()]).max().filter(|version| version.0 > 0)
    }

    /// Returns how many versions this watch is behind the newest version that the host has seen of any kind. If one
    /// etcd serves all kinds, the watch of a quiet kind lags until its next bookmark.
    pub fn behind(&self) -> u64 {
        self.shared.newest.load(Ordering::Relaxed).saturating_sub(self.version().0)
    }

    /// Adds indexes that a lease needs. They can be used when [`Informer::build_indexes`] has returned `false`.
    pub(super) fn add_indexes(&self, cache: &mut Cache, paths: &[FieldPath]) {
        for path in paths {
            cache.store.add_index(path);
            self.indexing.store(true, Ordering::Release);
        }
    }

    /// Starts to index labels, because a query selected by them. The caller holds the lock.
    pub(super) fn index_labels(&self) {
        if !self.indexing.swap(true, Ordering::AcqRel) {
            self.shared.bell.notify_one();
        }
    }

    /// Adds some more objects to incomplete indexes. Returns `true` if an index is still incomplete.
    pub(super) fn build_indexes(&self) -> bool {
        // The common case takes no lock.
        if !self.indexing.load(Ordering::Acquire) {
            return false;
        }
        let cache = &mut *self.cache.write();
        let lack = !cache.store.build_indexes(INDEX_STEP);
        // Stored under the lock, so that an index that is added later sets the flag again.
        self.indexing.store(lack, Ordering::Release);
        lack
    }

    /// `true` if the API server denies the host to list or watch this.
    pub(super) fn is_denied(&self) -> bool {
        matches!(*self.state.lock(), State::Denied(_))
    }
}

// Compression.
impl Informer {
    /// `true` if objects are kept compressed. Those that came last may not be compressed yet.
    pub fn is_compressed(&self) -> bool {
        self.compressed.load(Ordering::Relaxed)
    }

    /// Turns compression on or off.
    pub(super) fn set_compressed(&self, on: bool) {
        if self.compressed.swap(on, Ordering::Relaxed) != on {
            self.cache.write().store.set_compressed(on);
            self.look_for_unpacked();
        }
    }

    /// Returns the next objects to compress, if any.
    pub(super) fn packing(&self) -> Option<Work> {
        self.cache.read().store.packing()
    }

    /// Puts compressed objects into the store.
    pub(super) fn packed(&self, mut done: Packed) {
        self.cache.write().store.packed(&mut done);
        // `done` now holds what was replaced. It is freed here, without the lock.
    }

    fn look_for_unpacked(&self) {
        if self.is_compressed() {
            self.unpacked.notify_one();
        }
    }
}

// The host's own writes.
impl Informer {
    /// Stores the answer to one of the host's own writes, so that the next read sees it although the watch lags.
    pub(super) fn own_write(&self, object: &Arc<Object>) {
        let key = object.key();
        if !self.key.covers_namespace(key.namespace.as_deref()) {
            return;
        }
        let shows = self.key.shows(object);
        // Each store interns its own strings.
        let kept = || if self.key.keep.is_whole() { (**object).clone() } else { object.kept(&self.key.keep) };
        self.shared.saw(object.resource_version());
        self.own_change(Some(object.resource_version()), |store| {
            // `None`: only the server can tell. What is held stays until the watch brings a change.
            let is_held = |held: &Arc<Object>| held.uid() == object.uid();
            match shows {
                Some(true) => store.upsert_own(kept()),
                Some(false) => store.leave_own(key, object.uid(), object.resource_version()),
                None if store.get(key.namespace.as_deref(), &key.name).is_some_and(is_held) => store.upsert_own(kept()),
                None => None,
            }
        });
    }

    /// Removes an object after one of the host's own deletes, which removed it from the server at once.
    pub(super) fn own_delete(&self, key: &Key, uid: &Uid) {
        if self.key.covers_namespace(key.namespace.as_deref()) {
            self.own_change(None, |store| store.remove_own(key, uid));
        }
    }

    fn own_change(&self, version: Option<ResourceVersion>, apply: impl FnOnce(&mut Store) -> Option<Change>) {
        let _deferred = defer_wakes();
        let cache = &mut *self.cache.write();
        if let Some(change) = apply(&mut cache.store) {
            if let Some(version) = version {
                cache.own_writes.add(version);
            }
            cache.announce(&change, None, Origin::Change);
        }
        self.look_for_unpacked();
    }
}

// Called by the driver.
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
        let _deferred = defer_wakes();
        let cache = &mut *self.cache.write();
        let origin = if cache.synced { Origin::Change } else { Origin::Initial };
        if let Some(change) = apply(&mut cache.store) {
            cache.announce(&change, Some(version), origin);
        }
        self.came_to(cache);
        self.look_for_unpacked();
    }

    /// Counts an object that cannot be read. A list under way does not remove what the store holds of this object.
    pub(super) fn skip(&self, key: Option<&Key>) {
        let cache = &mut *self.cache.write();
        cache.tally.skipped += 1;
        if let Some(key) = key {
            cache.store.keep(key);
        }
    }

    /// Records that the watch has delivered all changes up to `version`.
    pub(super) fn advance(&self, version: ResourceVersion) {
        let cache = &mut *self.cache.write();
        cache.store.advance(version);
        self.came_to(cache);
    }

    pub(super) fn begin_replace(&self, went_back: bool) {
        let cache = &mut *self.cache.write();
        cache.went_back = went_back;
        cache.store.begin_replace(went_back);
        if went_back {
            cache.own_writes.forget();
        }
    }

    pub(super) fn finish_replace(&self, version: ResourceVersion) {
        let _deferred = defer_wakes();
        let cache = &mut *self.cache.write();
        for change in cache.store.finish_replace(version) {
            cache.announce(&change, Some(version), Origin::Change);
        }
        if std::mem::take(&mut cache.went_back) {
            // Versions of the former history mean nothing in this one.
            for outlet in &mut cache.outlets {
                outlet.seen = version;
            }
            self.shared.newest.store(version.0, Ordering::Relaxed);
            self.shared.bell.notify_one();
        }
        self.health.lock().listed();
        self.came_to(cache);
        self.look_for_unpacked();
    }

    pub(super) fn abort_replace(&self) {
        let cache = &mut *self.cache.write();
        cache.went_back = false;
        cache.store.abort_replace();
    }

    pub(super) fn mark_synced(&self) {
        let _deferred = defer_wakes();
        // Under the lock: subscribers have received every change so far.
        let cache = &mut *self.cache.write();
        cache.synced = true;
        for outlet in &cache.outlets {
            outlet.synced.send_replace(true);
        }
        let mut health = self.health.lock();
        let after = health.started.elapsed();
        health.synced_after.get_or_insert(after);
        self.shared.bell.notify_one();
    }

    fn came_to(&self, cache: &mut Cache) {
        let covered = cache.store.covered();
        cache.own_writes.covered(covered, &mut cache.tally);
        self.shared.saw(covered);
        if cache.synced && self.awaited.load(Ordering::Relaxed) {
            self.shared.bell.notify_one();
        }
    }

    /// Records what the reflector does now.
    pub(super) fn set_state(&self, state: State) {
        self.health.lock().set_state(&state);
        self.is_watching.store(state == State::Watching, Ordering::Release);
        *self.state.lock() = state;
        self.shared.turns.send_modify(|turns| *turns += 1);
        self.shared.bell.notify_one();
    }

    pub(super) fn record_opened(&self) {
        let mut health = self.health.lock();
        let now = Instant::now();
        (health.heard, health.watching) = (Some(now), Some(now));
    }

    pub(super) fn record_heard(&self) {
        self.health.lock().heard = Some(Instant::now());
    }

    pub(super) fn record_relist(&self, reason: RelistReason) {
        *self.cache.write().tally.relists.entry(reason).or_default() += 1;
    }

    pub(super) fn record_failure(&self, failure: &Failure) {
        *self.cache.write().tally.failures.entry(failure.as_str()).or_default() += 1;
    }

    pub(super) fn record_restart(&self) {
        self.cache.write().tally.restarts += 1;
        self.abort_replace();
    }
}
