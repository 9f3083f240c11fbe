//! Creates, reuses and counts the instances of one revision.
//!
//! ```text
//!        ┌── a reused one, the most recent first ───────────────┐ answered, and fit to be reused
//! call ──┼── a pre-warmed one ──────────────────────────────────┼──► else dropped
//!        └── a new one, in a slot of the pool or from nothing ──┘
//! ```
//!
//! - **Fresh** (default): every call gets a new instance.
//! - **Pre-warmed**: an idle worker creates the instance for the next call. That hides about 0.1 ms of cold-cache
//!   latency. Only the component's start function has run in it.
//! - **Reused**: if the manifest asks for reuse and the administrator allows it, an instance serves up to [`MAX_CALLS`]
//!   calls. Guest memory, tables and globals persist. What the host knows of a call
//!   ([`CallState`](super::super::contract::imports::host_state::CallState)) is new for each call.

use std::{
    fmt,
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures::FutureExt as _;
use parking_lot::Mutex;
use pilothouse_core::manifest::Policy;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tracing::{error, warn};
use wasmtime::{Store, UpdateDeadline, component};

use super::{
    super::{
        MAX_TRANSFER,
        contract::{
            bindings::Plugin,
            error::{CallError, FailedCall, Stage},
            export::{Bound, Export, PerExport, Reconcile},
            imports::{
                Imports,
                host_state::{HostState, TurnDelay},
                wasi,
            },
        },
        limits::Limits,
        load::code::Ready,
        memory::{MemoryBound, MemoryCharge, MemoryLimit},
    },
    engine::component::Linked,
    tally::{Alive, InstanceSet, Tally},
};
use crate::{guests::runs_suspect, name::PluginName};

/// Calls that a reused instance serves. A plugin with a small leak starts anew now and then. A start of a millisecond
/// costs each call a microsecond.
const MAX_CALLS: u32 = 1000;

/// Reused instances of one revision. More concurrent calls must be waiting for the API server, and can wait for a start
/// too.
const MAX_KEPT: usize = 16;

/// Idle time after which a reused instance is dropped.
const IDLE: Duration = Duration::from_secs(60);

/// A reused instance is dropped when it holds more than `limit / MARK`: the next call would have too little memory
/// left.
const MARK: usize = 2;

/// Time limit for pre-warming. An interpreter takes longer to start, and should be reused instead.
const AHEAD: Duration = Duration::from_millis(10);

/// Bytes of linear memory that a pre-warmed instance may have. One in Rust has a fifth, most of it untouched.
const LIGHT: usize = 8 << 20;

/// Bytes of linear memory that a worker thread may free after a call. If all are touched, that takes about a tick of
/// the epoch.
const LARGE: usize = 4 << 20;

/// Grace after the deadline before a waiting call is ended. A computing call is stopped by the epoch before that, with
/// a backtrace.
const LATER: Duration = Duration::from_millis(10);

/// Where an instance comes from, and whether it is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// One call of an instance without a slot. `describe` touches many times the memory of a call, because it renders a
    /// CustomResourceDefinition. A slot would have to clean as much after each later call.
    Once,
    /// Dropped after a call.
    Fresh,
    /// Reused after a call.
    Reuse,
}

/// The instances of one revision under one set of limits.
pub(crate) struct Instances {
    linked: Linked,
    limits: Limits,
    tally: Arc<Tally>,
    for_: Use,
    /// Idle instances. The last one served most recently.
    idle: Mutex<Vec<Instance>>,
    peak: AtomicUsize,
    /// `true` after the log said why an instance is not reused.
    said: AtomicBool,
    /// Pre-warming is suspended until this time, after a failed attempt.
    none_before: Mutex<Option<Instant>>,
}

impl Instances {
    /// Creates an empty set. `policy` is the manifest's.
    pub(crate) fn new(linked: &Linked, plugin: &PluginName, limits: Limits, policy: Policy) -> Arc<Self> {
        let reuse = policy == Policy::Reuse && limits.reuse;
        Self::of(linked, plugin, limits, if reuse { Use::Reuse } else { Use::Fresh })
    }

    /// Creates a set for the call of `describe`.
    pub(crate) fn once(linked: &Linked, plugin: &PluginName, limits: Limits) -> Arc<Self> {
        Self::of(linked, plugin, limits, Use::Once)
    }

