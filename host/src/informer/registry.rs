//! Which informers run, and which of them shows each lease.
//!
//! [`Registry::tend`] brings what runs to what `pilothouse_core::informer::plan` asks for, step by step: start what is missing, hand over
//! leases to what has come far enough, stop what shows nothing any more. It is run by one task, whenever something has happened that
//! may let it go on: a lease came or went, an informer synced, was denied, or came further while a handover waits for it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::FutureExt;
use parking_lot::{Mutex, RwLock};
use pilothouse_core::{
    field::FieldPath,
    informer::{InformerKey, Runs, bounded, plan},
    key::{Key, TypeMeta},
    object::{Object, ResourceVersion, Uid},
};
use tokio::{
    runtime::{Handle, Runtime},
    sync::watch,
    task::AbortHandle,
};
use tracing::info;

use super::{
    Informer, Lease, Tally, driver,
    handover::hand_over,
    lease::{Asks, Place, Seat},
    outlet::Outlet,
    shared::Shared,
};
use crate::{cluster::Cluster, guests::tell_later, prompt::be_prompt};

/// All informers of the host.
#[derive(Clone)]
pub struct Informers {
    registry: Arc<Registry>,
    /// Looks for kinds that are missing.
    _looking: Arc<Driver>,
}

/// Starts what feeds an informer.
type Start = Box<dyn Fn(&Arc<Informer>) -> Driver + Send + Sync>;

/// What feeds an informer; it ends with this.
pub(super) struct Driver(pub(super) Option<AbortHandle>);

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Informers and leases by kind.
pub(super) struct Registry {
    start: Start,
    kinds: RwLock<HashMap<TypeMeta, Kind>>,
    /// Leases that were dropped.
    released: Mutex<Vec<Arc<Place>>>,
    /// Informers that have stopped.
    stopped: AtomicU64,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Kind {
    running: BTreeMap<InformerKey, Running>,
    leases: BTreeMap<u64, Arc<Place>>,
    /// What was counted of informers that have stopped: the counts of a kind do not fall while one takes over from another.
    past: Tally,
}

struct Running {
    informer: Arc<Informer>,
    _driver: Driver,
}

/// A running informer, and who holds leases that it shows.
pub struct Holding {
    /// The informer.
    pub informer: Arc<Informer>,
    /// In order.
    pub leases: Vec<Use>,
}

/// One use of an informer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// What is asked for.
    pub key: InformerKey,
    /// Who asks.
    pub holder: Arc<str>,
    /// Whether objects may be kept compressed.
    pub compressed: bool,
    /// What objects are looked up by.
    pub indexes: Box<[FieldPath]>,
}

/// `v1 Pod in web, metadata only, compressed, indexed by spec.nodeName`.
impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.key, if self.compressed { ", compressed" } else { "" })?;
        self.indexes.iter().try_for_each(|path| write!(f, ", indexed by {path}"))
    }
}

/// Cores of which one may be busy with what informers take in.
const CORES_EACH: usize = 8;

/// The runtime for the drivers of informers: a thread for every eight cores, and at least one. A thread takes in some 100,000 events a
/// second. Dropped, it ends without waiting for what runs on it, and may be dropped where another runtime runs.
///
/// With more, a connection and who reads it wake each other across threads, at every chunk; and each thread has an arena of the
/// allocator's, between which the texts of objects wander as they are replaced, until a sixth of the memory is holes.
pub struct Intake(Option<Runtime>);

