//! A controller's workqueue among threads: the pure queue of `pilothouse-core` behind a lock, and a bell. Every key that comes in passes
//! the breaker of its own, and waits as long as that says.

use std::{fmt, time::Duration};

use pilothouse_core::{
    breaker::{Breaker, OPEN, Storm},
    key::{Key, TypeMeta},
    workqueue::{Item, Pace, Workqueue},
};

// Not straight from the crates: tests/interleavings puts others in their place.
use super::sync::{Instant, Mutex, MutexGuard, Notify, timeout_at};

/// Keys that wait for a worker.
pub struct Queue {
    inner: Mutex<Workqueue<Key>>,
    /// Never locked while `inner` is.
    breaker: Mutex<Breaker<Key, Cause>>,
    bell: Notify,
    origin: Instant,
}

/// Why a key is to be reconciled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It changed.
    Itself,
    /// A child did.
    Child(TypeMeta, Key),
    /// Something that is mapped to it; several objects where they were mapped at once.
    Mapping(String),
    /// Something that it read; or it is not known any more which of these.
    Read(Option<(TypeMeta, Key)>),
    /// The plugin asked to be called again.
    RequeueAfter,
    /// It failed.
    Failure,
    /// Every key is looked at again.
    Resync,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Itself => f.write_str("changes of itself"),
            Self::Child(of, key) => write!(f, "changes of its child {of} {key}"),
            Self::Mapping(objects) => write!(f, "changes of {objects}, by a mapping"),
            Self::Read(Some((of, key))) => write!(f, "changes of {of} {key}, which it read"),
            Self::Read(None) => f.write_str("changes of what it read"),
            Self::RequeueAfter => f.write_str("its own requeue-after"),
            Self::Failure => f.write_str("its own failures"),
            Self::Resync => f.write_str("looks at all keys"),
        }
    }
}

/// Who takes keys.
pub(super) trait Taker {
    /// Whether it takes another one.
    fn goes_on(&self) -> bool;
    /// Until when nobody takes any; none: now.
    fn held(&self) -> Option<Instant>;
    /// A breaker closed: that was what had gone on.
    fn settled(&self, key: &Key, storm: &Storm<Cause>);
}

impl Queue {
    /// An empty one.
    pub(super) fn new(pace: Pace) -> Self {
        Self {
            inner: Mutex::new(Workqueue::new(pace)),
            breaker: Mutex::default(),
            bell: Notify::new(),
            origin: Instant::now(),
        }
    }

