//! The threads that plugins run on, shared fairly.
//!
//! Owns the threads, and an account for each plugin: whatever runs for a plugin runs there, is charged to it, and gives way at
//! [`wasm`](crate::wasm)'s tick within a call, wherever it waits, and where it says so itself, as a worker does between two keys. Who goes next is for
//! [`pilothouse_core::fair`] to say. What waits holds no thread.
//!
//! ```text
//! account a ─ spawn ─► tasks ─┐                       ┌─► guest-0 ─┐ waits, or gives way
//!                             ├─ FairQueue ─ the next ─┤            ├──────────────────────► charged
//! account b ─ spawn ─► tasks ─┘                       └─► guest-1 ─┘
//! ```
//!
//! A task that comes wakes a thread that rests. Where none does, and the task is the first of its account after a rest, those who run are
//! asked to give way at once: a plugin with little to do waits for nobody's tick. Who brings tasks while it holds a lock that they will
//! want tells nobody before it has let go of that.
//!
//! Nothing makes what fills memory or hands over a lot give way for some milliseconds. Plugins that lately did so again run on threads of their
//! own, half as many and at least one: between them and the others, the kernel sees to it that all go on.
//!
//! Timers, sockets and whatever else tasks wait for belong to the runtime that the threads were started from: a busy plugin delays
//! none of them.

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
use pilothouse_core::fair::{AccountId, Flow, Lane, Next, Share, Usage};
use rustix::time::{ClockId, clock_gettime};
use tokio::{runtime::Handle, time::Instant};
use tracing::error;

use self::task_queue::{Came, Line, Tell, Thread};
use crate::{
    name::PluginName,
    prompt::{NICE, be_last},
};

mod task_queue;

/// The threads. Clones share them; they end when the last clone and the last account are gone, or by [`Guests::stop`].
#[derive(Clone)]
pub struct Guests(Arc<Threads>);

/// Ends the threads when nobody can spawn any more.
struct Threads(Arc<Inner>);

struct Inner {
    line: Mutex<Line<Runnable>>,
    origin: Instant,
    accounts: Mutex<HashMap<PluginName, Weak<Open>>>,
    /// The next that is given out.
    flow: AtomicU64,
    /// Asks whatever runs to give way.
    interrupt: Box<dyn Fn() + Send + Sync>,
}

/// A flow of tasks under a plugin's account, which takes turns with the account's other flows. Clones are the same flow.
#[derive(Clone)]
pub struct Account {
    open: Arc<Open>,
    flow: Flow,
}

struct Open {
    plugin: PluginName,
    id: AccountId,
    guests: Arc<Threads>,
}

/// What was spawned. Dropping it ends the task where it waits; so that it goes on, [`detach`](Self::detach) it.
#[must_use = "dropping it ends the task"]
pub struct Running<T>(async_task::FallibleTask<Option<T>>);

impl<T> Running<T> {
    /// Lets it run to its end though nobody waits for that.
    pub fn detach(self) {
        self.0.detach();
    }

    /// Its result; none if it panicked, or the threads were stopped before its end.
    ///
    /// # Cancellation
    /// Dropping the future ends the task.
    pub async fn ended(self) -> Option<T> {
        self.0.await.flatten()
    }
}

impl Guests {
    /// Starts so many threads, and half as many for suspects, from which the others take the cores. What runs on them uses the timers and
    /// sockets of `io`; at `interrupt` it gives way soon, as far as it can.
    ///
    /// # Errors
    /// If a thread cannot be started.
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
                let (inner, io) = (guests.0.0.clone(), io.clone());
                let work = inner.work(Thread { number, lane }, false);
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

    /// Uses the runtime's own threads, as two of its tasks: for tests that stop the clock.
    #[cfg(test)]
    pub(crate) fn within(runtime: &Handle) -> Self {
        let guests = Self::new(|| ());
        for lane in Lane::ALL {
            runtime.spawn(guests.0.0.clone().work(Thread { number: 0, lane }, true));
        }
        guests
    }

