//! Keys whose reconcile failed since a watch did not keep its cache up to date.
//!
//! They are retried with growing delay, like all that fails. This wakes them as soon as their caches may be believed. Nothing else would: no
//! object changes when a watch is back.

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;
use pilothouse_core::{key::Key, workqueue::CHANGE};
use tokio::sync::watch;

use crate::{
    dispatch::{controller::Controller, queue::Cause},
    writer,
};

/// The keys of one controller: no more than the objects that it reconciles.
#[derive(Default)]
pub(in crate::dispatch) struct Awaiting(Mutex<HashSet<Key>>);

impl Awaiting {
    /// A key has nothing to be reconciled any more.
    pub(in crate::dispatch) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

impl Controller {
    /// A key's reconcile failed over caches that are not to be believed.
    pub(in crate::dispatch) fn await_watch(&self, key: &Key) {
        self.awaiting().0.lock().insert(key.clone());
        // The watch may have come back since the reconcile asked.
        if self.is_known(key) {
            self.awaiting().forget(key);
            self.queue().add(key.clone(), CHANGE, || Cause::Failure);
        }
    }

    /// Wakes the keys whose caches may be believed again.
    fn wake_known(&self) {
        // Caches are locked meanwhile, by those who forget keys too: not under this lock.
        let keys = std::mem::take(&mut *self.awaiting().0.lock());
        let (known, unknown): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| self.is_known(key));
        self.awaiting().0.lock().extend(unknown);
        known.into_iter().for_each(|key| self.queue().add(key, CHANGE, || Cause::Failure));
    }

    fn is_known(&self, key: &Key) -> bool {
        let serving = self.serving();
        writer::is_known(&serving.spec.for_.of, &serving.owns, key.namespace.as_deref(), &serving.view)
    }
}

/// Wakes a controller's keys, each time that an informer turns to something else.
pub(in crate::dispatch) async fn run(controller: Arc<Controller>, mut turns: watch::Receiver<u64>) {
    while turns.changed().await.is_ok() {
        controller.wake_known();
    }
}
