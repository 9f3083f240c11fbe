//! A controller's workqueue among threads: the pure queue of `pilothouse-core` behind a lock, and a bell.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pilothouse_core::{
    key::Key,
    workqueue::{Item, LIMITS, Workqueue},
};
use tokio::{sync::Notify, time::Instant};

/// Keys that wait for a worker.
pub struct Queue {
    inner: Mutex<Workqueue<Key>>,
    bell: Notify,
    origin: Instant,
}

impl Queue {
    /// An empty one.
    pub(super) fn new() -> Self {
        Self { inner: Mutex::new(Workqueue::new(LIMITS)), bell: Notify::new(), origin: Instant::now() }
    }

    /// The queue's time.
    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The queue itself, to look at.
    pub fn lock(&self) -> MutexGuard<'_, Workqueue<Key>> {
        self.inner.lock()
    }

    /// Adds a key; see [`Workqueue::add`].
    pub(super) fn add(&self, key: Key, priority: i32) {
        self.inner.lock().add(self.now(), key, priority);
        self.bell.notify_one();
    }

    /// The next key, when there is one; none once the queue is shut down, or who asks is not to go on.
    ///
    /// # Cancellation
    /// Safe: a key is taken only when it is returned.
    pub(super) async fn next(&self, goes_on: impl Fn() -> bool) -> Option<Item<Key>> {
        loop {
            let rung = self.bell.notified();
            if !goes_on() {
                // The bell may have been for a key, which others must take.
                self.bell.notify_one();
                return None;
            }
            let due = {
                let mut queue = self.inner.lock();
                if queue.is_shut_down() {
                    // The other workers must see it too.
                    self.bell.notify_one();
                    return None;
                }
                if let Some(item) = queue.get(self.now()) {
                    if !queue.is_empty() {
                        self.bell.notify_one();
                    }
                    return Some(item);
                }
                queue.next_due()
            };
            match due {
                // Not before it is due: the queue counts in nanoseconds, timers in milliseconds.
                Some(due) => {
                    let _ = tokio::time::timeout_at(self.origin + due, rung).await;
                }
                None => rung.await,
            }
        }
    }

    /// Ends a key's processing, and says what is next for it.
    pub(super) fn finish(&self, item: &Item<Key>, next: Next) -> Duration {
        let now = self.now();
        let mut queue = self.inner.lock();
        match next {
            Next::Done => queue.forget(&item.key),
            Next::After(delay) => {
                queue.forget(&item.key);
                queue.add_after(now, item.key.clone(), item.priority, delay);
            }
            Next::Retry => {
                queue.add_rate_limited(now, item.key.clone(), item.priority);
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