    fn of(linked: &Linked, plugin: &PluginName, limits: Limits, for_: Use) -> Arc<Self> {
        let instances = Arc::new(Self {
            linked: linked.clone(),
            limits,
            tally: linked.engine.tally(plugin),
            for_,
            idle: Mutex::default(),
            peak: AtomicUsize::new(0),
            said: AtomicBool::new(false),
            none_before: Mutex::default(),
        });
        let set: Weak<Self> = Arc::downgrade(&instances);
        instances.tally.add(set);
        instances
    }

    /// Returns the counter of what the host remembers for the plugin.
    pub(crate) fn remembered(&self) -> &Arc<AtomicUsize> {
        self.tally.held.remembered()
    }

    /// Returns the limits of a call.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Calls an instance within `budget`: `run` calls it, and `read` reads the answer. The instance is reused only if
    /// both succeed.
    pub(crate) async fn call<R, T>(
        &self,
        imports: Option<Arc<dyn Imports>>,
        budget: Duration,
        run: impl AsyncFnOnce(&mut Instance) -> Staged<R>,
        read: impl FnOnce(R) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let mut instance = self.instance(imports, budget).await?;
        let ended = self.run(&mut instance, budget, run).await;
        let host = instance.store.data_mut();
        host.close();
        self.peak.fetch_max(host.limiter.used(), Ordering::Relaxed);
        let answer = match ended {
            Ok((Ok(answer), ended)) => {
                instance.served = ended;
                read(answer)
            }
            Ok((Err((stage, error)), _)) => {
                let said = host.call.interfaces.last_error();
                let call = FailedCall { budget, limits: &host.limiter, said: said.as_deref() };
                Err(CallError::of(&error, stage, &call))
            }
            Err(Late) => Err(CallError::Deadline { after: budget, backtrace: Vec::new() }),
        };
        let over = if answer.is_ok() { self.keep(instance) } else { Some(instance) };
        if let Some(over) = over {
            self.drop_instance(over);
        }
        answer
    }

    /// Pre-warms the instance of the next call, unless one is there or the engine has too many.
    ///
    /// An attempt fails if the start takes too long, the instance is too large, or the host panics. Then the next call
    /// creates its instance itself and reports the error. Pre-warming is tried again after a while.
    pub(crate) async fn prepare(&self) {
        let now = Instant::now();
        let may = self.none_before.lock().is_none_or(|before| before <= now);
        // A runtime that starts reads the clock and draws random numbers, which are those of a call.
        if self.for_ != Use::Fresh || !may || wasi::is_used(self.linked.imports()) || !self.idle.lock().is_empty() {
            return;
        }
        let Some(permit) = self.linked.engine.make_one_ahead() else { return };
        // Includes dropping an instance that is unfit or one too many.
        let made = AssertUnwindSafe(self.make_ahead(permit)).catch_unwind().await.unwrap_or_else(|_| {
            error!(plugin = %self.tally.plugin(), "the host panicked while it pre-warmed an instance");
            None
        });
        if made.is_none() {
            *self.none_before.lock() = Some(now + IDLE);
        }
    }

    /// Creates an instance, and keeps it if it is fit.
    async fn make_ahead(&self, permit: OwnedSemaphorePermit) -> Option<()> {
        let mut instance = self.instance(None, AHEAD).await.ok()?;
        let make = async |instance: &mut Instance| instance.reconcile().await.map(drop);
        self.run(&mut instance, AHEAD, make).await.ok()?.0.ok()?;
        if instance.store.data().limiter.used() > LIGHT {
            self.drop_instance(instance);
            return None;
        }
        instance.kept = Some(permit);
        // Another worker may have pre-warmed one meanwhile.
        if let Some(over) = self.park(instance, 1) {
            self.drop_instance(over);
        }
        Some(())
    }

    /// Returns the result of `run` and the time when it ended, or [`Late`] after `budget`.
    async fn run<R>(
        &self,
        instance: &mut Instance,
        budget: Duration,
        run: impl AsyncFnOnce(&mut Instance) -> Staged<R>,
    ) -> Result<(Staged<R>, Instant), Late> {
        let (began, delay) = (instance.served, instance.store.data().delay.clone());
        within(budget + LATER, &delay, pin!(self.computing(began, pin!(run(instance))))).await
    }

