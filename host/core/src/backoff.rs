//! How long to wait after a failure.
//!
//! Owns the arithmetic of doubling delays. [`Limits`] is for callers that count failures themselves, as the workqueue
//! does per key. [`Backoff`] is for one connection that fails and recovers; its jitter keeps many that fail together
//! from returning together. The driver waits.
//!
//! A delay that returns to its base after any small success never grows against a server that accepts a connection and
//! then breaks it. So [`Backoff`] returns to its base only after a healthy period:
//!
//! ```
//! use pilothouse_core::backoff::{Backoff, RECONNECT};
//! use std::time::Duration;
//!
//! let mut backoff = Backoff::new(RECONNECT, 7);
//! let at = Duration::from_secs;
//! let first = backoff.next(at(0));
//! backoff.healthy(at(10)); // connected,
//! let second = backoff.next(at(20)); // and lost again after 10 s
//! assert!(first < second);
//! backoff.healthy(at(30));
//! let third = backoff.next(at(30 + 120)); // lost after 2 minutes: that was health
//! assert!(third < Duration::from_millis(1600));
//! ```

use std::time::Duration;

/// A delay that doubles from `base` and stays at `cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The delay after the first failure.
    pub base: Duration,
    /// The longest delay.
    pub cap: Duration,
}

impl Limits {
    /// Returns `base` × 2^`failures`, at most `cap`. `failures` counts earlier failures only.
    pub fn delay(&self, failures: u32) -> Duration {
        // Beyond 2^31 any base of a nanosecond or more has passed every cap in use; saturate instead of wrapping.
        let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.cap)
    }
}

/// How a [`Backoff`] behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The delays before jitter.
    pub limits: Limits,
    /// Time without a failure after which the next failure counts as the first.
    pub healthy_after: Duration,
}

/// For requests and watches that fail: the figures of client-go's reflector and of kube-runtime.
pub const RECONNECT: Policy = Policy {
    limits: Limits { base: Duration::from_millis(800), cap: Duration::from_secs(30) },
    healthy_after: Duration::from_secs(120),
};

/// For attempts that take seconds of a core and mostly fail again: with jitter five minutes at last, like a plugin's
/// [quarantine](crate::quarantine).
pub const COSTLY: Policy = Policy {
    limits: Limits { base: Duration::from_millis(800), cap: Duration::from_secs(150) },
    healthy_after: Duration::from_secs(120),
};

/// For a kind that the server does not serve: with jitter from 0.5 to 30 s. The driver ends the wait when a definition
/// appears. A kind that comes and goes within 10 s counts as absent.
pub const ABSENT: Policy = Policy {
    limits: Limits { base: Duration::from_millis(500), cap: Duration::from_secs(15) },
    healthy_after: Duration::from_secs(10),
};

/// The delays of one connection: doubling, with jitter, back to the base only after a healthy period.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: Policy,
    failures: u32,
    healthy_since: Option<Duration>,
    random: Random,
}

impl Backoff {
    /// Creates a backoff without failures. `seed` decides the jitter: give each connection its own.
    pub fn new(policy: Policy, seed: u64) -> Self {
        Self { policy, failures: 0, healthy_since: None, random: Random::new(seed) }
    }

    /// Records that the connection works at `now`. It counts as working until the next failure.
    pub fn healthy(&mut self, now: Duration) {
        self.healthy_since.get_or_insert(now);
    }

    /// Records a failure at `now` and returns how long to wait: from the delay of [`Limits`] to just below its double.
    pub fn next(&mut self, now: Duration) -> Duration {
        let healthy = self.healthy_since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        if healthy >= self.policy.healthy_after {
            self.failures = 0;
        }
        let delay = self.policy.limits.delay(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.random.between(delay, delay.saturating_mul(2))
    }

    /// Returns the failures since the last healthy period, including the latest.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

/// Pseudo-random numbers for jitter: SplitMix64 (Steele, Lea, Flood 2014). Good enough to spread requests, and useless
/// against an adversary.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a duration from `low` to just below `high`; `low` if the range is empty.
    pub(crate) fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let span = high.saturating_sub(low).as_nanos();
        // The high half of a 64 × 64-bit product is below `span` and evenly distributed. Spans are capped at 584 years.
        let span = u128::from(u64::try_from(span).unwrap_or(u64::MAX));
        let offset = (u128::from(self.draw()) * span) >> 64;
        low.saturating_add(Duration::from_nanos(u64::try_from(offset).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the delays of `count` consecutive failures.
    fn failing(backoff: &mut Backoff, count: usize) -> Vec<Duration> {
        (0..count).map(|_| backoff.next(Duration::ZERO)).collect()
    }

    #[test]
    fn delays_double_up_to_the_cap() {
        let limits = Limits { base: Duration::from_millis(5), cap: Duration::from_secs(1000) };
        let millis: Vec<u128> = [0, 1, 2, 10, 17, 18, 31, 32, u32::MAX].map(|n| limits.delay(n).as_millis()).into();
        assert_eq!(millis, [5, 10, 20, 5120, 655_360, 1_000_000, 1_000_000, 1_000_000, 1_000_000]);
    }

    #[test]
    fn failures_without_health_wait_ever_longer_from_800_ms_to_30_s() {
        let delays = failing(&mut Backoff::new(RECONNECT, 1), 8);
        let bases = [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000].map(Duration::from_millis);
        for (delay, base) in delays.iter().zip(bases) {
            assert!((base..base * 2).contains(delay), "{delay:?} is not between {base:?} and its double");
        }
    }

    #[test]
    fn a_success_is_not_health() {
        let mut backoff = Backoff::new(RECONNECT, 1);
        let mut now = Duration::ZERO;
        for _ in 0..10 {
            backoff.healthy(now);
            now += 119 * SECOND;
            backoff.healthy(now);
            backoff.next(now);
        }
        assert_eq!(backoff.failures(), 10);
    }

    #[test]
    fn two_minutes_of_health_start_again_at_the_base() {
        let mut backoff = Backoff::new(RECONNECT, 1);
        failing(&mut backoff, 10);
        backoff.healthy(SECOND);
        backoff.healthy(100 * SECOND);
        let delay = backoff.next(121 * SECOND);
        assert!(delay < Duration::from_millis(1600), "{delay:?}");
        assert_eq!(backoff.failures(), 1);
    }

    #[test]
    fn health_is_not_added_up_over_failures() {
        let mut backoff = Backoff::new(RECONNECT, 1);
        backoff.healthy(Duration::ZERO);
        backoff.next(100 * SECOND);
        backoff.healthy(100 * SECOND);
        backoff.next(200 * SECOND);
        assert_eq!(backoff.failures(), 2);
    }

    #[test]
    fn seeds_spread_the_first_delay_over_its_range() {
        let mut tenths = [0; 10];
        for seed in 0..1000 {
            let over = Backoff::new(RECONNECT, seed).next(Duration::ZERO) - Duration::from_millis(800);
            tenths[over.as_millis() as usize / 80] += 1;
        }
        assert!(tenths.iter().all(|&n| n > 60), "{tenths:?}");
    }

    proptest! {
        #[test]
        fn random_durations_stay_in_range(seed: u64, low in 0..u64::MAX / 4, span in 0..u64::MAX / 4) {
            let (low, high) = (Duration::from_nanos(low), Duration::from_nanos(low + span));
            let drawn = Random::new(seed).between(low, high);
            prop_assert!(drawn >= low && (drawn < high || low == high));
        }
    }
}
