//! Decides when a failing plugin is quarantined, and for how long.
//!
//! Judges one plugin's calls by the order in which they began and by their results. The driver holds keys back and
//! informs people.
//!
//! ```text
//!          10 consecutive failed calls              the delay is over
//!   free ─────────────────────────────────────► held ────────────────► tried
//!    ▲                                            ▲                      │ │
//!    │                                            └──── 10 again ────────┘ │
//!    └──────────────────────────── a call succeeds ────────────────────────┘
//! ```
//!
//! # Guarantees
//! - The result of a call that began before a delay neither lengthens nor ends the delay.
//! - Between two delays, as many calls are made as before the first. If some objects make the plugin fail, the others
//!   are soon found, and one of them frees it. If one failed call sufficed for the next delay, a few bad objects at the
//!   head of the queue would delay the good ones for hours.
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

/// Consecutive failed calls that quarantine a plugin. Over one key alone they take 2.5 s by its own backoff: longer
/// than a bad moment of the machine.
pub const IN_A_ROW: u32 = 10;

/// Delays of a quarantine, from barely noticeable to negligible cost. A new revision, or an administrator, ends it at
/// once.
pub const DELAYS: Limits = Limits { base: Duration::from_secs(1), cap: Duration::from_secs(300) };

/// Delays are longer by up to `1 / JITTER`, so that plugins that fail together are not tried together.
const JITTER: u32 = 10;

/// A call under way. Its result counts by when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call(u64);

/// One plugin's calls.
#[derive(Clone, Debug)]
pub struct Quarantine {
    /// Consecutive failed calls since the plugin was free or a delay was over.
    row: u32,
    /// Consecutive delays.
    delays: u32,
    /// The end of the last delay; `None` if the plugin is free.
    until: Option<Duration>,
    /// Number of delays and releases. A call counts in the round in which it began.
    round: u64,
    random: Random,
}

impl Quarantine {
    /// Creates the state of a free plugin. `seed` decides the jitter: give each plugin its own.
    pub fn new(seed: u64) -> Self {
        Self { row: 0, delays: 0, until: None, round: 1, random: Random::new(seed) }
    }

    /// Records that a call begins.
    pub fn begin(&self, now: Duration) -> Call {
        // A call whose key was handed out just before the delay belongs to the round before.
        Call(if self.held(now).is_some() { self.round - 1 } else { self.round })
    }

    /// Records a failed call. Returns the end of the quarantine if the call started one.
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

    /// Records a call that succeeded, or that the plugin itself rejected. Returns `true` if this ended a quarantine.
    pub fn succeeded(&mut self, call: Call) -> bool {
        call.0 == self.round && self.free()
    }

    /// Ends a quarantine, and ignores the results of calls under way. Returns `true` if there was one.
    pub fn release(&mut self) -> bool {
        self.round += 1;
        self.free()
    }

    /// Returns until when no key may be handed out; `None` if keys may be.
    pub fn held(&self, now: Duration) -> Option<Duration> {
        self.until.filter(|until| now < *until)
    }

    /// Returns `true` if no call has succeeded since the last delay began.
    pub fn is_quarantined(&self) -> bool {
        self.until.is_some()
    }

    /// Returns the consecutive delays without a success.
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
