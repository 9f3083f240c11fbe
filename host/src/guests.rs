//! The threads that plugins run on, shared fairly.
//!
//! Owns the threads, and an account for each plugin: whatever runs for a plugin runs there, is charged to it, and gives way after one
//! call, after [`wasm`](crate::wasm)'s tick within a call, and wherever it waits. Who goes next is for
//! [`pilothouse_core::fair`] to say. What waits holds no thread.
//!
//! ```text
//! account a ─ spawn ─► tasks ─┐                       ┌─► guest-0 ─┐ waits, or gives way
//!                             ├─ FairQueue ─ the next ─┤            ├──────────────────────► charged
//! account b ─ spawn ─► tasks ─┘                       └─► guest-1 ─┘
//! ```
//!
//! Timers, sockets and whatever else tasks wait for belong to the runtime that the threads were started from: a busy plugin delays
//! none of them.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroUsize,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_task::Runnable;
use futures::FutureExt;
use parking_lot::Mutex;
use pilothouse_core::fair::{AccountId, FairQueue, Line, Next, Share, Usage};
use rustix::time::{ClockId, clock_gettime};
use tokio::{runtime::Handle, sync::Notify, time::Instant};
use tracing::error;

use crate::wasm::PluginName;

#[cfg(test)]
mod tests;

/// The threads. Clones share them; they end when the last clone and the last account are gone, or by [`Guests::stop`].
#[derive(Clone)]
pub struct Guests(Arc<Threads>);

/// Ends the threads when nobody can spawn any more.
struct Threads(Arc<Inner>);

struct Inner {
    queue: Mutex<FairQueue<Runnable>>,
    bell: Notify,
    origin: Instant,
    accounts: Mutex<HashMap<PluginName, Weak<Open>>>,
    /// The last that was given out.
    line: AtomicU64,
    stopped: AtomicBool,
}

/// A line of a plugin's account, which takes turns with the account's other lines. Clones are the same line.
#[derive(Clone)]
pub struct Account {
    open: Arc<Open>,
    line: Line,
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
    /// Starts so many threads. What runs on them uses the timers and sockets of `io`.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(threads: NonZeroUsize, io: &Handle) -> std::io::Result<Self> {
        let guests = Self::new();
        for number in 0..threads.get() {
            let (inner, io) = (guests.0.0.clone(), io.clone());
            let run = move || io.block_on(tokio::task::unconstrained(inner.work(false)));
            std::thread::Builder::new().name(format!("guest-{number}")).spawn(run)?;
        }
        Ok(guests)
    }

    /// Uses the runtime's own threads, as one of its tasks: for tests that stop the clock.
    #[cfg(test)]
    pub(crate) fn within(runtime: &Handle) -> Self {
        let guests = Self::new();
        runtime.spawn(guests.0.0.clone().work(true));
        guests
    }

    fn new() -> Self {
        let inner = Inner {
            queue: Mutex::default(),
            bell: Notify::new(),
            origin: Instant::now(),
            accounts: Mutex::default(),
            line: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        };
        Self(Arc::new(Threads(Arc::new(inner))))
    }

    /// A new line of the plugin's account, which is opened if it is not: for whoever is not to wait behind the plugin's others.
    pub fn account(&self, plugin: &PluginName) -> Account {
        let inner = &self.0.0;
        let line = Line(inner.line.fetch_add(1, Ordering::Relaxed));
        let mut accounts = inner.accounts.lock();
        if let Some(open) = accounts.get(plugin).and_then(Weak::upgrade) {
            return Account { open, line };
        }
        accounts.retain(|_, open| open.strong_count() > 0);
        let id = inner.queue.lock().open(Share::default());
        let open = Arc::new(Open { plugin: plugin.clone(), id, guests: self.0.clone() });
        accounts.insert(plugin.clone(), Arc::downgrade(&open));
        Account { open, line }
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

impl Inner {
    /// Takes what has come to the head of its line again.
    fn schedule(&self, id: AccountId, line: Line, task: Runnable) {
        let now = self.now();
        let refused = {
            let mut queue = self.queue.lock();
            if self.stopped.load(Ordering::Acquire) { Some(task) } else { queue.push(now, id, line, task).err() }
        };
        match refused {
            None => self.bell.notify_one(),
            // With it goes whatever it owns, which may ask for the lock.
            Some(task) => drop(task),
        }
    }

    fn stop(&self) {
        let left = {
            let mut queue = self.queue.lock();
            self.stopped.store(true, Ordering::Release);
            std::mem::take(&mut *queue)
        };
        self.bell.notify_waiters();
        self.bell.notify_one();
        drop(left);
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// What one thread does. Where it has its thread to itself it holds it; else it gives way after each task.
    async fn work(self: Arc<Self>, gives_way: bool) {
        let mut ran: Option<(AccountId, Duration)> = None;
        loop {
            let rung = self.bell.notified();
            if self.stopped.load(Ordering::Acquire) {
                // For the next thread.
                return self.bell.notify_one();
            }
            let (next, more) = {
                let now = self.now();
                let mut queue = self.queue.lock();
                if let Some((account, used)) = ran.take() {
                    queue.charge(now, account, used);
                }
                (queue.next(now), queue.is_ready())
            };
            match next {
                Next::Task(taken) => {
                    if more {
                        // One ring may stand for several tasks.
                        self.bell.notify_one();
                    }
                    let began = cpu_time();
                    taken.task.run();
                    ran = Some((taken.account, cpu_time().saturating_sub(began)));
                    if gives_way {
                        tokio::task::yield_now().await;
                    }
                }
                Next::At(until) => {
                    let _ = tokio::time::timeout_at(self.origin + until, rung).await;
                }
                Next::Nothing => rung.await,
            }
        }
    }
}

impl Account {
    /// Runs a task on the threads, in the turn of the account and of the line.
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
        let Self { open, line } = self.clone();
        let schedule = move |task| open.guests.0.schedule(open.id, line, task);
        let (task, running) = async_task::spawn(task, schedule);
        task.schedule();
        Running(running.fallible())
    }

    /// What the account may have, from now on.
    pub fn set_share(&self, share: Share) {
        let inner = &self.open.guests.0;
        inner.queue.lock().set_share(inner.now(), self.open.id, share);
        // A lower cap may have kept the threads waiting.
        inner.bell.notify_one();
    }

    /// What the account may have.
    pub fn share(&self) -> Share {
        self.open.share()
    }

    /// What the account has had.
    pub fn usage(&self) -> Usage {
        self.open.usage()
    }
}

impl Open {
    fn share(&self) -> Share {
        self.guests.0.queue.lock().share(self.id).unwrap_or_default()
    }

    fn usage(&self) -> Usage {
        self.guests.0.queue.lock().usage(self.id)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.guests.0.queue.lock().close(self.id);
    }
}

/// What the present thread has used of a core.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default())
}
