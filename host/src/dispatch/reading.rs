//! What one call has read so far, for invariant 11: whoever read is woken when it changes.
//!
//! A read is noted before the store is looked at, so that no change slips in between. What a successful call read takes the place of what
//! the last one read; a call that fails, or is dropped, has read nothing.

use std::sync::Arc;

use parking_lot::Mutex;
use pilothouse_core::{
    key::{Key, TypeMeta},
    reads::{Run, Selection, Tracker},
};

/// The reads of one call.
pub(super) struct Reading {
    tracker: Arc<Mutex<Tracker>>,
    run: Run,
    /// Not to be abandoned any more.
    committed: bool,
}

impl Reading {
    /// A call about `key` begins.
    pub(super) fn begin(tracker: &Arc<Mutex<Tracker>>, key: &Key) -> Self {
        let run = tracker.lock().begin(key);
        Self { tracker: tracker.clone(), run, committed: false }
    }

    /// It is about to look at one object, which need not exist.
    pub(super) fn object(&self, of: &TypeMeta, key: &Key) {
        self.tracker.lock().read_object(self.run, of, key);
    }

    /// It is about to look at all objects of a selection.
    pub(super) fn selection(&self, of: &TypeMeta, selection: Selection) {
        self.tracker.lock().read_selection(self.run, of, selection);
    }

    /// It was successful: these reads are those that count.
    pub(super) fn commit(&mut self) {
        self.committed = true;
        self.tracker.lock().commit(self.run);
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if !self.committed {
            self.tracker.lock().abandon(self.run);
        }
    }
}
