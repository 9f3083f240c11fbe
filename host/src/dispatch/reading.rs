//! The reads of one call: all at one moment, and tracked, so that later changes wake the key (invariant 11).
//!
//! - A read is tracked before the store is looked at. So a change after that always wakes the key.
//! - A change before that, but after the call's [`Moment`], is hidden from the call. The hidden changes are looked
//!   through at the end of the call.
//! - The reads of a successful call replace those of the call before. A call that fails, or is dropped, changes
//!   nothing.
//!
//! ```text
//!  moment ── b changes ── b is tracked and read, as it was ── b changes again ── end
//!                 └ hidden: wakes at the end                        └ heard: wakes
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use pilothouse_core::{
    key::{Key, TypeMeta},
    reads::{Run, Selection, Tracker},
};

use crate::informer::{Moment, View};

/// What the calls of a controller read beside the manifest.
pub(super) struct Cached {
    /// What the manifest caches.
    pub(super) fixed: View,
    /// That, and what the controller's keys asked for and is synced.
    pub(super) view: View,
    /// Kinds that keys asked for and that are not cached, and why not.
    pub(super) lacking: Vec<(TypeMeta, String)>,
}

/// The reads of one call.
#[derive(Default)]
pub(super) struct Reading {
    moment: Moment,
    /// `None` if the call reads what the manifest caches, and nothing else.
    cached: Option<Arc<Cached>>,
    /// `None` if the reads are not tracked.
    tracked: Option<Tracked>,
    /// The longest Retry-After of the call's requests, in milliseconds.
    retry_after: AtomicU64,
}

struct Tracked {
    tracker: Arc<Mutex<Tracker>>,
    run: Run,
    key: Key,
}

impl Reading {
    /// Begins to track the reads of a call about `key`.
    pub(super) fn begin(tracker: &Arc<Mutex<Tracker>>, key: &Key, cached: Option<Arc<Cached>>) -> Self {
        let run = tracker.lock().begin(key);
        let tracked = Tracked { tracker: tracker.clone(), run, key: key.clone() };
        Self { moment: Moment::default(), cached, tracked: Some(tracked), retry_after: AtomicU64::new(0) }
    }

    /// Returns what the call reads beside the manifest.
    pub(super) fn cached(&self) -> Option<&Cached> {
        self.cached.as_deref()
    }

    /// Records the Retry-After of a request that the API server refused.
    pub(super) fn record_retry_after(&self, retry_after: Duration) {
        let millis = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
        self.retry_after.fetch_max(millis, Ordering::Relaxed);
    }

    /// Returns the longest Retry-After.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let millis = self.retry_after.load(Ordering::Relaxed);
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    /// Returns the moment at which the call reads.
    pub(super) fn moment(&self) -> &Moment {
        &self.moment
    }

    /// Tracks an object that is about to be read. It need not exist.
    pub(super) fn object(&self, of: &TypeMeta, key: &Key) {
        if let Some(Tracked { tracker, run, .. }) = &self.tracked {
            tracker.lock().read_object(*run, of, key);
        }
    }

    /// Tracks a selection that is about to be read.
    pub(super) fn selection(&self, of: &TypeMeta, selection: Selection) {
        if let Some(Tracked { tracker, run, .. }) = &self.tracked {
            tracker.lock().read_selection(*run, of, selection);
        }
    }

    /// Ends the reads. Returns `true` if something that was read had changed before, which has woken no key.
    #[must_use]
    pub(super) fn end(&mut self) -> bool {
        let mut moment = std::mem::take(&mut self.moment);
        let Some(Tracked { tracker, key, .. }) = &self.tracked else { return false };
        moment.hides(|change| tracker.lock().wakes_key(key, change.object().type_meta(), change))
    }

    /// Returns `true` if something that was read has changed since. The key was woken for that.
    pub(super) fn is_stale(&self) -> bool {
        self.tracked.as_ref().is_some_and(|Tracked { tracker, run, .. }| tracker.lock().is_woken(*run))
    }

    /// Replaces the reads of the key's last successful call by these.
    pub(super) fn commit(mut self) {
        if let Some(Tracked { tracker, run, .. }) = self.tracked.take() {
            tracker.lock().commit(run);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(Tracked { tracker, run, .. }) = &self.tracked {
            tracker.lock().abandon(*run);
        }
    }
}
