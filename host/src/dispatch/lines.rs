//! How much is logged of a plugin over all its calls: one that has a thousand calls a second may write a few lines in each, or fail in its
//! own words in each, and fills the disk; and one that storms may do so over each of a hundred thousand objects.
//!
//! Within one call [`LogLine`](crate::wasm::LogLine) has bounds of its own.

use std::time::Duration;

use parking_lot::Mutex;
use pilothouse_core::rate::Rate;

/// Bytes of a line that count as one: longer ones count as several.
const BYTES: usize = 1 << 10;

/// Of its calls: four that say all they may, as when a host starts; then what somebody may still want to read.
pub(super) const CALLS: Rate = Rate { burst: 1000, every: Duration::from_millis(10) };

/// Of objects that are reconciled over and over: enough to see what they have in common. All of them are counted at `/debug/plugins`.
pub(super) const STORMS: Rate = Rate { burst: 20, every: Duration::from_secs(10) };

/// How often the number of dropped lines is logged.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// What is not said one by one: how often it was, which is said at once, and then once in a while.
#[derive(Debug, Default)]
pub(super) struct Unsaid {
    all: u64,
    /// Since it was last said.
    unsaid: u64,
    /// When it was; none: never.
    said: Option<Duration>,
}

impl Unsaid {
    /// So often more.
    pub(super) fn add(&mut self, count: u64) {
        self.all += count;
        self.unsaid += count;
    }

    /// How often it was since that was last said, if it is to be said now; `now` is since some origin.
    pub(super) fn say(&mut self, now: Duration) -> Option<u64> {
        let due = self.said.is_none_or(|said| now.saturating_sub(said) >= SAID_AGAIN);
        (due && self.unsaid > 0).then(|| {
            self.said = Some(now);
            std::mem::take(&mut self.unsaid)
        })
    }

    /// How often it was so far.
    pub(super) fn all(&self) -> u64 {
        self.all
    }
}

/// Lines of one plugin, such as what it logs and what is logged about its failures.
#[derive(Debug)]
pub(super) struct Lines {
    rate: Rate,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    used: Duration,
    dropped: Unsaid,
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
    /// None came yet. `rate` is how many are written.
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, inner: Mutex::default() }
    }

    /// One line of so many bytes comes, `now` after some origin.
    pub(super) fn take(&self, now: Duration, bytes: usize) -> Verdict {
        let inner = &mut *self.inner.lock();
        let written = self.rate.wait(inner.used, now).is_zero();
        if written {
            for _ in 0..bytes.div_ceil(BYTES).max(1) {
                inner.used = self.rate.take(inner.used, now);
            }
        } else {
            inner.dropped.add(1);
        }
        Verdict { written, say: inner.dropped.say(now) }
    }

    /// Lines that were dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.inner.lock().dropped.all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Verdict = Verdict { written: true, say: None };
    const DROPPED: Verdict = Verdict { written: false, say: None };

    #[test]
    fn lines_over_the_rate_are_dropped_and_told_once_a_minute() {
        let lines = Lines::new(CALLS);
        let start = Duration::from_secs(5);
        for _ in 0..CALLS.burst {
            assert_eq!(lines.take(start, 80), QUIET);
        }
        assert_eq!(lines.take(start, 80), Verdict { written: false, say: Some(1) });
        assert_eq!(lines.take(start, 80), DROPPED);
        assert_eq!(lines.take(start + CALLS.every, 80), QUIET);
        assert_eq!(lines.take(start + CALLS.every, 80), DROPPED);
        assert_eq!(lines.take(start + SAID_AGAIN, 80), Verdict { written: true, say: Some(2) });
        assert_eq!(lines.take(start + SAID_AGAIN, 80), QUIET);
        assert_eq!(lines.dropped(), 3);
    }

    #[test]
    fn long_line_counts_as_several() {
        let lines = Lines::new(Rate { burst: 10, ..CALLS });
        let start = Duration::from_secs(5);
        assert_eq!(lines.take(start, 9 * BYTES + 1), QUIET);
        assert!(!lines.take(start, 0).written);
        assert!(!lines.take(start + CALLS.every / 2, 0).written);
        assert!(lines.take(start + CALLS.every, 100 * BYTES).written);
        assert!(!lines.take(start + CALLS.every * 100, 0).written);
        assert!(lines.take(start + CALLS.every * 101, 0).written);
    }

    #[test]
    fn lines_within_the_rate_are_all_written() {
        let lines = Lines::new(CALLS);
        assert!((0..5000).all(|number| lines.take(CALLS.every * number, 80) == QUIET));
    }
}