    /// Returns the result of `call` and the time when it ended. While the call computes, the epoch advances, and the
    /// time is charged to the plugin.
    async fn computing<T>(&self, began: Instant, mut call: Pin<&mut impl Future<Output = T>>) -> (T, Instant) {
        let mut begins = Some(began);
        poll_fn(|cx| {
            let began = begins.take().unwrap_or_else(Instant::now);
            let polled = {
                let _running = self.linked.engine.running();
                call.as_mut().poll(cx)
            };
            let ended = Instant::now();
            let took = u64::try_from(ended.duration_since(began).as_nanos()).unwrap_or(u64::MAX);
            self.tally.computed.fetch_add(took, Ordering::Relaxed);
            polled.map(|answer| (answer, ended))
        })
        .await
    }

    /// Returns a reused or pre-warmed instance, or a new one, which is created when it is first called. Its call begins
    /// now.
    async fn instance(&self, imports: Option<Arc<dyn Imports>>, budget: Duration) -> Result<Instance, CallError> {
        let now = Instant::now();
        if let Some(mut kept) = self.take(now) {
            kept.served = now;
            kept.store.data_mut().again(imports, budget);
            kept.store.set_epoch_deadline(1);
            // Its code is in use, although nobody asked the engine for it.
            kept.ready.touch();
            if self.for_ == Use::Fresh {
                // Its permit is free for another one.
                kept.kept = None;
            }
            self.tally.reused.fetch_add((kept.calls > 0).into(), Ordering::Relaxed);
            return Ok(kept);
        }
        let Linked { engine, code, .. } = &self.linked;
        let ready = match self.for_ {
            Use::Once => engine.ready_plain(code).await.map(|ready| (ready, None, false)),
            Use::Fresh | Use::Reuse => engine.ready(code).await,
        };
        let (ready, slot, mapped) = ready.map_err(|e| CallError::Host(e.to_string()))?;
        self.tally.mapped.fetch_add(mapped.into(), Ordering::Relaxed);
        let mut host = HostState::new(imports, self.limits, self.tally.held.clone(), budget);
        if !host.limiter.make(code.room()) {
            let limit = MemoryLimit::Plugin(self.limits.total_memory);
            return Err(CallError::Memory { limit, backtrace: Vec::new() });
        }
        // The time is taken here, because mapping the code takes a while.
        Ok(Instance::new(Instant::now(), host, ready, slot, Arc::clone(&self.tally)))
    }

    /// Takes the instance that served last, so that the others can become idle.
    fn take(&self, now: Instant) -> Option<Instance> {
        let last = self.idle.lock().pop()?;
        if self.is_stale(&last) {
            self.drop_instance(last);
            return self.take(now);
        }
        if self.for_ != Use::Reuse || now.duration_since(last.served) < IDLE {
            return Some(last);
        }
        self.drop_idle();
        None
    }

    /// Counts an outcome of `bytes` bytes as the plugin's memory.
    pub(crate) fn charge(&self, bytes: usize) -> Result<MemoryCharge, CallError> {
        let most = MemoryBound { total: self.limits.total_memory, one: self.limits.memory };
        let limit = MemoryLimit::Plugin(most.total);
        self.tally.held.charge(bytes, most).ok_or(CallError::Memory { limit, backtrace: Vec::new() })
    }

    /// Keeps an instance that answered, if it is fit to be reused. Otherwise returns it.
    fn keep(&self, mut instance: Instance) -> Option<Instance> {
        instance.calls += 1;
        if self.for_ != Use::Reuse || instance.calls >= MAX_CALLS || self.is_stale(&instance) {
            return Some(instance);
        }
        let holds = instance.store.data().limiter.used();
        if holds > self.limits.memory / MARK {
            if !self.said.swap(true, Ordering::Relaxed) {
                warn!(
                    plugin = %self.tally.plugin(), bytes = holds, limit = self.limits.memory,
                    "an instance holds more than half of its memory limit and is not reused; raise limits.memoryMiB if that is expected"
                );
            }
            return Some(instance);
        }
        if instance.kept.is_none() {
            instance.kept = self.linked.engine.keep_one();
        }
        // Too many instances of all plugins are kept.
        if instance.kept.is_none() {
            return Some(instance);
        }
        self.park(instance, MAX_KEPT)
    }

