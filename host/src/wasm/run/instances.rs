//! Instances of one revision: made for a call, perhaps ahead of it, perhaps kept for the next one, and counted.
//!
//! ```text
//!        ┌── one that was kept, the last that served ◄──────────────┐ answered, and fit to serve again
//! call ──┼── one that was made ahead ───────────────────────────────┼──► else dropped
//!        └── a new one, in a slot of the pool or made from nothing ─┘
//! ```
//!
//! One is made ahead where calls do not come one after another, so that the next does not have to wait for it: it takes a tenth of a millisecond where
//! nothing of it is in the core's caches. Nothing has run in it but the component's own start.
//!
//! Instances are kept where the manifest asks for that and the administrator lets it. What a kept one takes along lies in its own memory,
//! tables and globals. What the host knows of a call ([`CallState`](super::super::contract::host_state::CallState)) begins anew with each: its imports, its deadline, what it may ask and say.

use std::{
    fmt,
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::{
        Arc,
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
            error::{CallError, Ended, Stage},
            export::{Bound, Export, PerExport},
            host_state::{HostState, TurnDelay},
            imports::Imports,
        },
        limits::Limits,
        load::code::Ready,
        memory::{Kept, MemoryLimit, Most},
    },
    component::Linked,
    tally::{Alive, Tally},
};
use crate::name::PluginName;

/// Calls that one instance serves. A plugin that leaks a little at each begins anew now and then, and a start that takes a millisecond
/// is a microsecond a call.
const MAX_CALLS: u32 = 1000;

/// Instances that are kept of one revision. More calls at once than this wait for the API server, and can wait for a start too.
const MAX_KEPT: usize = 16;

/// An instance that nobody calls for this long ends.
pub(crate) const IDLE: Duration = Duration::from_secs(60);

/// An instance that holds more than its limit over this is not kept: the next call would have too little left.
const MARK: usize = 2;

/// What is made ahead is made within this, or not at all: an interpreter that starts is better kept.
const AHEAD: Duration = Duration::from_millis(10);

/// Bytes of linear memory that an instance may have where it waits for its first call. One in Rust has a fifth of it, most of which nobody
/// has touched.
const LIGHT: usize = 8 << 20;

/// Bytes of linear memory that may be given back where a call ends: at most about a tick of the epoch, if all were touched.
pub(crate) const LARGE: usize = 4 << 20;

/// How long after its deadline a call that waits for the host is ended: a busy one should have been stopped by the epoch before, and it should not
/// come first where both would do.
const LATER: Duration = Duration::from_millis(10);

/// What becomes of an instance after a call, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// It is the only one, and is made from nothing. What describes itself touches many times what a call does (a
    /// CustomResourceDefinition is rendered), and a slot of the pool would have as much to clean after each call from then on.
    Once,
    /// It ends.
    Fresh,
    /// It may serve again.
    Reuse,
}

/// What one revision's calls are served by, under one set of limits. Other limits have other instances, and so has another revision.
pub(crate) struct Instances {
    linked: Linked,
    limits: Limits,
    tally: Arc<Tally>,
    for_: Use,
    /// In the order in which they served.
    idle: Mutex<Vec<Instance>>,
    peak: AtomicUsize,
    /// It was said that none is kept, and why.
    said: AtomicBool,
    /// None is made ahead before this: the last could not be.
    none_before: Mutex<Option<Instant>>,
}

impl Instances {
    /// None yet. `policy` is what the manifest asks for.
    pub(crate) fn new(linked: &Linked, plugin: &PluginName, limits: Limits, policy: Policy) -> Arc<Self> {
        let reuse = policy == Policy::Reuse && limits.reuse;
        Self::of(linked, plugin, limits, if reuse { Use::Reuse } else { Use::Fresh })
    }

