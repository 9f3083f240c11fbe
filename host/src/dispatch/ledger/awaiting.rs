//! Keys whose reconcile failed because a watch was down and its cache was not current.
//!
//! They are retried with backoff, as all failures are. A watch that comes back wakes them at once: no object changes
//! then, so that nothing else would.

use std::collections::HashSet;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pilothouse_core::{key::Key, workqueue::CHANGE};
use tokio::sync::watch;

use super::Ledger;
use crate::dispatch::{queue::Cause, serving::Serving};

/// The waiting keys of one controller: no more than the objects that it reconciles.
#[derive(Default)]
pub(super) struct Awaiting(Mutex<HashSet<Key>>);

impl Awaiting {
    pub(super) fn insert(&self, key: &Key) {
        self.0.lock().insert(key.clone());
    }

    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }

    /// Removes and returns the keys for which `is_current` returns `true`.
    fn take(&self, is_current: impl Fn(&Key) -> bool) -> Vec<Key> {
        // `is_current` locks caches, and `forget` is called while a cache is locked. So the lock is not held here.
        let keys = std::mem::take(&mut *self.0.lock());
        let (current, waiting): (Vec<_>, Vec<_>) = keys.into_iter().partition(is_current);
        self.0.lock().extend(waiting);
        current
    }
}

/// Wakes keys whose caches are current again, each time that an informer changes its state.
pub(in crate::dispatch) async fn run(ledger: &Ledger, serving: &ArcSwap<Serving>, mut turns: watch::Receiver<u64>) {
    while turns.changed().await.is_ok() {
        let serving = serving.load_full();
        for key in ledger.awaiting.take(|key| serving.is_current(key)) {
            ledger.queue.add(key, CHANGE, || Cause::Failure);
        }
    }
}
