//! Locks, notifications and time of the queue under test. Threads switch at each step. Time passes only while a thread
//! runs [`pass`].

use std::{
    collections::BTreeMap,
    future::Future,
    ops::Add,
    pin::Pin,
    sync::PoisonError,
    task::{Context, Poll, Waker},
    time::Duration,
};

pub(crate) use shuttle::sync::MutexGuard;
use shuttle::{
    rand::{Rng, thread_rng},
    sync::{self, Condvar},
};

/// Like `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Like `tokio::sync::Notify`, except that `notify_one` wakes any waiter, not the oldest. The queue must not depend on
/// that order.
#[derive(Debug, Default)]
pub(crate) struct Notify(Mutex<Bell>);

#[derive(Debug, Default)]
struct Bell {
    /// `notify_one` was called without a waiter.
    permit: bool,
    waiting: Vec<(u64, Waker)>,
    /// The waiter that `notify_one` chose and that has not run yet.
    woken: Vec<u64>,
    /// The last number given to a waiter.
    number: u64,
    /// Number of calls of `notify_waiters`.
    for_all: u64,
}

pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    /// [`Bell::for_all`] at the time when this was created.
    for_all: u64,
    waits: Option<u64>,
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        Notified { notify: self, for_all: self.0.lock().for_all, waits: None }
    }

    pub(crate) fn notify_one(&self) {
        let mut bell = self.0.lock();
        if bell.waiting.is_empty() {
            bell.permit = true;
            return;
        }
        let any = thread_rng().gen_range(0..bell.waiting.len());
        let (number, waker) = bell.waiting.swap_remove(any);
        bell.woken.push(number);
        drop(bell);
        waker.wake();
    }

    pub(crate) fn notify_waiters(&self) {
        let waiting = {
            let mut bell = self.0.lock();
            bell.for_all += 1;
            std::mem::take(&mut bell.waiting)
        };
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

impl Bell {
    /// Takes the wake-up of `notify_one` if it was meant for `number`.
    fn told(&mut self, number: u64) -> bool {
        let place = self.woken.iter().position(|woken| *woken == number);
        place.map(|place| self.woken.swap_remove(place)).is_some()
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let notify = self.notify;
        let bell = &mut *notify.0.lock();
        let rang = bell.for_all > self.for_all
            || match self.waits {
                Some(number) => bell.told(number),
                None => std::mem::take(&mut bell.permit),
            };
        if rang {
            return Poll::Ready(());
        }
        let number = *self.waits.get_or_insert_with(|| {
            bell.number += 1;
            bell.number
        });
        bell.waiting.retain(|(waiting, _)| *waiting != number);
        bell.waiting.push((number, context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        let Some(number) = self.waits else { return };
        let mut bell = self.notify.0.lock();
        bell.waiting.retain(|(waiting, _)| *waiting != number);
        if bell.told(number) {
            drop(bell);
            // It was woken and is dropped: another waiter must get the wake-up.
            self.notify.notify_one();
        }
    }
}

/// Time since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(CLOCK.state.lock().now)
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0 + after)
    }
}

shuttle::lazy_static! {
    static ref CLOCK: Clock = Clock::default();
}

#[derive(Default)]
struct Clock {
    state: Mutex<State>,
    /// A thread waits for a time, or time shall stop.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    now: Duration,
    stopped: bool,
    sleepers: BTreeMap<(Duration, u64), Waker>,
    /// The last number given to a sleeper.
    number: u64,
}

/// Advances time to the next moment that a thread waits for, again and again, until [`stop`].
pub(crate) fn pass() {
    let mut state = CLOCK.state.lock();
    while !state.stopped {
        if let Some(((due, _), waker)) = state.sleepers.pop_first() {
            state.now = state.now.max(due);
            drop(state);
            waker.wake();
            state = CLOCK.state.lock();
        } else {
            state = CLOCK.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Ends [`pass`].
pub(crate) fn stop() {
    CLOCK.state.lock().stopped = true;
    CLOCK.changed.notify_all();
}

/// Returns the future's output, or `None` if `until` comes first.
pub(crate) fn timeout_at<F: Future>(due: Instant, future: F) -> Timeout<F> {
    Timeout { due, future: Box::pin(future), sleeps: None }
}

pub(crate) struct Timeout<F> {
    due: Instant,
    future: Pin<Box<F>>,
    /// The sleeper's number.
    sleeps: Option<u64>,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, ()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        let due = self.due.0;
        let state = &mut *CLOCK.state.lock();
        if state.now >= due {
            return Poll::Ready(Err(()));
        }
        state.number += 1;
        let number = *self.sleeps.get_or_insert(state.number);
        state.sleepers.insert((due, number), context.waker().clone());
        CLOCK.changed.notify_all();
        Poll::Pending
    }
}

impl<F> Drop for Timeout<F> {
    fn drop(&mut self) {
        if let Some(number) = self.sleeps {
            CLOCK.state.lock().sleepers.remove(&(self.due.0, number));
        }
    }
}