impl Intake {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start() -> std::io::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(CORES_EACH));
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(threads).enable_all().thread_name("intake").on_thread_start(be_prompt);
        runtime.build().map(|runtime| Self(Some(runtime)))
    }

    /// Where to run something.
    pub fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is there until it is dropped").handle()
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Informers {
    /// None run yet. Their drivers will run on `io`, and their requests too.
    pub fn new(cluster: Cluster, io: Handle) -> Self {
        let (cluster, tending) = (cluster.on(io.clone()), io.clone());
        let looking = cluster.clone();
        let registry = Arc::new(Registry::new(Box::new(move |informer| {
            let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), &informer.key);
            Driver(Some(io.spawn(driver::run(informer.clone(), cluster.clone(), seed)).abort_handle()))
        })));
        tending.spawn(keep(Arc::downgrade(&registry), registry.shared.clone()));
        let looking = Driver(Some(tending.spawn(registry.shared.kinds.tasks(&looking)).abort_handle()));
        Self { registry, _looking: Arc::new(looking) }
    }

    /// Caches what `key` asks for until the lease is dropped. `holder` says for whom, to people.
    pub fn acquire(&self, key: InformerKey, holder: &str) -> Lease {
        self.registry.acquire(Asks::new(key, holder))
    }

    /// The same for what is seldom read: objects are kept compressed where all who use the informer acquired it so.
    pub fn acquire_compressed(&self, key: InformerKey, holder: &str) -> Lease {
        self.registry.acquire(Asks { compressed: true, ..Asks::new(key, holder) })
    }

    /// Another lease on what `lease` is on, of the same holder, that is looked up by what stands at these paths: the indexes live as
    /// long as it does.
    pub fn acquire_indexed(&self, lease: &Lease, indexes: impl Into<Box<[FieldPath]>>) -> Lease {
        let compressed = lease.is_compressed();
        self.registry.acquire(Asks {
            compressed,
            indexes: indexes.into(),
            ..Asks::new(lease.key().clone(), lease.holder())
        })
    }

    /// The informers that run now, in the order of their keys.
    pub fn all(&self) -> Vec<Arc<Informer>> {
        self.registry.all()
    }

    /// The informers that run now, in the order of their keys, each with the leases that it shows.
    pub fn holdings(&self) -> Vec<Holding> {
        self.registry.holdings()
    }

    /// How many informers have stopped since the start.
    pub fn stopped(&self) -> u64 {
        self.registry.stopped.load(Ordering::Relaxed)
    }

    /// What was counted of informers that have stopped, by kind, for kinds that others are running for.
    pub fn past(&self) -> Vec<(TypeMeta, Tally)> {
        let kinds = self.registry.kinds.read();
        kinds.iter().map(|(of, kind)| (of.clone(), kind.past.clone())).collect()
    }

    /// Changes when an informer turns to something else: it watches, or does not any more.
    pub(crate) fn turns(&self) -> watch::Receiver<u64> {
        self.registry.shared.turns()
    }

    /// Lets informers whose kind is missing look for it now: a CustomResourceDefinition has changed.
    pub fn look_for_kinds(&self) {
        self.registry.shared.kinds.changed();
    }

    /// Takes the answer to one of the host's own writes into every informer that covers it.
    pub fn own_write(&self, object: &Arc<Object>) {
        self.registry.own_write(object);
    }

    /// Takes an own delete that succeeded at once into every informer that covers it.
    pub fn own_delete(&self, of: &TypeMeta, key: &Key, uid: &Uid) {
        self.registry.own_delete(of, key, uid);
    }
}

/// Tends the registry until it is dropped.
async fn keep(registry: Weak<Registry>, shared: Arc<Shared>) {
    let mut building = false;
    loop {
        let rung = shared.bell.notified();
        let rang = if building {
            // Between two steps everybody has a turn: readers, the watch, and other tasks of this thread.
            tokio::task::yield_now().await;
            rung.now_or_never().is_some()
        } else {
            rung.await;
            true
        };
        let Some(registry) = registry.upgrade() else { return };
        if rang {
            registry.tend();
        }
        building = registry.build_indexes();
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.shared.bell.notify_one();
    }
}

impl Registry {
    pub(super) fn new(start: Start) -> Self {
        Self {
            start,
            kinds: RwLock::default(),
            released: Mutex::default(),
            stopped: AtomicU64::new(0),
            shared: Arc::default(),
        }
    }

