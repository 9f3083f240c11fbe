//! Decides whether a plugin may begin another request.
//!
//! It may not while this process may not act ([`Acting`]), and never again once the plugin is removed or disabled, or
//! the host stops. One outcome may be ten thousand children, and a server may take a second for each. So every write
//! asks the fence right before it is sent. A request that is under way ends, so that its answer is known.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use crate::acting::Acting;

/// How long a plugin that was removed or disabled may begin writes. A reconcile that writes a few children and a status
/// ends well within it, and leaves no object half done. A plugin that does harm is stopped by it before anybody could
/// do more.
pub const WITHDRAWN_AFTER: Duration = Duration::from_secs(1);

/// The fence of a plugin that goes on.
const OPEN: u64 = u64::MAX;

/// The fence of one plugin, shared by all that writes for it. Once somebody has closed it, it never opens again.
#[derive(Debug)]
pub struct Fence {
    acting: Acting,
    origin: Instant,
    /// Milliseconds after `origin`, or [`OPEN`].
    closes: AtomicU64,
}

/// Why the fence is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// Somebody closed it, for good.
    #[error("not written: the plugin was removed or disabled, or the host stops; the rest is left to the next start")]
    Withdrawn,
    /// This process may not act now.
    #[error("not written: this process may not act now; it is tried again when it may")]
    NotActing,
}

impl Fence {
    /// Creates a fence that is open while `acting` is on.
    pub fn new(acting: Acting) -> Self {
        Self { acting, origin: Instant::now(), closes: AtomicU64::new(OPEN) }
    }

    /// Returns the switch of the plugin.
    pub fn acting(&self) -> &Acting {
        &self.acting
    }

    /// Closes the fence after this time, if it does not close before.
    pub fn close_after(&self, grace: Duration) {
        let closes = u64::try_from((self.origin.elapsed() + grace).as_millis()).unwrap_or(OPEN);
        self.closes.fetch_min(closes, Ordering::Release);
    }

    /// Passes while the fence is open.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn check(&self) -> Result<(), Closed> {
        let closes = self.closes.load(Ordering::Acquire);
        if closes != OPEN && self.origin.elapsed().as_millis() >= u128::from(closes) {
            return Err(Closed::Withdrawn);
        }
        if self.acting.is_allowed() { Ok(()) } else { Err(Closed::NotActing) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_fence_closes_at_the_earliest_time_and_stays_closed() {
        let fence = Fence::new(Acting::new(true));
        tokio::time::advance(Duration::from_secs(1_000)).await;
        assert_eq!(fence.check(), Ok(()));
        fence.close_after(Duration::from_secs(2));
        fence.close_after(Duration::from_secs(30));
        tokio::time::advance(Duration::from_millis(1_999)).await;
        assert_eq!(fence.check(), Ok(()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(fence.check(), Err(Closed::Withdrawn));
        fence.close_after(Duration::from_secs(30));
        assert_eq!(fence.check(), Err(Closed::Withdrawn));
        let fence = Fence::new(Acting::new(true));
        fence.close_after(Duration::ZERO);
        assert_eq!(fence.check(), Err(Closed::Withdrawn));
    }

    #[test]
    fn a_fence_is_closed_while_this_process_may_not_act() {
        let acting = Acting::new(false);
        let fence = Fence::new(acting.clone());
        assert_eq!(fence.check(), Err(Closed::NotActing));
        acting.set(true);
        assert_eq!(fence.check(), Ok(()));
        // One that is withdrawn stays so, whether the process may act or not.
        fence.close_after(Duration::ZERO);
        acting.set(false);
        assert_eq!(fence.check(), Err(Closed::Withdrawn));
    }
}
