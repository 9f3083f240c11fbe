//! When a plugin whose calls come to nothing is left alone, and for how long.
//!
//! Owns the judgement over one plugin's calls: in what order they began, and how they ended. Holding keys back, and telling people, is
//! for the driver.
//!
//! ```text
//!          10 calls in a row come to nothing         the delay is over
//!   free ─────────────────────────────────────► held ────────────────► tried
//!    ▲                                            ▲                      │ │
//!    │                                            └── 10 in a row again ─┘ │
//!    └──────────────────────────── a call succeeds ────────────────────────┘
//! ```
//!
//! # Guarantees
//! - Calls that had begun before a delay did say nothing about it, however they end: they neither lengthen nor end it.
//! - Between two delays as many calls are made as it took to begin: among some objects that the plugin cannot stand those that it can
//!   are soon found, and one of them frees it. If one bad call were enough for the next delay, a few bad objects at the head of the
//!   queue would keep the good ones behind them waiting for hours.
//!
//! ```
//! use pilothouse_core::quarantine::{Quarantine, IN_A_ROW};
//! use std::time::Duration;
//!
//! let mut plugin = Quarantine::new(7);
//! let now = Duration::ZERO;
//! for failed in 1..IN_A_ROW {
//!     let call = plugin.begin(now);
//!     assert_eq!(plugin.failed(now, call), None, "{failed}");
//! }
//! let call = plugin.begin(now);
//! let until = plugin.failed(now, call).expect("that was the last straw");
//! assert_eq!(plugin.held(now), Some(until));
//! let call = plugin.begin(until);
//! assert!(plugin.succeeded(call));
//! assert!(!plugin.is_quarantined());
//! ```

use std::time::Duration;

use crate::backoff::{Limits, Random};

/// So many calls in a row that come to nothing. Over one key alone they take 2.5 s by its own backoff: longer than a bad moment of the
/// machine.
pub const IN_A_ROW: u32 = 10;

/// From what nobody notices to what keeps a broken plugin from costing anything: with a new revision, or by hand, it ends at once.
pub const DELAYS: Limits = Limits { base: Duration::from_secs(1), cap: Duration::from_secs(300) };

/// Delays are up to this part longer, so that plugins which fail together are not tried together.
const JITTER: u32 = 10;

/// A call under way: what its end says depends on when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call(u64);

/// One plugin's calls.
#[derive(Clone, Debug)]
pub struct Quarantine {
    /// Calls in a row that came to nothing, since it was free or a delay was over.
    row: u32,
    /// Delays in a row.
    delays: u32,
    /// Until when it is left alone, or was last. None: it is free.
    until: Option<Duration>,
    /// Delays and releases ever: a call counts in the round in which it began.
    round: u64,
    random: Random,
}

impl Quarantine {
    /// A free one. `seed` decides the jitter: give each plugin its own.
    pub fn new(seed: u64) -> Self {
        Self { row: 0, delays: 0, until: None, round: 1, random: Random::new(seed) }
    }

    /// A call begins.
    pub fn begin(&self, now: Duration) -> Call {
        // One whose key was handed out just before the delay began belongs to the time before it.
        Call(if self.held(now).is_some() { self.round - 1 } else { self.round })
    }

    /// A call came to nothing. If the plugin is to be left alone from now on: until when.
    pub fn failed(&mut self, now: Duration, call: Call) -> Option<Duration> {
        if call.0 != self.round {
            return None;
        }
        self.row += 1;
        if self.row < IN_A_ROW {
            return None;
        }
        let delay = DELAYS.delay(self.delays);
        let until = now.saturating_add(self.random.between(delay, delay + delay / JITTER));
        self.row = 0;
        self.delays = self.delays.saturating_add(1);
        self.until = Some(until);
        self.round += 1;
        Some(until)
    }

    /// A call did what it was made for, or the plugin itself said why not. True: it was quarantined, and is free.
    pub fn succeeded(&mut self, call: Call) -> bool {
        call.0 == self.round && self.free()
    }

    /// Forgets all, and what calls under way will say. True: it was quarantined.
    pub fn release(&mut self) -> bool {
        self.round += 1;
        self.free()
    }

    /// Until when no key is to be handed out; none: they are.
    pub fn held(&self, now: Duration) -> Option<Duration> {
        self.until.filter(|until| now < *until)
    }

    /// It has not succeeded since it was last left alone.
    pub fn is_quarantined(&self) -> bool {
        self.until.is_some()
    }

    /// Delays without a success in between.
    pub fn delays(&self) -> u32 {
        self.delays
    }

    fn free(&mut self) -> bool {
        self.row = 0;
        self.delays = 0;
        self.until.take().is_some()
    }
}

#[cfg(test)]
mod tests;
