//! Whether a plugin may begin another write.
//!
//! One outcome may be ten thousand children, and a server may take a second for each. A plugin that is removed or disabled, and a host that
//! stops, must not go on for so long: every write asks the fence right before it is sent. Once the fence is closed no write begins; what is
//! under way ends, so that its answer is known.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// How long a plugin that was removed or disabled may begin writes. A reconcile that writes a few children and a status ends well within it,
/// and leaves no object half done. A plugin that does harm is stopped by it before anybody could do more.
pub const WITHDRAWN_AFTER: Duration = Duration::from_secs(1);

/// The fence of a plugin that goes on.
const OPEN: u64 = u64::MAX;

/// One for each plugin, shared by all that writes for it. It is open until somebody closes it, and never opens again.
#[derive(Debug)]
pub struct Fence {
    origin: Instant,
    /// Milliseconds after `origin`, or [`OPEN`].
    closes: AtomicU64,
}

/// The fence is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not written: the plugin was removed or disabled, or the host stops; the rest is left to the next start")]
pub struct Closed;

impl Fence {
    /// One that is open.
    pub fn open() -> Self {
        Self { origin: Instant::now(), closes: AtomicU64::new(OPEN) }
    }

    /// Closes it after this time, if it does not close before.
    pub fn close_after(&self, grace: Duration) {
        let closes = u64::try_from((self.origin.elapsed() + grace).as_millis()).unwrap_or(OPEN);
        self.closes.fetch_min(closes, Ordering::Release);
    }

    /// Passes while it is open.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn check(&self) -> Result<(), Closed> {
        let closes = self.closes.load(Ordering::Acquire);
        if closes == OPEN || self.origin.elapsed().as_millis() < u128::from(closes) { Ok(()) } else { Err(Closed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_fence_closes_at_the_earliest_time_and_stays_closed() {
        let fence = Fence::open();
        tokio::time::advance(Duration::from_secs(1_000)).await;
        assert_eq!(fence.check(), Ok(()));
        fence.close_after(Duration::from_secs(2));
        fence.close_after(Duration::from_secs(30));
        tokio::time::advance(Duration::from_millis(1_999)).await;
        assert_eq!(fence.check(), Ok(()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(fence.check(), Err(Closed));
        fence.close_after(Duration::from_secs(30));
        assert_eq!(fence.check(), Err(Closed));
        let fence = Fence::open();
        fence.close_after(Duration::ZERO);
        assert_eq!(fence.check(), Err(Closed));
    }
}
