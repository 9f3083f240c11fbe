//! What the keys of a controller ask to be watched, beside the manifest (`outcome.watches`).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, MutexGuard};
use pilothouse_core::{
    asked::{Asked, Full},
    budget::Budget,
    key::Key,
    manifest::Watch,
};
use tokio::sync::Notify;

use crate::{dispatch::reading::Cached, informer::View};

/// What keys ask for, and what is cached because of it.
pub(in crate::dispatch) struct Asks {
    /// `true` once a key has asked for something. Most plugins never do, and pay for one look at this.
    is_used: AtomicBool,
    asked: Mutex<Asked>,
    changed: Notify,
    cached: ArcSwapOption<Cached>,
}

impl Asks {
    /// Creates it without watches. What keys ask for counts in this budget.
    pub(super) fn within(bytes: &Budget) -> Self {
        Self {
            is_used: AtomicBool::new(false),
            asked: Mutex::new(Asked::within(bytes)),
            changed: Notify::new(),
            cached: ArcSwapOption::empty(),
        }
    }

    /// `true` if a key has asked for something since the start.
    pub(in crate::dispatch) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Replaces what a key asks for.
    ///
    /// # Errors
    /// There is no room. The key then asks for nothing.
    pub(in crate::dispatch) fn replace(&self, key: &Key, watches: Vec<Watch>) -> Result<(), Full> {
        if watches.is_empty() && !self.is_used() {
            return Ok(());
        }
        self.is_used.store(true, Ordering::Release);
        let changed = self.asked.lock().replace(key, watches);
        if changed != Ok(false) {
            self.look();
        }
        changed.map(drop)
    }

    /// Forgets what a key asks for. May be called under an informer's lock.
    pub(in crate::dispatch) fn forget(&self, key: &Key) {
        if self.is_used() && self.asked.lock().forget(key) {
            self.look();
        }
    }

    /// Lets the controller look at what is asked for.
    pub(in crate::dispatch) fn look(&self) {
        self.changed.notify_one();
    }

    /// Returns when something is asked for, or not any more. One task calls this.
    pub(in crate::dispatch) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Locks what is asked for.
    pub(in crate::dispatch) fn lock(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock()
    }

    /// Shows the next calls what is cached now.
    pub(in crate::dispatch) fn publish(&self, cached: Option<Cached>) {
        self.cached.store(cached.map(Arc::new));
    }

    /// Returns what a call reads that is served with this view. `None`: nothing beside it.
    pub(in crate::dispatch) fn cached(&self, fixed: &View) -> Option<Arc<Cached>> {
        if !self.is_used() {
            return None;
        }
        // A swap of the revision may be under way.
        self.cached.load_full().filter(|cached| cached.fixed.is(fixed))
    }

    /// Returns the kinds that are asked for and not cached, and why not.
    pub(in crate::dispatch) fn lacking(&self) -> Vec<String> {
        let cached = self.cached.load();
        let lacking = cached.iter().flat_map(|cached| &cached.lacking);
        lacking.map(|(of, why)| format!("{of}: {why}")).collect()
    }
}