    pub(super) fn acquire(self: &Arc<Self>, asks: Asks<'_>) -> Lease {
        let key = &asks.key;
        let mut kinds = self.kinds.write();
        let kind = kinds.entry(key.of.clone()).or_default();
        let informer = kind.best(key).unwrap_or_else(|| {
            let begins = kind.begins(key, asks.holder);
            let running = kind.running.get(&begins).map(|running| running.informer.clone());
            running.unwrap_or_else(|| self.start(kind, begins))
        });
        let seat = Seat::new(informer.clone(), key);
        let place = Arc::new(Place::new(self.shared.number(), asks, seat));
        let mut inner = informer.inner.write();
        informer.add_indexes(&mut inner, &place.indexes);
        place.synced.send_replace(inner.synced);
        let outlet = Outlet {
            lease: place.number,
            filter: place.seat.load().filter.clone(),
            seen: if inner.synced { inner.store.covered() } else { ResourceVersion::default() },
            synced: place.synced.clone(),
            subscribers: Vec::new(),
        };
        inner.outlets.push(outlet);
        drop(inner);
        kind.leases.insert(place.number, place.clone());
        drop(kinds);
        self.shared.bell.notify_one();
        Lease::new(place, Arc::downgrade(self))
    }

    /// May be called under any lock: all else is left to [`Registry::tend`].
    pub(super) fn release(&self, place: Arc<Place>) {
        self.released.lock().push(place);
        self.look();
    }

    /// Something was changed that `tend` should look at.
    pub(super) fn look(&self) {
        self.shared.bell.notify_one();
    }

    pub(super) fn all(&self) -> Vec<Arc<Informer>> {
        let kinds = self.kinds.read();
        let mut all: Vec<_> =
            kinds.values().flat_map(|kind| kind.running.values()).map(|r| r.informer.clone()).collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    }

    fn holdings(&self) -> Vec<Holding> {
        let kinds = self.kinds.read();
        let mut all = Vec::new();
        for kind in kinds.values() {
            for running in kind.running.values() {
                let shown = |place: &&Arc<Place>| Arc::ptr_eq(&place.seat.load().informer, &running.informer);
                let leases = kind.leases.values().filter(shown);
                let of_use = |place: &Arc<Place>| Use {
                    key: place.key.clone(),
                    holder: place.holder.clone(),
                    compressed: place.is_compressed(),
                    indexes: place.indexes.clone(),
                };
                let mut leases: Vec<_> = leases.map(of_use).collect();
                leases.sort();
                all.push(Holding { informer: running.informer.clone(), leases });
            }
        }
        all.sort_by(|a, b| a.informer.key.cmp(&b.informer.key));
        all
    }

    pub(super) fn own_write(&self, object: &Arc<Object>) {
        let _unlocked = tell_later();
        // Held to the end: a lease that goes over meanwhile would find it in one informer and not in the other.
        let kinds = self.kinds.read();
        for running in kinds.get(object.type_meta()).into_iter().flat_map(|kind| kind.running.values()) {
            running.informer.own_write(object);
        }
    }

    pub(super) fn own_delete(&self, of: &TypeMeta, key: &Key, uid: &Uid) {
        let _unlocked = tell_later();
        let kinds = self.kinds.read();
        for running in kinds.get(of).into_iter().flat_map(|kind| kind.running.values()) {
            running.informer.own_delete(key, uid);
        }
    }

    fn start(&self, kind: &mut Kind, key: InformerKey) -> Arc<Informer> {
        info!(informer = %key, "informer starting");
        let informer = Arc::new(Informer::new(key.clone(), self.shared.clone()));
        let driver = (self.start)(&informer);
        kind.running.insert(key, Running { informer: informer.clone(), _driver: driver });
        informer
    }

    /// Goes on as far as it can now.
    pub(super) fn tend(&self) {
        let _unlocked = tell_later();
        // Dropped after the locks are.
        let mut dropped = Vec::new();
        let mut kinds = self.kinds.write();
        for place in std::mem::take(&mut *self.released.lock()) {
            let Some(kind) = kinds.get_mut(&place.key.of) else { continue };
            kind.leases.remove(&place.number);
            let seat = place.seat.load();
            let mut inner = seat.informer.inner.write();
            inner.outlets.retain(|outlet| outlet.lease != place.number);
            dropped.append(&mut inner.drop_indexes(&place.indexes));
        }
        for kind in kinds.values_mut() {
            self.tend_kind(kind);
        }
        kinds.retain(|_, kind| !kind.running.is_empty());
    }

    /// Takes some more objects into each index that lacks some. False: none does.
    pub(super) fn build_indexes(&self) -> bool {
        let lacking = self.all().into_iter().filter(|informer| informer.build_indexes());
        lacking.count() > 0
    }

