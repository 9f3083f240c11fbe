//! A controller's workqueue: the pure queue of `pilothouse-core` behind a lock, with a bell for idle workers.
//!
//! Each key has a breaker. A key that is reconciled over and over waits as long as its breaker says.

use std::{fmt, time::Duration};

use pilothouse_core::{
    breaker::{Breaker, OPEN, Storm},
    key::{Key, TypeMeta},
    workqueue::{Item, Pace, Workqueue},
};

// Imported through `sync`, which tests/interleavings replaces.
use super::sync::{Instant, Mutex, MutexGuard, Notify, timeout_at};

/// Keys that are to be reconciled.
pub struct Queue {
    keys: Mutex<Workqueue<Key>>,
    /// Never locked while `keys` is.
    breaker: Mutex<Breaker<Key, Cause>>,
    bell: Notify,
    origin: Instant,
}

/// Why a key was added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its object changed.
    Itself,
    /// This child changed.
    Child(TypeMeta, Key),
    /// These objects changed, which a mapping leads from.
    Mapping(String),
    /// This object changed, which the key has read. `None` if it is not known which object.
    Read(Option<(TypeMeta, Key)>),
    /// A watch that the key asked for is ready, or refused.
    Watched,
    /// The plugin asked to be called again.
    RequeueAfter,
    /// It is retried after a failure.
    Failure,
    /// Every key is reconciled again.
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
            Self::Watched => f.write_str("watches that it asked for"),
            Self::RequeueAfter => f.write_str("its own requeue-after"),
            Self::Failure => f.write_str("its own failures"),
            Self::Resync => f.write_str("looks at all keys"),
        }
    }
}

/// A worker, as its queue sees it.
pub(super) trait Taker {
    /// `true` if it takes another key.
    fn goes_on(&self) -> bool;
    /// Returns the time until which no key is handed out. `None` if keys are handed out now.
    fn held_until(&self) -> Option<Instant>;
    /// Called when a breaker closes, with a summary of the storm.
    fn settled(&self, key: &Key, storm: &Storm<Cause>);
}

impl Queue {
    /// Creates an empty queue.
    pub(super) fn new(pace: Pace) -> Self {
        Self {
            keys: Mutex::new(Workqueue::new(pace)),
            breaker: Mutex::default(),
            bell: Notify::new(),
            origin: Instant::now(),
        }
    }

