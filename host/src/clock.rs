//! The time of day: this machine's, or one that a test moves.

use jiff::Timestamp;
use tokio::time::Instant;

/// Tells the time of day.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Clock {
    /// This machine's time.
    #[default]
    System,
    /// Passes with the clock of the runtime, which a test may pause and move.
    Started {
        /// The time at `at`.
        time: Timestamp,
        /// When the clock was started.
        at: Instant,
    },
}

impl Clock {
    /// Creates a clock that shows `time` now.
    pub(crate) fn starting(time: Timestamp) -> Self {
        Self::Started { time, at: Instant::now() }
    }

    /// Returns the time.
    pub(crate) fn now(self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            // Not beyond the year 9999.
            Self::Started { time, at } => time.checked_add(at.elapsed()).unwrap_or(Timestamp::MAX),
        }
    }
}