    /// For one call, of what is not described yet.
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
        instances.tally.add(&instances);
        instances
    }

    /// Counts what the host remembers for the plugin.
    pub(crate) fn remembered(&self) -> &Arc<AtomicUsize> {
        self.tally.held.remembered()
    }

    /// How many wait for a call.
    pub(crate) fn kept(&self) -> usize {
        self.idle.lock().len()
    }

    /// The most that one has held.
    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// What a call may take.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Lets `run` call an instance within `budget`, and `read` what that gives. The instance is kept only if both are content.
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
                let call = Ended { budget, limits: &host.limiter, said: host.call.interfaces.last_error() };
                Err(CallError::of(&error, stage, &call))
            }
            Err(Late) => Err(CallError::Deadline { after: budget, backtrace: Vec::new() }),
        };
        let over = if answer.is_ok() { self.keep(instance) } else { Some(instance) };
        if let Some(over) = over {
            self.linked.engine.end(over);
        }
        answer
    }

    /// Makes the instance that the next call will have, unless there is one or too many are there for other plugins. Where that does not
    /// work, as its start takes too long, it holds too much, or the host fails over it, the call will make it itself, and say why it cannot;
    /// it is tried again after a while.
    pub(crate) async fn prepare(&self) {
        let now = Instant::now();
        let may = self.none_before.lock().is_none_or(|before| before <= now);
        if self.for_ != Use::Fresh || !may || !self.idle.lock().is_empty() {
            return;
        }
        let Some(permit) = self.linked.engine.make_one_ahead() else { return };
        // With the end of one that is not fit, or is one too many.
        let made = AssertUnwindSafe(self.make_ahead(permit)).catch_unwind().await.unwrap_or_else(|_| {
            error!(plugin = %self.tally.plugin(), "the host failed over an instance that it made ahead");
            None
        });
        if made.is_none() {
            *self.none_before.lock() = Some(now + IDLE);
        }
    }

    /// Makes one, and lets it wait for its call if it is fit to.
    async fn make_ahead(&self, permit: OwnedSemaphorePermit) -> Option<()> {
        let mut instance = self.instance(None, AHEAD).await.ok()?;
        let make = async |instance: &mut Instance| instance.controller().await.map(drop);
        self.run(&mut instance, AHEAD, make).await.ok()?.0.ok()?;
        if instance.store.data().limiter.used() > LIGHT {
            self.linked.engine.end(instance);
            return None;
        }
        instance.kept = Some(permit);
        // Another worker may have been as quick.
        if let Some(over) = self.rest(instance, 1) {
            self.linked.engine.end(over);
        }
        Some(())
    }

    /// What `run` gives, and when it ended, unless that comes later than after `budget`.
    async fn run<R>(
        &self,
        instance: &mut Instance,
        budget: Duration,
        run: impl AsyncFnOnce(&mut Instance) -> Staged<R>,
    ) -> Result<(Staged<R>, Instant), Late> {
        let (began, delay) = (instance.served, instance.store.data().delay.clone());
        within(budget + LATER, &delay, pin!(self.computing(began, pin!(run(instance))))).await
    }

    /// What `call` gives, which began at a time, and when it ended. While it computes the epoch advances, and that is the plugin's time.
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

    /// One that was kept or made ahead, or a new one that is made when it is first called. Its call begins now.
    async fn instance(&self, imports: Option<Arc<dyn Imports>>, budget: Duration) -> Result<Instance, CallError> {
        let now = Instant::now();
        if let Some(mut kept) = self.take(now) {
            kept.served = now;
            kept.store.data_mut().again(imports, budget);
            kept.store.set_epoch_deadline(1);
            // Its code is in use, though nobody asks for it.
            kept.ready.touch();
            if self.for_ == Use::Fresh {
                // It waits no more.
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
        // Not when it was asked for: to map the code takes a while.
        Ok(Instance::new(Instant::now(), host, ready, slot, Arc::clone(&self.tally)))
    }

    /// The one that served last: the others may become idle.
    fn take(&self, now: Instant) -> Option<Instance> {
        let last = self.idle.lock().pop()?;
        if self.is_stale(&last) {
            self.linked.engine.end(last);
            return self.take(now);
        }
        if self.for_ != Use::Reuse || now.duration_since(last.served) < IDLE {
            return Some(last);
        }
        self.drop_idle();
        None
    }

    /// Counts what an instance handed over, so many bytes, with what the plugin's instances hold.
    pub(crate) fn keep_for(&self, bytes: usize) -> Result<Kept, CallError> {
        let most = Most { total: self.limits.total_memory, one: self.limits.memory };
        let limit = MemoryLimit::Plugin(most.total);
        self.tally.held.keep(bytes, most).ok_or(CallError::Memory { limit, backtrace: Vec::new() })
    }

    /// Keeps an instance that answered, if it is fit to serve again; else gives it back.
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
                    "the plugin asks for its instances to be kept, and one holds more than half of its memory limit: such a one is not kept; \
                     raise limits.memoryMiB if that is as it should be"
                );
            }
            return Some(instance);
        }
        if instance.kept.is_none() {
            instance.kept = self.linked.engine.keep_one();
        }
        // So many are kept of all plugins that this one's end begins.
        if instance.kept.is_none() {
            return Some(instance);
        }
        self.rest(instance, MAX_KEPT)
    }

    /// Lets the instance wait for the next call, or gives it back where so many do already: it ends without the lock, as that takes a while.
    fn rest(&self, instance: Instance, most: usize) -> Option<Instance> {
        let mut idle = self.idle.lock();
        if idle.len() >= most {
            return Some(instance);
        }
        idle.push(instance);
        None
    }

    /// Ends those that nobody has called for [`IDLE`].
    pub(crate) fn drop_idle(&self) {
        if self.for_ == Use::Reuse {
            self.end(|instance| instance.served.elapsed() >= IDLE || self.is_stale(instance));
        }
    }

    /// Ends those that were made ahead, of code that is not called of late.
    pub(crate) fn drop_ahead(&self) {
        if self.for_ == Use::Fresh {
            self.end(|instance| !instance.ready.was_called() || self.is_stale(instance));
        }
    }

    /// Its code is compiled better by now.
    fn is_stale(&self, instance: &Instance) -> bool {
        instance.ready.tier != self.linked.code.tier()
    }

    /// Ends those that wait for a call.
    fn end(&self, which: impl Fn(&Instance) -> bool) {
        let ended: Vec<Instance> = self.idle.lock().extract_if(.., |instance| which(instance)).collect();
        // Not under the lock: it takes a while.
        ended.into_iter().for_each(|instance| self.linked.engine.end(instance));
    }
}

