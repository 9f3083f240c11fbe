//! What all informers of a host share.

use std::sync::atomic::{AtomicU64, Ordering};

use pilothouse_core::object::ResourceVersion;
use tokio::sync::{Notify, watch};

use super::kinds::Kinds;

/// What all informers of a host share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Rung when something has changed that may ask for another plan.
    pub(super) bell: Notify,
    /// The newest version that any informer or own write has brought.
    pub(super) newest: AtomicU64,
    /// Numbers given out, to informers and leases.
    numbers: AtomicU64,
    /// How often an informer has found that the server's versions went back.
    restores: watch::Sender<u64>,
    /// How often an informer's reflector has turned to something else.
    pub(super) turns: watch::Sender<u64>,
    /// Informers that wait for their kind.
    pub(super) kinds: Kinds,
}

impl Shared {
    /// One that nobody had.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Changes when an informer finds that the cluster was restored.
    pub(super) fn restores(&self) -> watch::Receiver<u64> {
        self.restores.subscribe()
    }

    pub(super) fn note_restore(&self) {
        self.restores.send_modify(|restores| *restores += 1);
    }

    /// Changes when an informer turns to something else: it watches, or does not any more.
    pub(super) fn turns(&self) -> watch::Receiver<u64> {
        self.turns.subscribe()
    }

    pub(super) fn saw(&self, version: ResourceVersion) {
        self.newest.fetch_max(version.0, Ordering::Relaxed);
    }
}
