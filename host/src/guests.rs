//! Owns the threads that plugins run on, and shares them fairly.
//!
//! Each plugin has an account. All of its tasks run on these threads and are charged to the account.
//! [`pilothouse_core::fair`] decides which task is next. A task yields its thread at three points:
//!
//! - at [`wasm`](crate::wasm)'s tick within a call;
//! - wherever it waits, so a waiting task holds no thread;
//! - where its code says so, as a worker does between two keys.
//!
//! ```text
//! account a ─ spawn ─► tasks ─┐                       ┌─► guest-0 ─┐ waits, or yields
//!                             ├─ FairQueue ─ the next ─┤            ├──────────────────────► charged
//! account b ─ spawn ─► tasks ─┘                       └─► guest-1 ─┘
//! ```
//!
//! A new task wakes an idle thread. If no thread is idle, and the task is its account's first after a rest, the running
//! tasks are asked to yield at once. So a plugin with little to do does not wait for a tick. Code that spawns tasks
//! under a lock that they need defers their wake-ups (`defer_wakes`) until it has released the lock.
//!
//! A guest that fills memory or passes large values cannot be interrupted for some milliseconds. Plugins that did so
//! repeatedly and recently are suspects. They run on threads of their own, half as many and at least one, and the
//! kernel shares the cores between both groups.
//!
//! Timers and sockets belong to the runtime that started the threads. A busy plugin does not delay them.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap},
    future::poll_fn,
    marker::PhantomData,
    num::NonZeroUsize,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Poll, Waker},
    time::Duration,
};

use async_task::{Runnable, ScheduleInfo, WithInfo};
use futures::FutureExt;
use parking_lot::Mutex;
use pilothouse_core::fair::{AccountId, Flow, Lane, NextTask, Share, Usage};
use rustix::time::{ClockId, clock_gettime};
use tokio::{runtime::Handle, time::Instant};
use tracing::error;

use self::task_queue::{Arrival, TaskQueue, Thread, WakeUp};
use crate::{
    name::PluginName,
    prompt::{NICE, be_last},
};

pub(crate) mod metrics;
mod task_queue;

/// A handle of the threads. They end when the last clone and the last account are dropped, or by [`Guests::stop`].
#[derive(Clone)]
pub struct Guests(Arc<Threads>);

/// Ends the threads when it is dropped.
struct Threads(Arc<Scheduler>);

struct Scheduler {
    queue: Mutex<TaskQueue<Runnable>>,
    origin: Instant,
    accounts: Mutex<HashMap<PluginName, Weak<OpenAccount>>>,
    /// The number of the next flow.
    flow: AtomicU64,
    /// Asks the running tasks to yield.
    interrupt: Box<dyn Fn() + Send + Sync>,
}

/// A flow of tasks under a plugin's account. The flows of an account take turns. Clones are the same flow.
#[derive(Clone)]
pub struct Account {
    open: Arc<OpenAccount>,
    flow: Flow,
}

struct OpenAccount {
    plugin: PluginName,
    id: AccountId,
    guests: Arc<Threads>,
}

/// A spawned task. Dropping this cancels the task; [`detach`](Self::detach) lets it run on.
#[must_use = "dropping it cancels the task"]
pub struct TaskHandle<T>(async_task::FallibleTask<Option<T>>);

impl<T> TaskHandle<T> {
    /// Lets the task run to its end in the background.
    pub fn detach(self) {
        self.0.detach();
    }

    /// Waits for the task's result. Returns `None` if the task panicked or the threads were stopped.
    ///
    /// # Cancellation
    /// Dropping the future cancels the task.
    pub async fn ended(self) -> Option<T> {
        self.0.await.flatten()
    }
}

