//! What all informers of a host share.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pilothouse_core::object::ResourceVersion;
use tokio::sync::{Notify, watch};

use super::{kinds::Kinds, lines::Lines};

/// What all informers of a host share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Notified when the registry should look at its plan again.
    pub(super) bell: Notify,
    /// The newest version that any informer or own write has received.
    pub(super) newest: AtomicU64,
    /// The next number for an informer or a lease.
    numbers: AtomicU64,
    /// How often an informer has found that the cluster was restored.
    restores: watch::Sender<u64>,
    /// How often an informer's reflector has changed its state.
    pub(super) turns: watch::Sender<u64>,
    /// Wakes informers that wait for their kind.
    pub(super) kinds: Kinds,
    /// Limits the warnings about informers that are blocked.
    pub(super) blocked: Mutex<Lines>,
}

impl Shared {
    /// Returns an unused number.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Changes when an informer finds that the cluster was restored.
    pub(super) fn restores(&self) -> watch::Receiver<u64> {
        self.restores.subscribe()
    }

    pub(super) fn record_restore(&self) {
        self.restores.send_modify(|restores| *restores += 1);
    }

    /// Changes when an informer changes its state, for example when its watch opens or breaks.
    pub(super) fn turns(&self) -> watch::Receiver<u64> {
        self.turns.subscribe()
    }

    pub(super) fn saw(&self, version: ResourceVersion) {
        self.newest.fetch_max(version.0, Ordering::Relaxed);
    }
}