    /// The queue's time.
    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The queue itself, to look at.
    pub fn lock(&self) -> MutexGuard<'_, Workqueue<Key>> {
        self.inner.lock()
    }

    /// Changes how fast keys are handed out. To be followed by [`wake_all`](Self::wake_all).
    pub(super) fn set_pace(&self, pace: Pace) {
        self.inner.lock().set_pace(pace);
    }

    /// How many breakers are open, and how often one opened.
    pub fn breakers(&self) -> (usize, u64) {
        let breaker = self.breaker.lock();
        (breaker.open(), breaker.opened())
    }

    /// The keys whose breakers are open, in their order, and what goes on with them.
    pub fn storms(&self) -> Vec<(Key, Storm<Cause>)> {
        let breaker = self.breaker.lock();
        let mut storms: Vec<_> = breaker.storms().map(|(key, storm)| (key.clone(), storm)).collect();
        storms.sort_by(|a, b| a.0.cmp(&b.0));
        storms
    }

    /// Forgets how often keys were reconciled that have come to rest. To be called now and then: no timer of the queue is for that.
    pub(super) fn forget_rested(&self) {
        self.breaker.lock().forget(self.now());
    }

    /// Adds a key; see [`Workqueue::add`]. One that is reconciled over and over waits.
    pub(super) fn add(&self, key: Key, priority: i32, cause: impl FnOnce() -> Cause) {
        let now = self.now();
        let wait = self.breaker.lock().ask(now, &key, cause);
        self.inner.lock().add_after(now, key, priority, wait);
        self.bell.notify_one();
    }

    /// Takes a key out; see [`Workqueue::discard`]. Who waits for its time may wake in vain.
    pub(super) fn discard(&self, key: &Key) {
        self.inner.lock().discard(key);
    }

    /// The next key, when there is one, and once what goes on with it if it is reconciled over and over; none once the queue is shut
    /// down, or who asks is not to go on.
    ///
    /// # Cancellation
    /// No key is lost: one is taken only when it is returned.
    pub(super) async fn next(&self, taker: &impl Taker) -> Option<(Item<Key>, Option<Storm<Cause>>)> {
        let mut waits = Waits { bell: &self.bell, knows_when: false };
        loop {
            let rung = self.bell.notified();
            if !taker.goes_on() {
                // The bell may have been for a key, which others must take.
                self.bell.notify_one();
                return None;
            }
            let (held, settle) = (taker.held(), self.settle(taker));
            let taken = {
                let mut queue = self.inner.lock();
                if queue.is_shut_down() {
                    // The other workers must see it too.
                    self.bell.notify_one();
                    return None;
                }
                match held {
                    Some(until) => Err(Some(until)),
                    None => {
                        let now = self.now();
                        let (taken, due) = (queue.get(now), queue.next_due());
                        // Keys that came together rang once, where nobody heard the bell yet: others are to take the rest.
                        if taken.is_some() && due.is_some_and(|due| due <= now) {
                            self.bell.notify_one();
                        }
                        waits.knows_when &= due.is_some();
                        taken.ok_or(due.map(|due| self.origin + due))
                    }
                }
            };
            let due = match taken {
                Ok(item) => {
                    let storm = self.breaker.lock().reconciled(self.now(), &item.key);
                    return Some((item, storm));
                }
                Err(due) => due,
            };
            let due = [due, settle.map(|at| self.origin + at)].into_iter().flatten().min();
            waits.knows_when = due.is_some();
            match due {
                // Not before it is due: the queue counts in nanoseconds, timers in milliseconds.
                Some(due) => {
                    let _ = timeout_at(due, rung).await;
                }
                None => rung.await,
            }
        }
    }

    /// Closes breakers of keys that have come to rest. When to look again.
    fn settle(&self, taker: &impl Taker) -> Option<Duration> {
        let (calmed, next) = {
            let mut breaker = self.breaker.lock();
            (breaker.settle(self.now()), breaker.settle_at())
        };
        calmed.iter().for_each(|(key, storm)| taker.settled(key, storm));
        next
    }

    /// Whether a key is there to be taken now.
    pub(super) fn has_next(&self) -> bool {
        self.inner.lock().next_due().is_some_and(|due| due <= self.now())
    }

    /// Ends a key's processing, and says what is next for it.
    pub(super) fn finish(&self, item: &Item<Key>, next: Next) -> Duration {
        let (now, key) = (self.now(), item.key.clone());
        let again = match next {
            Next::Done => None,
            Next::After(delay) => Some((delay, Cause::RequeueAfter)),
            Next::Retry | Next::RetryAfter(_) => {
                let queue = self.inner.lock();
                let delay = queue.pace().backoff.delay(queue.failures(&key));
                Some((delay.max(next.at_least()), Cause::Failure))
            }
        };
        // What is to be done again later anyway is no storm, and has no part in one.
        let again = again.filter(|(delay, _)| *delay < OPEN);
        let wait = again.map_or(Duration::ZERO, |(_, cause)| self.breaker.lock().ask(now, &key, || cause));
        let mut queue = self.inner.lock();
        match next {
            Next::Done => queue.forget(&key),
            Next::After(delay) => {
                queue.forget(&key);
                queue.add_after(now, key, item.priority, delay.max(wait));
            }
            Next::Retry | Next::RetryAfter(_) => {
                queue.add_rate_limited_after(now, key, item.priority, wait.max(next.at_least()));
            }
        }
        let took = queue.done(now, &item.key);
        drop(queue);
        self.bell.notify_one();
        took
    }

    /// Wakes everyone who waits for a key, to ask itself whether to go on.
    pub(super) fn wake_all(&self) {
        self.bell.notify_waiters();
    }

    /// Gives out no more keys.
    pub(super) fn shut_down(&self) {
        self.inner.lock().shut_down();
        self.bell.notify_one();
    }
}

/// One who waits for a key. Some of those know when the next one is due; the others sleep until the bell rings. Who knew and ends, with a
/// key or without, hands that on.
struct Waits<'a> {
    bell: &'a Notify,
    knows_when: bool,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if self.knows_when {
            self.bell.notify_one();
        }
    }
}

/// What becomes of a key after a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing until it changes.
    Done,
    /// Again after this time though nothing changes.
    After(Duration),
    /// Again, with growing delay.
    Retry,
    /// The same, and not sooner than the server asked for.
    RetryAfter(Duration),
}

/// Longest Retry-After that a key waits for. A server that asks for more is asked again after that.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

impl Next {
    fn at_least(self) -> Duration {
        match self {
            Self::RetryAfter(delay) => delay.min(RETRY_AFTER_MAX),
            Self::Done | Self::After(_) | Self::Retry => Duration::ZERO,
        }
    }
}
