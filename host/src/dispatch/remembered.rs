//! Bounds what the host remembers for one plugin, over all its controllers.
//!
//! A manifest may have hundreds of controllers, and each has buffers of its own. So one [`Budget`] bounds each kind of
//! buffer over all controllers. What the buffers hold counts as the plugin's memory (`pilothouse_plugin_memory_bytes`),
//! and the bounds in bytes are parts of `limits.totalMemoryMiB`.

use std::sync::{Arc, atomic::AtomicUsize};

use pilothouse_core::{
    asked::MAX_ASKED_BYTES,
    backlog::{MAX_GONE, MAX_GONE_BYTES, Vanished},
    budget::Budget,
    reads, unjudged,
};

/// Tracked reads may take this fraction of the plugin's memory. Beyond it a reconcile depends on whole kinds, which
/// costs calls and loses nothing. For the default of 1 GiB it is [`reads::MAX_BYTES`], the upper bound.
const READS: usize = 4;

/// Deleted objects that are still to be reconciled may take this fraction, and again those that `map` and `observe`
/// have not taken. For the default of 1 GiB it is [`MAX_GONE_BYTES`], the upper bound.
const GONE: usize = 8;

/// Errors of failing keys may take this fraction, and again postponed statuses with their Events, what keys ask to be
/// watched, and the series of the plugin's own metrics. For the default of 1 GiB it is [`MAX_TEXTS`].
const TEXTS: usize = 256;

/// Superseded versions of objects that wait for a predicate may take this fraction. For the default of 1 GiB it is
/// [`unjudged::MAX_BYTES`], the upper bound.
const UNJUDGED: usize = 128;

/// Upper bound of the bytes of errors, and of statuses: about a thousand of each. Of series it is some ten thousand.
const MAX_TEXTS: usize = 4 << 20;

/// Upper bound of waiting lookups: more than change in a moment, and a few megabytes. Beyond it every key is woken.
pub(super) const MAX_LOOKUPS: usize = 10_000;

/// The budgets of one plugin.
pub(super) struct Remembered {
    /// Tracked reads.
    pub(super) reads: Budget,
    /// Deleted objects that are still to be reconciled.
    pub(super) gone: Vanished,
    /// Deleted objects that `map` and `observe` have not taken yet.
    pub(super) unhandled: Vanished,
    /// Superseded versions of objects that wait for a predicate.
    pub(super) unjudged: Budget,
    /// Errors of failing keys.
    pub(super) errors: Budget,
    /// Postponed statuses, and Events that a reconcile leaves to the key's next one.
    pub(super) statuses: Budget,
    /// Number of waiting lookups.
    pub(super) lookups: Budget,
    /// What keys ask to be watched.
    pub(super) asked: Budget,
    /// Series of the plugin's own metrics.
    pub(super) metrics: Budget,
    /// Number of leases on that.
    pub(super) watches: Budget,
}

impl Remembered {
    /// Creates the budgets. Their use counts in `total` too, which bounds the plugin's instances.
    pub(super) fn new(total: &Arc<AtomicUsize>) -> Self {
        let bytes = |most| Budget::within(total.clone(), most);
        let vanished = || Vanished { objects: Budget::new(MAX_GONE), bytes: bytes(MAX_GONE_BYTES) };
        Self {
            reads: bytes(reads::MAX_BYTES),
            gone: vanished(),
            unhandled: vanished(),
            unjudged: bytes(unjudged::MAX_BYTES),
            errors: bytes(MAX_TEXTS),
            statuses: bytes(MAX_TEXTS),
            lookups: Budget::new(MAX_LOOKUPS),
            asked: bytes(MAX_ASKED_BYTES),
            metrics: bytes(MAX_TEXTS),
            watches: Budget::new(0),
        }
    }

    /// Sets the bounds for a plugin with this much memory.
    pub(super) fn limit(&self, total_memory: usize) {
        self.reads.set_most(reads::MAX_BYTES.min(total_memory / READS));
        for vanished in [&self.gone, &self.unhandled] {
            vanished.bytes.set_most(MAX_GONE_BYTES.min(total_memory / GONE));
        }
        self.unjudged.set_most(unjudged::MAX_BYTES.min(total_memory / UNJUDGED));
        self.asked.set_most(MAX_ASKED_BYTES.min(total_memory / TEXTS));
        for texts in [&self.errors, &self.statuses, &self.metrics] {
            texts.set_most(MAX_TEXTS.min(total_memory / TEXTS));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn bounds_are_fractions_of_the_plugins_memory_and_count_in_its_total() {
        let total = Arc::default();
        let remembered = Remembered::new(&total);
        let mut versions = remembered.unjudged.share();
        assert!(versions.fits(unjudged::MAX_BYTES) && !versions.fits(unjudged::MAX_BYTES + 1));
        remembered.limit(128 << 10);
        assert!(versions.fits(1 << 10) && !versions.fits((1 << 10) + 1));
        versions.set(1 << 10);
        assert_eq!(total.load(Ordering::Relaxed), 1 << 10);
        // More memory than the default does not widen the bound.
        remembered.limit(4 << 30);
        assert!(!versions.fits(unjudged::MAX_BYTES));
    }
}