    fn new(interrupt: impl Fn() + Send + Sync + 'static) -> Self {
        let inner = Inner {
            line: Mutex::default(),
            origin: Instant::now(),
            accounts: Mutex::default(),
            flow: AtomicU64::new(0),
            interrupt: Box::new(interrupt),
        };
        Self(Arc::new(Threads(Arc::new(inner))))
    }

    /// A new flow under the plugin's account, which is opened if it is not: for whoever is not to wait behind the plugin's others.
    pub fn account(&self, plugin: &PluginName) -> Account {
        let inner = &self.0.0;
        let flow = Flow(inner.flow.fetch_add(1, Ordering::Relaxed));
        let mut accounts = inner.accounts.lock();
        if let Some(open) = accounts.get(plugin).and_then(Weak::upgrade) {
            return Account { open, flow };
        }
        accounts.retain(|_, open| open.strong_count() > 0);
        let id = inner.line.lock().queue_mut().open(Share::default());
        let open = Arc::new(Open { plugin: plugin.clone(), id, guests: self.0.clone() });
        accounts.insert(plugin.clone(), Arc::downgrade(&open));
        Account { open, flow }
    }

    /// What each open account has had, in the order of plugins.
    pub fn usage(&self) -> BTreeMap<PluginName, Usage> {
        self.open().iter().map(|open| (open.plugin.clone(), open.usage())).collect()
    }

    /// What each open account may have, in the order of plugins.
    pub fn shares(&self) -> BTreeMap<PluginName, Share> {
        self.open().iter().map(|open| (open.plugin.clone(), open.share())).collect()
    }