    /// Returns the queue's time.
    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Locks the pure queue, to look at it.
    pub fn lock(&self) -> MutexGuard<'_, Workqueue<Key>> {
        self.keys.lock()
    }

    /// Changes how fast keys are handed out. The caller then calls [`wake_all`](Self::wake_all).
    pub(super) fn set_pace(&self, pace: Pace) {
        self.keys.lock().set_pace(pace);
    }

    /// Returns the number of open breakers, and how often one has opened.
    pub fn breakers(&self) -> (usize, u64) {
        let breaker = self.breaker.lock();
        (breaker.open(), breaker.opened())
    }

    /// Returns the keys whose breakers are open, sorted, and their storms.
    pub fn storms(&self) -> Vec<(Key, Storm<Cause>)> {
        let breaker = self.breaker.lock();
        let mut storms: Vec<_> = breaker.storms().map(|(key, storm)| (key.clone(), storm)).collect();
        storms.sort_by(|a, b| a.0.cmp(&b.0));
        storms
    }

    /// Forgets the rates of idle keys. Called periodically from outside, because the queue has no timer for it.
    pub(super) fn forget_rested(&self) {
        self.breaker.lock().forget(self.now());
    }

    /// Adds a key; see [`Workqueue::add`]. A key whose breaker is open waits.
    pub(super) fn add(&self, key: Key, priority: i32, cause: impl FnOnce() -> Cause) {
        let now = self.now();
        let wait = self.breaker.lock().ask(now, &key, cause);
        self.keys.lock().add_after(now, key, priority, wait);
        self.bell.notify_one();
    }

    /// Removes a key; see [`Workqueue::discard`]. A worker may wake for it and find nothing.
    pub(super) fn discard(&self, key: &Key) {
        self.keys.lock().discard(key);
    }

    /// Waits for the next key. Its storm comes with it once, when the key's breaker has opened.
    ///
    /// Returns `None` when the queue is shut down, or the taker does not go on.
    ///
    /// # Cancellation
    /// Safe: a key is taken only when it is returned.
    pub(super) async fn next(&self, taker: &impl Taker) -> Option<(Item<Key>, Option<Storm<Cause>>)> {
        let mut waits = Waits { bell: &self.bell, knows_when: false };
        loop {
            let rung = self.bell.notified();
            if !taker.goes_on() {
                // The bell may have rung for a key, which another worker must take.
                self.bell.notify_one();
                return None;
            }
            let (held, settle) = (taker.held_until(), self.settle(taker));
            let taken = {
                let mut queue = self.keys.lock();
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
                        // Keys that came together may have rung the bell only once. Other workers take the rest.
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

    /// Closes the breakers of keys that are no longer storming. Returns when to look again.
    fn settle(&self, taker: &impl Taker) -> Option<Duration> {
        let (settled, next) = {
            let mut breaker = self.breaker.lock();
            (breaker.settle(self.now()), breaker.settle_at())
        };
        settled.iter().for_each(|(key, storm)| taker.settled(key, storm));
        next
    }

    /// `true` if a key can be taken now.
    pub(super) fn has_next(&self) -> bool {
        self.keys.lock().next_due().is_some_and(|due| due <= self.now())
    }

    /// Ends a key's processing, with what becomes of it. Returns how long the processing took.
    pub(super) fn finish(&self, item: &Item<Key>, next: Next) -> Duration {
        let (now, key) = (self.now(), item.key.clone());
        let again = match next {
            Next::Done | Next::GivenBack => None,
            Next::After(delay) => Some((delay, Cause::RequeueAfter)),
            Next::Retry | Next::RetryAfter(_) => {
                let queue = self.keys.lock();
                let delay = queue.pace().backoff.delay(queue.failures(&key));
                Some((delay.max(next.at_least()), Cause::Failure))
            }
        };
        // A key that comes again later anyway is not part of a storm.
        let again = again.filter(|(delay, _)| *delay < OPEN);
        let wait = again.map_or(Duration::ZERO, |(_, cause)| self.breaker.lock().ask(now, &key, || cause));
        let mut queue = self.keys.lock();
        match next {
            Next::Done => queue.forget(&key),
            Next::GivenBack => queue.add_after(now, key, item.priority, Duration::ZERO),
            Next::After(delay) => {
                queue.forget(&key);
                queue.add_after(now, key, item.priority, delay.max(wait));
            }
            Next::Retry | Next::RetryAfter(_) => {
                queue.add_rate_limited(now, key, item.priority, wait.max(next.at_least()));
            }
        }
        let took = queue.done(now, &item.key);
        drop(queue);
        self.bell.notify_one();
        took
    }

    /// Wakes all idle workers, so that they look again whether they go on and whether keys are held back.
    pub(super) fn wake_all(&self) {
        self.bell.notify_waiters();
    }

    /// Hands out no more keys.
    pub(super) fn shut_down(&self) {
        self.keys.lock().shut_down();
        self.bell.notify_one();
    }
}

/// A worker that waits for a key.
///
/// Some workers sleep until the next key is due, the others until the bell rings. If one of the first kind ends, with a
/// key or without, it rings the bell, so that another one sleeps until the next key is due.
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
    /// It rests until something changes.
    Done,
    /// It was not reconciled, and comes again as it was.
    GivenBack,
    /// It comes again after this time.
    After(Duration),
    /// It is retried with backoff.
    Retry,
    /// It is retried with backoff, and not before this time, for which the server has asked.
    RetryAfter(Duration),
}

/// The longest Retry-After that a key waits for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

impl Next {
    fn at_least(self) -> Duration {
        match self {
            Self::RetryAfter(delay) => delay.min(RETRY_AFTER_MAX),
            Self::Done | Self::GivenBack | Self::After(_) | Self::Retry => Duration::ZERO,
        }
    }
}
