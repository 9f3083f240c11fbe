//! Limits the log lines of one sort, of which a cluster could cause any number.

use std::time::Duration;

use pilothouse_core::rate::Rate;
use tokio::time::Instant;

/// Counts the lines of one sort.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The time of the first line.
    begun: Option<Instant>,
    used: Duration,
    /// Lines left out since the last one.
    left_out: u64,
}

impl Lines {
    /// Counts a line. If it is to be logged, returns how many were left out before it.
    pub(super) fn next(&mut self, rate: Rate) -> Option<u64> {
        let now = self.begun.get_or_insert_with(Instant::now).elapsed();
        if !rate.wait(self.used, now).is_zero() {
            self.left_out += 1;
            return None;
        }
        self.used = rate.take(self.used, now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lines_beyond_the_rate_are_left_out_and_counted() {
        let rate = Rate { burst: 2, every: Duration::from_secs(60) };
        let mut lines = Lines::default();
        let logged: Vec<_> = (0..10_000).filter_map(|_| lines.next(rate)).collect();
        assert_eq!(logged, [0, 0]);
        tokio::time::advance(rate.every).await;
        assert_eq!([lines.next(rate), lines.next(rate)], [Some(9_998), None]);
    }
}