impl Guests {
    /// Starts `threads` threads, and half as many with lower priority for suspects. Tasks use the timers and sockets of
    /// `io`. A call of `interrupt` must make the running tasks yield soon.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(
        threads: NonZeroUsize,
        io: &Handle,
        interrupt: impl Fn() + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let guests = Self::new(interrupt);
        let count = |lane| match lane {
            Lane::Ordinary => threads.get(),
            Lane::Suspect => threads.get().div_ceil(2),
        };
        for lane in Lane::ALL {
            for number in 0..count(lane) {
                let (scheduler, io) = (guests.0.0.clone(), io.clone());
                let work = scheduler.work(Thread { number, lane }, false);
                let run = move || {
                    if lane == Lane::Suspect {
                        be_last(NICE);
                    }
                    io.block_on(tokio::task::unconstrained(work));
                };
                std::thread::Builder::new().name(thread_name(number, lane)).spawn(run)?;
            }
        }
        Ok(guests)
    }

    /// Runs both lanes as tasks of `runtime`, for tests with a paused clock.
    pub(crate) fn within(runtime: &Handle) -> Self {
        let guests = Self::new(|| ());
        for lane in Lane::ALL {
            runtime.spawn(guests.0.0.clone().work(Thread { number: 0, lane }, true));
        }
        guests
    }

    fn new(interrupt: impl Fn() + Send + Sync + 'static) -> Self {
        let scheduler = Scheduler {
            queue: Mutex::default(),
            origin: Instant::now(),
            accounts: Mutex::default(),
            flow: AtomicU64::new(0),
            interrupt: Box::new(interrupt),
        };
        Self(Arc::new(Threads(Arc::new(scheduler))))
    }

    /// Creates a new flow under the plugin's account, and opens the account if necessary. A flow does not queue behind
    /// the plugin's other flows.
    pub fn account(&self, plugin: &PluginName) -> Account {
        let scheduler = &self.0.0;
        let flow = Flow(scheduler.flow.fetch_add(1, Ordering::Relaxed));
        let mut accounts = scheduler.accounts.lock();
        if let Some(open) = accounts.get(plugin).and_then(Weak::upgrade) {
            return Account { open, flow };
        }
        accounts.retain(|_, open| open.strong_count() > 0);
        let id = scheduler.queue.lock().fair_mut().open(Share::default());
        let open = Arc::new(OpenAccount { plugin: plugin.clone(), id, guests: self.0.clone() });
        accounts.insert(plugin.clone(), Arc::downgrade(&open));
        Account { open, flow }
    }

    /// Returns the usage of each open account, in the order of plugins.
    pub fn usage(&self) -> BTreeMap<PluginName, Usage> {
        self.open().iter().map(|open| (open.plugin.clone(), open.usage())).collect()
    }

    /// Returns the share of each open account, in the order of plugins.
    pub fn shares(&self) -> BTreeMap<PluginName, Share> {
        self.open().iter().map(|open| (open.plugin.clone(), open.share())).collect()
    }

    fn open(&self) -> Vec<Arc<OpenAccount>> {
        self.0.0.accounts.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Removes the caps of all accounts, so that a shutdown does not wait for them.
    pub fn lift_caps(&self) {
        self.open().iter().for_each(|open| open.set_share(Share { cap: None, ..open.share() }));
    }

    /// Stops all tasks. Queued tasks are dropped now, running tasks when they yield, and waiting tasks when they are
    /// woken. The threads end, and this does not wait for them.
    pub fn stop(&self) {
        self.0.0.stop();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.0.stop();
    }
}

