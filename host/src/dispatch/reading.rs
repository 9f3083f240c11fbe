//! What one call reads: at one moment, and, for invariant 11, noted: whoever read is woken when it changes.
//!
//! A read is noted before the store is looked at, so that no change slips in between: what changes later wakes the key. What had
//! changed before, though after the call's [`Moment`], is what the moment hides: it is looked through when the call ends.
//!
//! ```text
//!  moment ── b changes ── b is noted and read, as it was ── b changes again ── end
//!                 └ hidden: look again                            └ heard: wakes
//! ```
//!
//! What a successful call read takes the place of what the last one read; a call that fails, or is dropped, has read nothing.

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

use crate::informer::Moment;

/// The reads of one call.
#[derive(Default)]
pub(super) struct Reading {
    moment: Moment,
    /// None: they are not noted.
    noted: Option<Noted>,
    /// The longest Retry-After in answer to one of the call's requests, in milliseconds.
    retry_after: AtomicU64,
}

/// Where they are noted.
struct Noted {
    tracker: Arc<Mutex<Tracker>>,
    run: Run,
    key: Key,
}

impl Reading {
    /// A call about `key` begins.
    pub(super) fn begin(tracker: &Arc<Mutex<Tracker>>, key: &Key) -> Self {
        let run = tracker.lock().begin(key);
        let noted = Noted { tracker: tracker.clone(), run, key: key.clone() };
        Self { moment: Moment::default(), noted: Some(noted), retry_after: AtomicU64::new(0) }
    }

    /// The API server refused a request of the call, and asked to be left alone for so long.
    pub(super) fn refused(&self, retry_after: Duration) {
        let millis = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
        self.retry_after.fetch_max(millis, Ordering::Relaxed);
    }

    /// How long the API server asked to be left alone, at most.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let millis = self.retry_after.load(Ordering::Relaxed);
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    /// What the call sees.
    pub(super) fn moment(&self) -> &Moment {
        &self.moment
    }

    /// It is about to look at one object, which need not exist.
    pub(super) fn object(&self, of: &TypeMeta, key: &Key) {
        if let Some(Noted { tracker, run, .. }) = &self.noted {
            tracker.lock().read_object(*run, of, key);
        }
    }

    /// It is about to look at all objects of a selection.
    pub(super) fn selection(&self, of: &TypeMeta, selection: Selection) {
        if let Some(Noted { tracker, run, .. }) = &self.noted {
            tracker.lock().read_selection(*run, of, selection);
        }
    }

    /// It is over, and reads nothing more. True: something that it read had changed before, and nobody was woken for that.
    #[must_use]
    pub(super) fn end(&mut self) -> bool {
        let mut moment = std::mem::take(&mut self.moment);
        let Some(Noted { tracker, key, .. }) = &self.noted else { return false };
        moment.hides(|change| tracker.lock().wakes_key(key, change.object().type_meta(), change))
    }

    /// True if something that it read has changed since, and the key was woken for that.
    pub(super) fn is_old(&self) -> bool {
        self.noted.as_ref().is_some_and(|Noted { tracker, run, .. }| tracker.lock().is_woken(*run))
    }

    /// It was successful: these reads are those that count.
    pub(super) fn commit(mut self) {
        if let Some(Noted { tracker, run, .. }) = self.noted.take() {
            tracker.lock().commit(run);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(Noted { tracker, run, .. }) = &self.noted {
            tracker.lock().abandon(*run);
        }
    }
}