    /// Keeps the instance idle, or returns it if there are `most` already. The caller drops it outside the lock,
    /// because that takes a while.
    fn park(&self, instance: Instance, most: usize) -> Option<Instance> {
        let mut idle = self.idle.lock();
        if idle.len() >= most {
            return Some(instance);
        }
        idle.push(instance);
        None
    }

    /// Returns `true` if the code has been optimized since.
    fn is_stale(&self, instance: &Instance) -> bool {
        instance.ready.tier != self.linked.code.tier()
    }

    /// Drops an instance. A large one is dropped on another thread, except in a plugin that runs apart.
    fn drop_instance(&self, mut instance: Instance) {
        if instance.retire() > LARGE && !runs_suspect() {
            self.linked.engine.drop_later(Box::new(instance));
        }
    }

    /// Drops some of the idle instances.
    fn end(&self, which: impl Fn(&Instance) -> bool) {
        let ended: Vec<Instance> = self.idle.lock().extract_if(.., |instance| which(instance)).collect();
        // Outside the lock, because it takes a while.
        ended.into_iter().for_each(|instance| self.drop_instance(instance));
    }
}

impl InstanceSet for Instances {
    fn kept(&self) -> usize {
        self.idle.lock().len()
    }

    fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    fn drop_idle(&self) {
        if self.for_ == Use::Reuse {
            self.end(|instance| instance.served.elapsed() >= IDLE || self.is_stale(instance));
        }
    }

    fn drop_ahead(&self) {
        if self.for_ == Use::Fresh {
            self.end(|instance| !instance.ready.was_called() || self.is_stale(instance));
        }
    }
}

/// The call waited for the host beyond its deadline.
struct Late;

/// Returns the result of `call`, or [`Late`] if it waits beyond `most`.
///
/// The epoch stops a computing guest, with a backtrace. This is for a waiting one, so no timer is created before the
/// call first waits. `most` counts from then: the guest gives way at each tick, so it computed for less than a tick
/// before. `delay` extends it.
async fn within<T>(most: Duration, delay: &TurnDelay, mut call: Pin<&mut impl Future<Output = T>>) -> Result<T, Late> {
    let mut end = pin!(None);
    let mut allowed = most;
    poll_fn(|cx| {
        if let Poll::Ready(answer) = call.as_mut().poll(cx) {
            return Poll::Ready(Ok(answer));
        }
        if end.is_none() {
            end.set(Some(tokio::time::sleep(most)));
        }
        let Some(mut end) = end.as_mut().as_pin_mut() else { return Poll::Pending };
        while end.as_mut().poll(cx).is_ready() {
            let now_allowed = delay.allows(most);
            if now_allowed <= allowed {
                return Poll::Ready(Err(Late));
            }
            let until = end.deadline() + (now_allowed - allowed);
            end.as_mut().reset(until);
            allowed = now_allowed;
        }
        Poll::Pending
    })
    .await
}

impl fmt::Debug for Instances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instances").field("limits", &self.limits).field("for_", &self.for_).finish_non_exhaustive()
    }
}

/// An instance. It is created when it is first called.
pub(crate) struct Instance {
    store: Store<HostState>,
    ready: Arc<Ready>,
    made: Option<component::Instance>,
    // Its exports, bound at the first use.
    reconcile: Option<Reconcile>,
    optional: Option<Box<PerExport<Bound>>>,
    /// Calls that it has answered.
    calls: u32,
    /// When it last answered. During a call, when the call began.
    served: Instant,
    /// `None` after [`Self::retire`].
    alive: Option<Alive>,
    // Released after the store is dropped: fields are dropped in this order.
    _slot: Option<OwnedSemaphorePermit>,
    kept: Option<OwnedSemaphorePermit>,
}

/// An error, and the stage of the call in which it occurred.
type Staged<T> = Result<T, (Stage, wasmtime::Error)>;

