//! What the host remembers for one plugin, over all its controllers.
//!
//! A manifest may have hundreds of controllers, and each has buffers of its own. A bound for each of them would be none for the plugin: so one
//! [`Budget`] bounds every kind of buffer over all controllers. What they hold counts as the plugin's memory
//! (`pilothouse_plugin_memory_bytes`), and the bounds in bytes are parts of `limits.totalMemoryMiB`.

use std::sync::{Arc, atomic::AtomicUsize};

use pilothouse_core::{
    backlog::{MAX_GONE, MAX_GONE_BYTES, Vanished},
    budget::Budget,
    reads,
};

/// Of the plugin's total memory, what the tracked reads may take: beyond it a run depends on whole kinds, which costs calls and loses nothing.
/// Of the default of 1 GiB it is [`reads::MAX_BYTES`], the most there is.
const READS: usize = 4;

/// Share for deleted objects that are still to be reconciled, and again for those that `map` and `observe` have not taken. Of the default of
/// 1 GiB it is [`MAX_GONE_BYTES`], the most there is.
const GONE: usize = 8;

/// What reasons of failures, and what statuses may take that are left to the next call: 4 MiB of 1 GiB, which is the most as well.
const TEXTS: usize = 256;

/// Bytes of reasons of failures, and of statuses, at most: a thousand of each.
const MAX_TEXTS: usize = 4 << 20;

/// Names that wait to be looked up, at most: more than change in a moment, and a few megabytes. Beyond it every key is looked at.
pub(super) const MOST_NAMES: usize = 10_000;

/// The budgets of one plugin.
pub(super) struct Remembered {
    /// What keys have read.
    pub(super) reads: Budget,
    /// What vanished and is still to be reconciled.
    pub(super) gone: Vanished,
    /// Deleted objects that `map` and `observe` have not taken yet.
    pub(super) untold: Vanished,
    /// Why keys fail.
    pub(super) reasons: Budget,
    /// Statuses that are left to the next call.
    pub(super) statuses: Budget,
    /// How many names wait to be looked up.
    pub(super) names: Budget,
}

impl Remembered {
    /// What is remembered counts in `total` too, which the plugin's instances see.
    pub(super) fn new(total: &Arc<AtomicUsize>) -> Self {
        let bytes = |most| Budget::within(total.clone(), most);
        let vanished = || Vanished { objects: Budget::new(MAX_GONE), bytes: bytes(MAX_GONE_BYTES) };
        Self {
            reads: bytes(reads::MAX_BYTES),
            gone: vanished(),
            untold: vanished(),
            reasons: bytes(MAX_TEXTS),
            statuses: bytes(MAX_TEXTS),
            names: Budget::new(MOST_NAMES),
        }
    }

    /// The plugin may have so much memory from now on.
    pub(super) fn limit(&self, total_memory: usize) {
        self.reads.set_most(reads::MAX_BYTES.min(total_memory / READS));
        for vanished in [&self.gone, &self.untold] {
            vanished.bytes.set_most(MAX_GONE_BYTES.min(total_memory / GONE));
        }
        for texts in [&self.reasons, &self.statuses] {
            texts.set_most(MAX_TEXTS.min(total_memory / TEXTS));
        }
    }
}