    fn open(&self) -> Vec<Arc<Open>> {
        self.0.0.accounts.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Lets all accounts have what they need from now on, whatever their caps: for the end, which is not to wait for them.
    pub fn lift_caps(&self) {
        self.open().iter().for_each(|open| open.set_share(Share { cap: None, ..open.share() }));
    }

    /// Runs no task any further: what is in line is dropped now, what runs when it gives way, what waits for something when that
    /// comes. The threads end, and are not waited for.
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
    /// The turn of the task that runs on this thread.
    static TURN: Cell<Option<Turn>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Turn {
    began: std::time::Instant,
    /// What the thread had used of a core by then.
    used: Duration,
    lane: Lane,
}

/// For how long the task that runs on this thread had its turn and no core, as the kernel gave that to others; nothing elsewhere.
pub(crate) fn without_core() -> Duration {
    TURN.get().map_or(Duration::ZERO, |turn| {
        // The other way round what is used between would count as more than has passed.
        let used = cpu_time().saturating_sub(turn.used);
        turn.began.elapsed().saturating_sub(used)
    })
}

/// Whether the task that runs on this thread is of a plugin that holds its threads, and delays none but its like.
pub(crate) fn runs_suspect() -> bool {
    TURN.get().is_some_and(|turn| turn.lane == Lane::Suspect)
}

type Untold = Vec<(Arc<Inner>, Came)>;

thread_local! {
    /// What came that this thread is to tell of when it [may](tell_later); none: at once.
    static LATER: RefCell<Option<Untold>> = const { RefCell::new(None) };
}

/// Until the last of these is dropped, no thread is told of the tasks that the present one brings.
///
/// For who holds a lock: a thread that is told at once runs into it, and if it took the core of who holds it, that one may wait for
/// milliseconds until it is let in again to give the lock back.
pub(crate) fn tell_later() -> Later {
    let outermost = LATER.with_borrow_mut(|later| {
        let outermost = later.is_none();
        later.get_or_insert_default();
        outermost
    });
    Later { outermost, _of_this_thread: PhantomData }
}

/// See [`tell_later`].
#[must_use = "dropped, it tells at once"]
pub(crate) struct Later {
    outermost: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Later {
    fn drop(&mut self) {
        if self.outermost {
            let came = LATER.take().unwrap_or_default();
            came.into_iter().for_each(|(guests, came)| guests.tell(came));
        }
    }
}

impl Inner {
    /// Takes what has come to the head of its line again.
    fn schedule(self: &Arc<Self>, id: AccountId, flow: Flow, task: Runnable, info: ScheduleInfo) {
        let came = self.line.lock().push(self.now(), (id, flow), task);
        match came {
            // It gave way, and its thread is about to look who is next.
            Ok(_) if info.woken_while_running => {}
            Ok(came) => {
                let later = LATER
                    .with_borrow_mut(|later| later.as_mut().map(|later| later.push((self.clone(), came))).is_some());
                if !later {
                    self.tell(came);
                }
            }
            // With it goes whatever it owns, which may ask for the lock.
            Err(task) => drop(task),
        }
    }

    fn tell(&self, came: Came) {
        let tell = self.line.lock().tell(self.now(), came);
        match tell {
            Tell::Nobody => {}
            Tell::Thread(thread) => thread.wake(),
            Tell::Running => (self.interrupt)(),
        }
    }

    fn stop(&self) {
        let (left, resting) = self.line.lock().stop();
        resting.into_iter().for_each(Waker::wake);
        drop(left);
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// What one thread does. Where it has its thread to itself it holds it; else it gives way after each task.
    async fn work(self: Arc<Self>, thread: Thread, gives_way: bool) {
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let mut ran: Option<(AccountId, Duration)> = None;
        loop {
            let now = self.now();
            let looked = self.line.lock().look(now, thread, &waker, ran.take());
            let Some((next, other)) = looked else { return };
            if let Some(other) = other {
                other.wake();
            }
            match next {
                Next::Task(taken) => {
                    let used = cpu_time();
                    TURN.set(Some(Turn { began: std::time::Instant::now(), used, lane: thread.lane }));
                    taken.task.run();
                    TURN.set(None);
                    ran = Some((taken.account, cpu_time().saturating_sub(used)));
                    if gives_way {
                        tokio::task::yield_now().await;
                    }
                }
                Next::At(until) => {
                    let _ = tokio::time::timeout_at(self.origin + until, woken()).await;
                }
                Next::Nothing => woken().await,
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

/// Returns when the task was woken since, or is looked at for another reason.
async fn woken() {
    let mut waited = false;
    poll_fn(|_| if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

impl Account {
    /// Runs a task on the threads, in the turn of the account and of the flow.
    pub fn spawn<F>(&self, task: F) -> Running<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let plugin = self.open.plugin.clone();
        let task = AssertUnwindSafe(task).catch_unwind().map(move |ended| {
            if ended.is_err() {
                error!(%plugin, "the host failed over a task of the plugin");
            }
            ended.ok()
        });
        let Self { open, flow } = self.clone();
        let schedule = move |task, info| open.guests.0.schedule(open.id, flow, task, info);
        let (task, running) = async_task::spawn(task, WithInfo(schedule));
        task.schedule();
        Running(running.fallible())
    }

    /// What the account may have, from now on.
    pub fn set_share(&self, share: Share) {
        self.open.set_share(share);
    }

    /// What the account has had.
    pub fn usage(&self) -> Usage {
        self.open.usage()
    }
}

impl Open {
    fn set_share(&self, share: Share) {
        let inner = &self.guests.0;
        let woken = {
            let mut line = inner.line.lock();
            line.queue_mut().set_share(inner.now(), self.id, share);
            // A lower cap may have kept the threads waiting.
            let lane = line.queue().lane(self.id);
            line.wake_one(lane)
        };
        if let Some(thread) = woken {
            thread.wake();
        }
    }

    fn share(&self) -> Share {
        self.guests.0.line.lock().queue().share(self.id).unwrap_or_default()
    }

    fn usage(&self) -> Usage {
        self.guests.0.line.lock().queue().usage(self.id)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.guests.0.line.lock().queue_mut().close(self.id);
    }
}

/// What the present thread has used of a core.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests;