/// A call waited for the host, and longer than it may.
struct Late;

/// What a call gives, unless it comes too late.
///
/// A busy guest is stopped by the epoch, and then its backtrace tells where. This is for one that waits, and so nothing is done for it
/// until the call does so for the first time. `most` counts from then: what the call computed before was less than a tick of the epoch, as
/// it gives way then and seems to wait. What it waits `delay` comes on top.
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

/// One instance, or what will be one when it is first called.
pub(crate) struct Instance {
    store: Store<HostState>,
    ready: Arc<Ready>,
    made: Option<component::Instance>,
    // What it exports, looked up once.
    plugin: Option<Plugin>,
    optional: PerExport<Bound>,
    /// Calls that it has answered.
    calls: u32,
    /// When it last answered; while it is called, when that began.
    served: Instant,
    /// None: it ends.
    alive: Option<Alive>,
    // Both are given back after the store is gone: fields are dropped in their order.
    _slot: Option<OwnedSemaphorePermit>,
    kept: Option<OwnedSemaphorePermit>,
}

/// What makes or calls an instance fails in one of two stages.
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
            // What it was kept waiting is asked of the kernel: not if it is of no matter.
            if passed >= host.call.budget && passed >= host.delay.allows(host.call.budget) {
                return Ok(UpdateDeadline::Interrupt);
            }
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(host.delay.clone().give_way())))
        });
        Self {
            store,
            ready,
            made: None,
            plugin: None,
            optional: PerExport::default(),
            calls: 0,
            served: now,
            alive: Some(Alive::new(tally)),
            _slot: slot,
            kept: None,
        }
    }

    /// The interface `controller`, and where to call it.
    pub(crate) async fn controller(&mut self) -> Staged<(&Plugin, &mut Store<HostState>)> {
        let made = self.make().await?;
        let (ready, store) = (&self.ready, &mut self.store);
        looked_up(&mut self.plugin, || ready.plugin.load(&mut *store, &made)).map(|plugin| (plugin, &mut self.store))
    }

    /// Returns an optional export, which must be there, and the store to call it in.
    pub(crate) async fn export(&mut self, export: Export) -> Staged<(&Bound, &mut Store<HostState>)> {
        let made = self.make().await?;
        let (ready, store) = (&self.ready, &mut self.store);
        let indices = ready.optional.get(export).expect("callers check that it is exported");
        looked_up(self.optional.slot(export), || indices.bind(&mut *store, &made)).map(|bound| (bound, &mut self.store))
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

    /// From now on it is counted no more, and what it holds, so many bytes of linear memory, is nobody's.
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

/// For what fails in a call of an export.
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
        let is_pooled = wasmtime::PoolingAllocationConfig::is_pagemap_scan_available();
        assert_eq!(slot(Instances::new(&linked, &name, Limits::default(), Policy::Fresh)).await, is_pooled);
    }

    #[test]
    fn call_that_never_waits_needs_no_timer() {
        // It would be made by a runtime, and there is none.
        assert_eq!(within(IDLE, &TurnDelay::default(), pin!(ready(1))).now_or_never().and_then(Result::ok), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn call_that_waits_may_do_so_for_as_long_as_was_said() {
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
