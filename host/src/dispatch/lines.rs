//! Limits the log lines by a plugin and about it, over all its calls.
//!
//! A plugin with a thousand calls a second could fill the disk with a few lines in each. So could one that storms over
//! a hundred thousand objects. Within one call, [`LogLine`](crate::wasm::LogLine) has bounds of its own.

use std::time::Duration;

use parking_lot::Mutex;
use pilothouse_core::rate::Rate;

/// Bytes that count as one line. A longer line counts as several.
const BYTES: usize = 1 << 10;

/// Lines of calls. The burst is four calls that log all they may, as when a host starts.
pub(super) const CALLS: Rate = Rate { burst: 1000, every: Duration::from_millis(10) };

/// Lines about reconcile storms: enough to see what the objects have in common. `/debug/plugins` lists all of them.
pub(super) const STORMS: Rate = Rate { burst: 20, every: Duration::from_secs(10) };

/// Time between two reports of a number.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Counts things that are not logged one by one. The number is reported at the first, and then once a minute.
#[derive(Debug, Default)]
pub(super) struct Unlogged {
    all: u64,
    /// Since the last report.
    unreported: u64,
    /// When the last report was.
    reported: Option<Duration>,
}

impl Unlogged {
    /// Counts more of them.
    pub(super) fn add(&mut self, count: u64) {
        self.all += count;
        self.unreported += count;
    }

    /// Returns the number since the last report, if it is time for another one. `now` is since some origin.
    pub(super) fn take_if_due(&mut self, now: Duration) -> Option<u64> {
        let is_due = self.reported.is_none_or(|reported| now.saturating_sub(reported) >= REPORT_EVERY);
        (is_due && self.unreported > 0).then(|| {
            self.reported = Some(now);
            std::mem::take(&mut self.unreported)
        })
    }

    /// Returns the number since the start.
    pub(super) fn all(&self) -> u64 {
        self.all
    }
}

/// Limits the rate of the log lines of one plugin.
#[derive(Debug)]
pub(super) struct LineLimit {
    rate: Rate,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: Duration,
    dropped: Unlogged,
}

/// Whether a line may be logged, and whether it is time to report dropped lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// `true` if the line may be logged; if not, it counts as dropped.
    pub(super) may_log: bool,
    /// Number of dropped lines to report now.
    pub(super) report: Option<u64>,
}

impl LineLimit {
    /// Creates a limit of which nothing is used.
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, state: Mutex::default() }
    }

    /// Takes room for a line of this many bytes, `now` after some origin.
    pub(super) fn take(&self, now: Duration, bytes: usize) -> Verdict {
        let state = &mut *self.state.lock();
        let may_log = self.rate.wait(state.used, now).is_zero();
        if may_log {
            for _ in 0..bytes.div_ceil(BYTES).max(1) {
                state.used = self.rate.take(state.used, now);
            }
        } else {
            state.dropped.add(1);
        }
        Verdict { may_log, report: state.dropped.take_if_due(now) }
    }

    /// Returns the number of dropped lines since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.state.lock().dropped.all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Verdict = Verdict { may_log: true, report: None };
    const DROPPED: Verdict = Verdict { may_log: false, report: None };

    #[test]
    fn lines_over_the_rate_are_dropped_and_their_number_is_reported_once_a_minute() {
        let lines = LineLimit::new(CALLS);
        let start = Duration::from_secs(5);
        for _ in 0..CALLS.burst {
            assert_eq!(lines.take(start, 80), QUIET);
        }
        assert_eq!(lines.take(start, 80), Verdict { may_log: false, report: Some(1) });
        assert_eq!(lines.take(start, 80), DROPPED);
        assert_eq!(lines.take(start + CALLS.every, 80), QUIET);
        assert_eq!(lines.take(start + CALLS.every, 80), DROPPED);
        assert_eq!(lines.take(start + REPORT_EVERY, 80), Verdict { may_log: true, report: Some(2) });
        assert_eq!(lines.take(start + REPORT_EVERY, 80), QUIET);
        assert_eq!(lines.dropped(), 3);
    }

    #[test]
    fn long_line_counts_as_several() {
        let lines = LineLimit::new(Rate { burst: 10, ..CALLS });
        let start = Duration::from_secs(5);
        assert_eq!(lines.take(start, 9 * BYTES + 1), QUIET);
        assert!(!lines.take(start, 0).may_log);
        assert!(!lines.take(start + CALLS.every / 2, 0).may_log);
        assert!(lines.take(start + CALLS.every, 100 * BYTES).may_log);
        assert!(!lines.take(start + CALLS.every * 100, 0).may_log);
        assert!(lines.take(start + CALLS.every * 101, 0).may_log);
    }

    #[test]
    fn lines_within_the_rate_are_all_logged() {
        let lines = LineLimit::new(CALLS);
        assert!((0..5000).all(|number| lines.take(CALLS.every * number, 80) == QUIET));
    }
}
