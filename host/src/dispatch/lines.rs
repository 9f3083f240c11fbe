//! How much is logged of a plugin over all its calls: one that has a thousand calls a second may write a few lines in each, or fail in its
//! own words in each, and fills the disk.
//!
//! Within one call [`LogLine`](crate::wasm::LogLine) has bounds of its own.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use pilothouse_core::rate::Rate;

/// Four calls that say all they may, as when a host starts; then what somebody may still want to read.
const RATE: Rate = Rate { burst: 1000, every: Duration::from_millis(10) };

/// So often it is said how many lines were dropped.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// The lines of one plugin: what it logs, and what is logged about its failures.
#[derive(Debug, Default)]
pub(super) struct Lines {
    inner: Mutex<Inner>,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    used: Duration,
    /// Dropped since it was last said.
    unsaid: u64,
    /// When it was; none: never.
    said: Option<Duration>,
}

/// What becomes of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// It may be written.
    pub(super) written: bool,
    /// So many were dropped, which is to be said now.
    pub(super) say: Option<u64>,
}

impl Lines {
    /// One line comes, `now` after some origin.
    pub(super) fn take(&self, now: Duration) -> Verdict {
        let inner = &mut *self.inner.lock();
        let written = RATE.wait(inner.used, now).is_zero();
        if written {
            inner.used = RATE.take(inner.used, now);
        } else {
            inner.unsaid += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        let due = inner.said.is_none_or(|said| now.saturating_sub(said) >= SAID_AGAIN);
        let say = (due && inner.unsaid > 0).then(|| {
            inner.said = Some(now);
            std::mem::take(&mut inner.unsaid)
        });
        Verdict { written, say }
    }

    /// Lines that were dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Verdict = Verdict { written: true, say: None };
    const DROPPED: Verdict = Verdict { written: false, say: None };

    #[test]
    fn lines_over_the_rate_are_dropped_and_told_once_a_minute() {
        let lines = Lines::default();
        let start = Duration::from_secs(5);
        for _ in 0..RATE.burst {
            assert_eq!(lines.take(start), QUIET);
        }
        assert_eq!(lines.take(start), Verdict { written: false, say: Some(1) });
        assert_eq!(lines.take(start), DROPPED);
        assert_eq!(lines.take(start + RATE.every), QUIET);
        assert_eq!(lines.take(start + RATE.every), DROPPED);
        assert_eq!(lines.take(start + SAID_AGAIN), Verdict { written: true, say: Some(2) });
        assert_eq!(lines.take(start + SAID_AGAIN), QUIET);
        assert_eq!(lines.dropped(), 3);
    }

    #[test]
    fn lines_within_the_rate_are_all_written() {
        let lines = Lines::default();
        assert!((0..5000).all(|number| lines.take(RATE.every * number) == QUIET));
    }
}