    fn tend_kind(&self, kind: &mut Kind) {
        let requests = kind.requests();
        let planned = plan(&requests, |key| kind.running.get(key).is_some_and(|running| running.informer.is_denied()));
        for key in &planned {
            if !kind.running.contains_key(key) {
                self.start(kind, key.clone());
            }
        }
        for running in kind.running.values() {
            running.informer.awaited.store(false, Ordering::Relaxed);
        }
        for place in kind.leases.values() {
            let Some(to) = kind.planned(place, &planned) else { continue };
            // Set before the look at how far it has come: what comes between rings the bell.
            to.awaited.store(true, Ordering::Relaxed);
            if hand_over(place, &to) {
                info!(lease = %place.key, informer = %to.key, "another informer shows a lease");
            }
        }
        kind.running.retain(|key, running| {
            let stays = planned.contains(key) || !running.informer.inner.read().outlets.is_empty();
            if !stays {
                self.stopped.fetch_add(1, Ordering::Relaxed);
                kind.past.add(&running.informer.tally());
                info!(informer = %key, "informer stopped: nobody uses it any more");
            }
            stays
        });
        for running in kind.running.values() {
            let informer = &running.informer;
            let shown = |place: &&Arc<Place>| Arc::ptr_eq(&place.seat.load().informer, informer);
            let mut users = kind.leases.values().filter(shown).peekable();
            informer.set_compressed(users.peek().is_some() && users.all(|place| place.is_compressed()));
        }
    }
}

impl Kind {
    /// What is asked for, bounded for each holder.
    fn requests(&self) -> BTreeSet<InformerKey> {
        let mut by_holder: BTreeMap<&str, BTreeSet<InformerKey>> = BTreeMap::new();
        for place in self.leases.values() {
            by_holder.entry(&place.holder).or_default().insert(place.key.clone());
        }
        by_holder.into_values().flat_map(|requests| bounded(requests, |key| self.runs(key))).collect()
    }

    /// The informer that a holder's request for `key` begins, where none that runs serves it.
    fn begins(&self, key: &InformerKey, holder: &str) -> InformerKey {
        let of_holder = self.leases.values().filter(|place| *place.holder == *holder).map(|place| &place.key);
        let bounded = bounded(of_holder.chain([key]).cloned().collect(), |key| self.runs(key));
        if bounded.contains(key) {
            return key.clone();
        }
        let wide = bounded.into_iter().find(|wide| wide.covers(key));
        wide.unwrap_or_else(|| key.clone())
    }

    /// Whether an informer of the same objects runs.
    fn runs(&self, key: &InformerKey) -> Runs {
        let same = self.running.values().map(|running| &running.informer).filter(|of| of.key.same_objects(key));
        let states = same.map(|informer| if informer.is_denied() { Runs::Denied } else { Runs::Yes });
        states.reduce(|one, other| if one == Runs::Yes { one } else { other }).unwrap_or(Runs::No)
    }

    /// A running informer that covers `key` and serves others than those who asked for it: one that has synced, if there is one.
    fn best(&self, key: &InformerKey) -> Option<Arc<Informer>> {
        let serves = |running: &&Running| {
            let informer = &running.informer;
            informer.key.covers(key) && (informer.key.same_objects(key) || !informer.is_denied())
        };
        let serving = self.running.values().filter(serves).map(|running| &running.informer);
        serving.max_by_key(|informer| (informer.is_synced(), informer.key == *key)).cloned()
    }

    /// The informer of the plan that should show a lease in place of the present one. None: it stays where it is.
    fn planned(&self, place: &Place, planned: &BTreeSet<InformerKey>) -> Option<Arc<Informer>> {
        let serves = |informer: &Informer| {
            planned.contains(&informer.key)
                && informer.key.covers(&place.key)
                && (informer.key.same_objects(&place.key) || !informer.is_denied())
        };
        if serves(&place.seat.load().informer) {
            return None;
        }
        let serving = self.running.values().map(|running| &running.informer).filter(|informer| serves(informer));
        serving.max_by_key(|informer| (informer.is_synced(), informer.key == place.key)).cloned()
    }
}