impl Instance {
    fn new(
        now: Instant,
        host: HostState,
        ready: Arc<Ready>,
        slot: Option<OwnedSemaphorePermit>,
        tally: Arc<Tally>,
    ) -> Self {
        let mut store = Store::new(&ready.engine, host);
        store.limiter(|host| &mut host.limiter);
        store.set_hostcall_fuel(MAX_TRANSFER);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|store| {
            let host = store.data();
            let passed = host.call.began.elapsed();
            // The delay requires a system call, so it is read only when it matters.
            if passed >= host.call.budget && passed >= host.delay.allows(host.call.budget) {
                return Ok(UpdateDeadline::Interrupt);
            }
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(host.delay.clone().give_way())))
        });
        Self {
            store,
            ready,
            made: None,
            reconcile: None,
            optional: None,
            calls: 0,
            served: now,
            alive: Some(Alive::new(tally)),
            _slot: slot,
            kept: None,
        }
    }

    /// Returns the export `controller`, and the store to call it in. For `describe`: other calls need one function of it.
    pub(crate) async fn controller(&mut self) -> Staged<(Plugin, &mut Store<HostState>)> {
        let made = self.make().await?;
        let plugin = self.ready.plugin.load(&mut self.store, &made).map_err(instantiating)?;
        Ok((plugin, &mut self.store))
    }

    /// Returns the function `reconcile`, and the store to call it in.
    pub(crate) async fn reconcile(&mut self) -> Staged<(Reconcile, &mut Store<HostState>)> {
        let made = self.make().await?;
        let (ready, store) = (&self.ready, &mut self.store);
        let found = *looked_up(&mut self.reconcile, || ready.reconcile.find(&mut *store, &made))?;
        Ok((found, &mut self.store))
    }

    /// Returns an optional export, which must be there, and the store to call it in.
    pub(crate) async fn export(&mut self, export: Export) -> Staged<(&Bound, &mut Store<HostState>)> {
        let made = self.make().await?;
        let (ready, store) = (&self.ready, &mut self.store);
        let indices = ready.optional.get(export).expect("callers check that it is exported");
        let found = self.optional.get_or_insert_default().slot(export);
        looked_up(found, || indices.bind(&mut *store, &made)).map(|bound| (bound, &mut self.store))
    }

    async fn make(&mut self) -> Staged<component::Instance> {
        if let Some(made) = self.made {
            return Ok(made);
        }
        if let Some(alive) = &self.alive {
            alive.made();
        }
        let made = self.ready.instance.instantiate_async(&mut self.store).await.map_err(instantiating)?;
        Ok(*self.made.insert(made))
    }

    /// Stops counting the instance. Returns the bytes of linear memory that it holds.
    pub(crate) fn retire(&mut self) -> usize {
        self.alive = None;
        self.store.data_mut().limiter.release()
    }
}

fn looked_up<T>(found: &mut Option<T>, load: impl FnOnce() -> wasmtime::Result<T>) -> Staged<&T> {
    match found {
        Some(found) => Ok(found),
        None => Ok(found.insert(load().map_err(instantiating)?)),
    }
}

fn instantiating(error: wasmtime::Error) -> (Stage, wasmtime::Error) {
    (Stage::Instantiate, error)
}

/// Marks an error of a call.
pub(crate) fn calling(error: wasmtime::Error) -> (Stage, wasmtime::Error) {
    (Stage::Call, error)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::{
        super::super::{Engine, testing::Guest},
        *,
    };

    #[tokio::test]
    async fn description_takes_no_slot_of_the_pool() {
        let engine = Engine::new().unwrap();
        let linked = engine.compile(&Guest::new().file()).unwrap().link().await.unwrap();
        let name = PluginName::new("test").unwrap();
        let slot = async |instances: Arc<Instances>| instances.instance(None, IDLE).await.unwrap()._slot.is_some();
        assert!(!slot(Instances::once(&linked, &name, Limits::default())).await);
        let is_pooled = engine.figures().slots.is_some();
        assert_eq!(slot(Instances::new(&linked, &name, Limits::default(), Policy::Fresh)).await, is_pooled);
    }

    #[test]
    fn call_that_never_waits_needs_no_timer() {
        // A timer would need a runtime, and there is none.
        assert_eq!(within(IDLE, &TurnDelay::default(), pin!(ready(1))).now_or_never().and_then(Result::ok), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_call_lasts_until_its_deadline() {
        let began = Instant::now();
        let in_time = pin!(async {
            sleep(IDLE - LATER).await;
            1
        });
        let nothing = TurnDelay::default();
        assert_eq!(within(IDLE, &nothing, in_time).await.ok(), Some(1));
        assert_eq!(within(IDLE, &nothing, pin!(pending::<u32>())).await.ok(), None);
        assert_eq!(began.elapsed(), IDLE - LATER + IDLE);
    }
}
