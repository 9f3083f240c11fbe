//! A controller's workqueue among threads: the pure queue of `pilothouse-core` behind a lock, and a bell. Every key that comes in passes
//! the breaker of its own, and waits as long as that says.

use std::{fmt, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use pilothouse_core::{
    breaker::{Breaker, RATE, Storm},
    key::{Key, TypeMeta},
    workqueue::{Item, LIMITS, Workqueue},
};
use tokio::{sync::Notify, time::Instant};

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
    fn calmed(&self, key: &Key, storm: &Storm<Cause>);
}

impl Queue {
    /// An empty one.
    pub(super) fn new() -> Self {
        Self {
            inner: Mutex::new(Workqueue::new(LIMITS)),
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

    /// Adds a key; see [`Workqueue::add`]. One that is reconciled over and over waits.
    pub(super) fn add(&self, key: Key, priority: i32, cause: impl FnOnce() -> Cause) {
        let now = self.now();
        let wait = self.breaker.lock().ask(now, &key, cause);
        self.inner.lock().add_after(now, key, priority, wait);
        self.bell.notify_one();
    }

    /// The next key, when there is one, and once what goes on with it if it is reconciled over and over; none once the queue is shut
    /// down, or who asks is not to go on.
    ///
    /// # Cancellation
    /// Safe: a key is taken only when it is returned.
    pub(super) async fn next(&self, taker: &impl Taker) -> Option<(Item<Key>, Option<Storm<Cause>>)> {
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
                    None => queue.get(self.now()).ok_or(queue.next_due().map(|due| self.origin + due)).inspect(|_| {
                        if !queue.is_empty() {
                            self.bell.notify_one();
                        }
                    }),
                }
            };
            let due = match taken {
                Ok(item) => {
                    let storm = self.breaker.lock().reconciled(self.now(), &item.key);
                    return Some((item, storm));
                }
                Err(due) => due,
            };
            match [due, settle.map(|at| self.origin + at)].into_iter().flatten().min() {
                // Not before it is due: the queue counts in nanoseconds, timers in milliseconds.
                Some(due) => {
                    let _ = tokio::time::timeout_at(due, rung).await;
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
        calmed.iter().for_each(|(key, storm)| taker.calmed(key, storm));
        next
    }

    /// Ends a key's processing, and says what is next for it.
    pub(super) fn finish(&self, item: &Item<Key>, next: Next) -> Duration {
        let (now, key) = (self.now(), item.key.clone());
        // What is to be done again later anyway is no storm, and has no part in one.
        let wait = |delay: Duration, cause: Cause| match delay < RATE.every {
            true => self.breaker.lock().ask(now, &key, || cause),
            false => Duration::ZERO,
        };
        let wait = match next {
            Next::Done => Duration::ZERO,
            Next::After(delay) => wait(delay, Cause::RequeueAfter),
            Next::Retry => {
                let failures = self.inner.lock().failures(&key);
                wait(LIMITS.delay(failures), Cause::Failure)
            }
        };
        let mut queue = self.inner.lock();
        match next {
            Next::Done => queue.forget(&key),
            Next::After(delay) => {
                queue.forget(&key);
                queue.add_after(now, key, item.priority, delay.max(wait));
            }
            Next::Retry => {
                queue.add_rate_limited_after(now, key, item.priority, wait);
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

/// What becomes of a key after a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing until it changes.
    Done,
    /// Again after this time though nothing changes.
    After(Duration),
    /// Again, with growing delay.
    Retry,
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use pilothouse_core::workqueue::CHANGE;

    use super::*;

    /// Takes what there is, but not before a time.
    #[derive(Default)]
    struct Patient {
        until: Mutex<Option<Instant>>,
        calmed: RefCell<Vec<String>>,
    }

    impl Taker for Patient {
        fn goes_on(&self) -> bool {
            true
        }

        fn held(&self) -> Option<Instant> {
            self.until.lock().filter(|until| Instant::now() < *until)
        }

        fn calmed(&self, key: &Key, storm: &Storm<Cause>) {
            self.calmed.borrow_mut().push(format!("{key} after {} reconciles", storm.reconciles));
        }
    }

    fn key(name: &str) -> Key {
        Key::new(Some("n"), name)
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_are_held_back_keep_their_order_and_come_when_the_time_is_over() {
        let (queue, taker) = (Queue::new(), Patient::default());
        for name in ["a", "b"] {
            queue.add(key(name), CHANGE, || Cause::Itself);
        }
        let until = Instant::now() + Duration::from_secs(300);
        *taker.until.lock() = Some(until);
        for name in ["a", "b"] {
            let (item, _) = queue.next(&taker).await.expect("it is not shut down");
            assert_eq!(item.key, key(name));
            assert!(Instant::now() >= until);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_held_back_goes_on_when_it_is_released() {
        let (queue, taker) = (Queue::new(), Patient::default());
        *taker.until.lock() = Some(Instant::now() + Duration::from_secs(300));
        queue.add(key("a"), CHANGE, || Cause::Itself);
        let began = Instant::now();
        let release = async {
            tokio::task::yield_now().await;
            *taker.until.lock() = None;
            queue.wake_all();
        };
        let (taken, ()) = tokio::join!(queue.next(&taker), release);
        assert_eq!(taken.map(|(item, _)| item.key), Some(key("a")));
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_held_back_ends_with_the_queue() {
        let (queue, taker) = (Queue::new(), Patient::default());
        *taker.until.lock() = Some(Instant::now() + Duration::from_secs(300));
        queue.add(key("a"), CHANGE, || Cause::Itself);
        let end = async {
            tokio::task::yield_now().await;
            queue.shut_down();
        };
        let (taken, ()) = tokio::join!(queue.next(&taker), end);
        assert_eq!(taken, None);
    }

    /// Reconciles `a` a hundred times, each time as soon as it may be; something wakes it each time as well.
    async fn storm(next: Next, wakes: bool) -> (Duration, Vec<Storm<Cause>>, Vec<String>) {
        let (queue, taker) = (Queue::new(), Patient::default());
        let child = || Cause::Child(TypeMeta::new("v1", "ConfigMap"), key("child"));
        queue.add(key("a"), CHANGE, child);
        let (began, mut told) = (Instant::now(), Vec::new());
        for _ in 0..100 {
            let (item, storm) = queue.next(&taker).await.expect("it is not shut down");
            told.extend(storm);
            if wakes {
                queue.add(key("a"), CHANGE, child);
            }
            queue.finish(&item, next);
        }
        let took = began.elapsed();
        assert_eq!(queue.breakers(), (1, 1));
        // Others do not wait.
        queue.add(key("b"), CHANGE, child);
        let (item, _) = queue.next(&taker).await.expect("it is not shut down");
        assert_eq!((item.key, began.elapsed()), (key("b"), took));
        // It comes to rest: nothing has to come for that to be noticed.
        let (item, _) = queue.next(&taker).await.expect("it is not shut down");
        queue.finish(&item, Next::Done);
        assert!(tokio::time::timeout(Duration::from_secs(60), queue.next(&taker)).await.is_err());
        assert_eq!(queue.breakers(), (0, 1));
        (took, told, taker.calmed.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_woken_for_ever_is_handed_out_once_a_second_in_the_end() {
        for next in [Next::Done, Next::Retry] {
            let (took, told, calmed) = storm(next, true).await;
            assert!(took >= Duration::from_secs(39) && took < Duration::from_secs(42), "{next:?}: {took:?}");
            let causes: Vec<_> = told.iter().filter_map(|storm| Some(storm.by.as_ref()?.cause.to_string())).collect();
            assert_eq!(causes, ["changes of its child v1 ConfigMap n/child"], "{next:?}");
            assert_eq!(calmed, ["n/a after 101 reconciles"], "{next:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_asks_to_be_called_at_once_for_ever_is_called_once_a_second() {
        let (took, told, _) = storm(Next::After(LIMITS.base), false).await;
        assert!(took >= Duration::from_secs(39) && took < Duration::from_secs(42), "{took:?}");
        let causes: Vec<_> = told.iter().filter_map(|storm| Some(storm.by.as_ref()?.cause.clone())).collect();
        assert_eq!(causes, [Cause::RequeueAfter]);
    }
}