thread_local! {
    /// The turn of the task that runs on this thread, if any.
    static TURN: Cell<Option<Turn>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Turn {
    began: std::time::Instant,
    /// CPU time that the thread had used at the turn's beginning.
    used: Duration,
    lane: Lane,
}

/// Returns how long the task on this thread has been without a core during its turn, because the kernel ran others.
/// Zero on other threads.
pub(crate) fn without_core() -> Duration {
    TURN.get().map_or(Duration::ZERO, |turn| {
        // CPU time first: read in the other order, it could exceed the elapsed time.
        let used = cpu_time().saturating_sub(turn.used);
        turn.began.elapsed().saturating_sub(used)
    })
}

/// `true` if the task on this thread belongs to a suspect, so that it delays only other suspects.
pub(crate) fn runs_suspect() -> bool {
    TURN.get().is_some_and(|turn| turn.lane == Lane::Suspect)
}

type Deferred = Vec<(Arc<Scheduler>, Arrival)>;

thread_local! {
    /// Arrivals whose wake-ups this thread has [deferred](defer_wakes). `None` if it does not defer them.
    static DEFERRED: RefCell<Option<Deferred>> = const { RefCell::new(None) };
}

/// Defers the wake-ups for tasks that this thread spawns, until the outermost guard is dropped.
///
/// Use it before taking a lock. A thread that is woken at once would block on that lock. If it also took the core of
/// the lock's owner, the owner could wait for milliseconds before it can release the lock.
pub(crate) fn defer_wakes() -> DeferredWakes {
    let outermost = DEFERRED.with_borrow_mut(|deferred| {
        let outermost = deferred.is_none();
        deferred.get_or_insert_default();
        outermost
    });
    DeferredWakes { outermost, _of_this_thread: PhantomData }
}

/// See [`defer_wakes`].
#[must_use = "dropping it wakes threads at once"]
pub(crate) struct DeferredWakes {
    outermost: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for DeferredWakes {
    fn drop(&mut self) {
        if self.outermost {
            let arrivals = DEFERRED.take().unwrap_or_default();
            arrivals.into_iter().for_each(|(scheduler, arrival)| scheduler.wake_for(arrival));
        }
    }
}

impl Scheduler {
    /// Queues a task, and wakes a thread for it if necessary.
    fn schedule(self: &Arc<Self>, id: AccountId, flow: Flow, task: Runnable, info: ScheduleInfo) {
        let arrival = self.queue.lock().push(self.now(), (id, flow), task);
        match arrival {
            // The task yielded, and its thread is about to ask for the next one.
            Ok(_) if info.woken_while_running => {}
            Ok(arrival) => {
                let deferred = DEFERRED.with_borrow_mut(|deferred| {
                    deferred.as_mut().map(|deferred| deferred.push((self.clone(), arrival))).is_some()
                });
                if !deferred {
                    self.wake_for(arrival);
                }
            }
            // Dropped without the lock, because what the task owns may take it.
            Err(task) => drop(task),
        }
    }

    fn wake_for(&self, arrival: Arrival) {
        let wake_up = self.queue.lock().whom_to_wake(self.now(), arrival);
        match wake_up {
            WakeUp::NotNeeded => {}
            WakeUp::Thread(thread) => thread.wake(),
            WakeUp::Interrupt => (self.interrupt)(),
        }
    }

    fn stop(&self) {
        let (left, resting) = self.queue.lock().stop();
        resting.into_iter().for_each(Waker::wake);
        drop(left);
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Runs tasks until the scheduler is stopped. `yields` is `true` if this future shares its thread with others.
    async fn work(self: Arc<Self>, thread: Thread, yields: bool) {
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let mut ran: Option<(AccountId, Duration)> = None;
        loop {
            let now = self.now();
            let found = self.queue.lock().next(now, thread, &waker, ran.take());
            let Some((next, other)) = found else { return };
            if let Some(other) = other {
                other.wake();
            }
            match next {
                NextTask::Task(taken) => {
                    let used = cpu_time();
                    TURN.set(Some(Turn { began: std::time::Instant::now(), used, lane: thread.lane }));
                    taken.task.run();
                    TURN.set(None);
                    ran = Some((taken.account, cpu_time().saturating_sub(used)));
                    if yields {
                        tokio::task::yield_now().await;
                    }
                }
                NextTask::At(until) => {
                    let _ = tokio::time::timeout_at(self.origin + until, woken()).await;
                }
                NextTask::Nothing => woken().await,
            }
        }
    }
}

fn thread_name(number: usize, lane: Lane) -> String {
    match lane {
        Lane::Ordinary => format!("guest-{number}"),
        Lane::Suspect => format!("suspect-{number}"),
    }
}

/// Returns `Pending` once, so that the future continues when it is polled again.
async fn woken() {
    let mut waited = false;
    poll_fn(|_| if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

impl Account {
    /// Queues a task under the account and the flow.
    pub fn spawn<F>(&self, task: F) -> TaskHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let plugin = self.open.plugin.clone();
        let task = AssertUnwindSafe(task).catch_unwind().map(move |ended| {
            if ended.is_err() {
                error!(%plugin, "a task that the host runs for the plugin panicked");
            }
            ended.ok()
        });
        let Self { open, flow } = self.clone();
        let schedule = move |task, info| open.guests.0.schedule(open.id, flow, task, info);
        let (task, running) = async_task::spawn(task, WithInfo(schedule));
        task.schedule();
        TaskHandle(running.fallible())
    }

    /// Changes the account's share.
    pub fn set_share(&self, share: Share) {
        self.open.set_share(share);
    }

    /// Returns the account's usage.
    pub fn usage(&self) -> Usage {
        self.open.usage()
    }
}

impl OpenAccount {
    fn set_share(&self, share: Share) {
        let scheduler = &self.guests.0;
        let woken = {
            let mut queue = scheduler.queue.lock();
            queue.fair_mut().set_share(scheduler.now(), self.id, share);
            // The threads may be waiting because of a lower cap.
            let lane = queue.fair().lane(self.id);
            queue.wake_one(lane)
        };
        if let Some(thread) = woken {
            thread.wake();
        }
    }

    fn share(&self) -> Share {
        self.guests.0.queue.lock().fair().share(self.id).unwrap_or_default()
    }

    fn usage(&self) -> Usage {
        self.guests.0.queue.lock().fair().usage(self.id)
    }
}

impl Drop for OpenAccount {
    fn drop(&mut self) {
        self.guests.0.queue.lock().fair_mut().close(self.id);
    }
}

/// Returns the CPU time that this thread has used.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests;
