//! Decides which informers run, and which of them shows each lease.
//!
//! [`Registry::tend`] brings the running informers to what `pilothouse_core::informer::plan` returns, step by step. It
//! starts missing informers, hands leases over to informers that have come far enough, and stops informers without
//! leases. One task runs it whenever a step may be possible: a lease was acquired or dropped, an informer synced or was
//! denied, or an awaited informer came further.

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
    kinds::KindsWatch,
    lease::{Attachment, Claim, LeaseRequest},
    outlet::Outlet,
    shared::Shared,
};
use crate::{cluster::Cluster, guests::defer_wakes, prompt::be_prompt};

/// All informers of the host.
#[derive(Clone)]
pub struct Informers {
    registry: Arc<Registry>,
    /// Wakes informers whose kind appears.
    _looking: Arc<DriverTask>,
}

/// Starts the driver of an informer.
type Start = Box<dyn Fn(&Arc<Informer>) -> DriverTask + Send + Sync>;

/// A running driver. Dropping this aborts it.
pub(super) struct DriverTask(pub(super) Option<AbortHandle>);

impl Drop for DriverTask {
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
    /// Dropped leases that the next [`Registry::tend`] removes.
    released: Mutex<Vec<Arc<Claim>>>,
    /// Number of informers that have stopped since the start.
    stopped: AtomicU64,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Kind {
    running: BTreeMap<InformerKey, RunningInformer>,
    leases: BTreeMap<u64, Arc<Claim>>,
    /// The counters of stopped informers, so that the counters of a kind do not fall at a handover.
    past: Tally,
}

struct RunningInformer {
    informer: Arc<Informer>,
    _driver: DriverTask,
}

/// A running informer and the leases that it shows.
pub struct Holding {
    /// The informer.
    pub informer: Arc<Informer>,
    /// The leases, in order.
    pub leases: Vec<Use>,
}

/// A lease on an informer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// What was requested.
    pub key: InformerKey,
    /// The holder, for people.
    pub holder: Arc<str>,
    /// `true` if the holder allows compression.
    pub compressed: bool,
    /// Paths by which objects are looked up.
    pub indexes: Box<[FieldPath]>,
}

/// `v1 Pod in web, metadata only, compressed, indexed by spec.nodeName`.
impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.key, if self.compressed { ", compressed" } else { "" })?;
        self.indexes.iter().try_for_each(|path| write!(f, ", indexed by {path}"))
    }
}

/// Cores for each thread that reads watches.
const CORES_EACH: usize = 8;

/// The runtime for the drivers of informers: a thread for every eight cores, and at least one. A thread
/// handles about 100,000 events a second. Dropping the runtime does not wait for its tasks, and is allowed inside
/// another runtime.
///
/// More threads cost more than they give. A connection and its reader then wake each other across threads at every
/// chunk. The allocator has an arena for each thread, and objects that move between arenas leave holes: a sixth of the
/// memory.
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

    /// The runtime's handle.
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
    /// Creates the registry. Drivers and their requests run on `io`.
    pub fn new(cluster: Cluster, io: Handle) -> Self {
        let (cluster, tending) = (cluster.on(io.clone()), io.clone());
        let looking = cluster.clone();
        let registry = Arc::new(Registry::new(Box::new(move |informer| {
            let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), &informer.key);
            DriverTask(Some(io.spawn(driver::run(informer.clone(), cluster.clone(), seed)).abort_handle()))
        })));
        tending.spawn(keep(Arc::downgrade(&registry), registry.shared.clone()));
        let looking = DriverTask(Some(tending.spawn(registry.shared.kinds.tasks(&looking)).abort_handle()));
        Self { registry, _looking: Arc::new(looking) }
    }

    /// Caches the objects of `key` until the lease is dropped. `holder` names the user of the lease, for people.
    pub fn acquire(&self, key: InformerKey, holder: &str) -> Lease {
        self.registry.acquire(LeaseRequest::new(key, holder))
    }

    /// Acquires a lease on objects that are seldom read. An informer compresses its objects if all its leases allow it.
    pub fn acquire_compressed(&self, key: InformerKey, holder: &str) -> Lease {
        self.registry.acquire(LeaseRequest { compressed: true, ..LeaseRequest::new(key, holder) })
    }

    /// Acquires another lease on the same objects for the same holder, with indexes by these paths. The indexes live as
    /// long as the new lease.
    pub fn acquire_indexed(&self, lease: &Lease, indexes: impl Into<Box<[FieldPath]>>) -> Lease {
        let compressed = lease.is_compressed();
        self.registry.acquire(LeaseRequest {
            compressed,
            indexes: indexes.into(),
            ..LeaseRequest::new(lease.key().clone(), lease.holder())
        })
    }

    /// Returns the running informers, in the order of their keys.
    pub fn all(&self) -> Vec<Arc<Informer>> {
        self.registry.all()
    }

    /// Returns the running informers, in the order of their keys, each with its leases.
    pub fn holdings(&self) -> Vec<Holding> {
        self.registry.holdings()
    }

    /// Number of informers that have stopped since the start.
    pub fn stopped(&self) -> u64 {
        self.registry.stopped.load(Ordering::Relaxed)
    }

    /// Returns the counters of stopped informers by kind, for kinds that still have a running informer.
    pub fn past(&self) -> Vec<(TypeMeta, Tally)> {
        let kinds = self.registry.kinds.read();
        kinds.iter().map(|(of, kind)| (of.clone(), kind.past.clone())).collect()
    }

    /// Changes when an informer changes its state, for example when its watch opens or breaks.
    pub(crate) fn turns(&self) -> watch::Receiver<u64> {
        self.registry.shared.turns()
    }

    /// Makes informers whose kind is missing look for it now, because a CustomResourceDefinition has changed.
    pub fn look_for_kinds(&self) {
        self.registry.shared.kinds.changed();
    }

    /// Follows which kinds the server serves.
    pub fn follow_kinds(&self) -> KindsWatch {
        self.registry.shared.kinds.follow()
    }

    /// Stores the answer to one of the host's own writes in every informer that covers the object.
    pub fn own_write(&self, object: &Arc<Object>) {
        self.registry.own_write(object);
    }

    /// Removes an object that the host deleted from every informer that covers it.
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
            // Yields between two steps to readers, watches and other tasks of this thread.
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

    pub(super) fn acquire(self: &Arc<Self>, request: LeaseRequest<'_>) -> Lease {
        let key = &request.key;
        let mut kinds = self.kinds.write();
        let kind = kinds.entry(key.of.clone()).or_default();
        let informer = kind.best(key).unwrap_or_else(|| {
            let begins = kind.begins(key, request.holder);
            let running = kind.running.get(&begins).map(|running| running.informer.clone());
            running.unwrap_or_else(|| self.start(kind, begins))
        });
        let attached = Attachment::new(informer.clone(), key);
        let claim = Arc::new(Claim::new(self.shared.number(), request, attached));
        let mut cache = informer.cache.write();
        informer.add_indexes(&mut cache, &claim.indexes);
        claim.synced.send_replace(cache.synced);
        let outlet = Outlet {
            lease: claim.number,
            filter: claim.attached.load().filter.clone(),
            seen: if cache.synced { cache.store.covered() } else { ResourceVersion::default() },
            synced: claim.synced.clone(),
            subscribers: Vec::new(),
        };
        cache.outlets.push(outlet);
        drop(cache);
        kind.leases.insert(claim.number, claim.clone());
        drop(kinds);
        self.shared.bell.notify_one();
        Lease::new(claim, Arc::downgrade(self))
    }

    /// Queues a dropped lease for [`Registry::tend`]. May be called under any lock.
    pub(super) fn release(&self, claim: Arc<Claim>) {
        self.released.lock().push(claim);
        self.look();
    }

    /// Makes the registry's task run [`Registry::tend`].
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
                let shown = |claim: &&Arc<Claim>| Arc::ptr_eq(&claim.attached.load().informer, &running.informer);
                let leases = kind.leases.values().filter(shown);
                let of_use = |claim: &Arc<Claim>| Use {
                    key: claim.key.clone(),
                    holder: claim.holder.clone(),
                    compressed: claim.is_compressed(),
                    indexes: claim.indexes.clone(),
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
        let _deferred = defer_wakes();
        // Held to the end, so that no lease moves from an informer with this write to one without it.
        let kinds = self.kinds.read();
        for running in kinds.get(object.type_meta()).into_iter().flat_map(|kind| kind.running.values()) {
            running.informer.own_write(object);
        }
    }

    pub(super) fn own_delete(&self, of: &TypeMeta, key: &Key, uid: &Uid) {
        let _deferred = defer_wakes();
        let kinds = self.kinds.read();
        for running in kinds.get(of).into_iter().flat_map(|kind| kind.running.values()) {
            running.informer.own_delete(key, uid);
        }
    }

    fn start(&self, kind: &mut Kind, key: InformerKey) -> Arc<Informer> {
        info!(informer = %key, "informer starting");
        let informer = Arc::new(Informer::new(key.clone(), self.shared.clone()));
        let driver = (self.start)(&informer);
        kind.running.insert(key, RunningInformer { informer: informer.clone(), _driver: driver });
        informer
    }

    /// Performs all steps towards the plan that are possible now.
    pub(super) fn tend(&self) {
        let _deferred = defer_wakes();
        // Declared before the locks, so that it is dropped after them.
        let mut dropped = Vec::new();
        let mut kinds = self.kinds.write();
        for claim in std::mem::take(&mut *self.released.lock()) {
            let Some(kind) = kinds.get_mut(&claim.key.of) else { continue };
            kind.leases.remove(&claim.number);
            let attached = claim.attached.load();
            let mut cache = attached.informer.cache.write();
            cache.outlets.retain(|outlet| outlet.lease != claim.number);
            dropped.append(&mut cache.drop_indexes(&claim.indexes));
        }
        for kind in kinds.values_mut() {
            self.tend_kind(kind);
        }
        kinds.retain(|_, kind| !kind.running.is_empty());
    }

    /// Adds some more objects to each incomplete index. Returns `true` if an index is still incomplete.
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
        for claim in kind.leases.values() {
            let Some(to) = kind.planned(claim, &planned) else { continue };
            // Set before `hand_over` compares versions, so that an advance between the two notifies this task.
            to.awaited.store(true, Ordering::Relaxed);
            if hand_over(claim, &to) {
                info!(lease = %claim.key, informer = %to.key, "lease handed over to another informer");
            }
        }
        kind.running.retain(|key, running| {
            let stays = planned.contains(key) || !running.informer.cache.read().outlets.is_empty();
            if !stays {
                self.stopped.fetch_add(1, Ordering::Relaxed);
                kind.past.add(&running.informer.tally());
                info!(informer = %key, "informer stopped: no lease is left");
            }
            stays
        });
        for running in kind.running.values() {
            let informer = &running.informer;
            let shown = |claim: &&Arc<Claim>| Arc::ptr_eq(&claim.attached.load().informer, informer);
            let mut users = kind.leases.values().filter(shown).peekable();
            informer.set_compressed(users.peek().is_some() && users.all(|claim| claim.is_compressed()));
        }
    }
}

impl Kind {
    /// Returns what the leases request, bounded for each holder.
    fn requests(&self) -> BTreeSet<InformerKey> {
        let mut by_holder: BTreeMap<&str, BTreeSet<InformerKey>> = BTreeMap::new();
        for claim in self.leases.values() {
            by_holder.entry(&claim.holder).or_default().insert(claim.key.clone());
        }
        by_holder.into_values().flat_map(|requests| bounded(requests, |key| self.runs(key))).collect()
    }

    /// Returns the informer to start for a holder's request, if no running informer serves it.
    fn begins(&self, key: &InformerKey, holder: &str) -> InformerKey {
        let of_holder = self.leases.values().filter(|claim| *claim.holder == *holder).map(|claim| &claim.key);
        let bounded = bounded(of_holder.chain([key]).cloned().collect(), |key| self.runs(key));
        if bounded.contains(key) {
            return key.clone();
        }
        let wide = bounded.into_iter().find(|wide| wide.covers(key));
        wide.unwrap_or_else(|| key.clone())
    }

    /// Returns whether an informer of the same objects runs, and whether it is denied.
    fn runs(&self, key: &InformerKey) -> Runs {
        let same = self.running.values().map(|running| &running.informer).filter(|of| of.key.same_objects(key));
        let states = same.map(|informer| if informer.is_denied() { Runs::Denied } else { Runs::Yes });
        states.reduce(|one, other| if one == Runs::Yes { one } else { other }).unwrap_or(Runs::No)
    }

    /// Returns a running informer that can serve `key`, preferably a synced one. A denied informer serves only requests
    /// for its own objects.
    fn best(&self, key: &InformerKey) -> Option<Arc<Informer>> {
        let serves = |running: &&RunningInformer| {
            let informer = &running.informer;
            informer.key.covers(key) && (informer.key.same_objects(key) || !informer.is_denied())
        };
        let serving = self.running.values().filter(serves).map(|running| &running.informer);
        serving.max_by_key(|informer| (informer.is_synced(), informer.key == *key)).cloned()
    }

    /// Returns the planned informer that should take a lease over, or `None` if the lease stays where it is.
    fn planned(&self, claim: &Claim, planned: &BTreeSet<InformerKey>) -> Option<Arc<Informer>> {
        let serves = |informer: &Informer| {
            planned.contains(&informer.key)
                && informer.key.covers(&claim.key)
                && (informer.key.same_objects(&claim.key) || !informer.is_denied())
        };
        if serves(&claim.attached.load().informer) {
            return None;
        }
        let serving = self.running.values().map(|running| &running.informer).filter(|informer| serves(informer));
        serving.max_by_key(|informer| (informer.is_synced(), informer.key == claim.key)).cloned()
    }
}
