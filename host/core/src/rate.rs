//! Limits how often something may happen: a burst, and then a steady rate.
//!
//! Uses the generic cell rate algorithm (ITU-T I.371). Its whole state is one time: when nothing of the burst would be
//! used any more.
//!
//! ```
//! use pilothouse_core::rate::Rate;
//! use std::time::Duration;
//!
//! let rate = Rate { burst: 2, every: Duration::from_secs(10) };
//! let (now, mut used) = (Duration::from_secs(100), Duration::ZERO);
//! assert_eq!(rate.wait(used, now), Duration::ZERO);
//! used = rate.take(used, now);
//! used = rate.take(used, now);
//! assert_eq!(rate.wait(used, now), Duration::from_secs(10));
//! ```

use std::time::Duration;

/// A burst, and one more each time that `every` has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number that may come at once, after a pause. At least 1.
    pub burst: u32,
    /// Time until one more may come.
    pub every: Duration,
}

impl Rate {
    /// Returns how long to wait until one more may come. `used` is the last result of [`take`](Self::take).
    pub fn wait(&self, used: Duration, now: Duration) -> Duration {
        let room = self.every.saturating_mul(self.burst.saturating_sub(1));
        used.saturating_sub(now).saturating_sub(room)
    }

    /// Takes one, whether or not it may come yet. Returns the new `used`: the time when nothing of the burst is used
    /// any more.
    pub fn take(&self, used: Duration, now: Duration) -> Duration {
        used.max(now).saturating_add(self.every)
    }

    /// Returns how much of the burst is used, rounded up.
    pub fn used(&self, used: Duration, now: Duration) -> u32 {
        let left = used.saturating_sub(now).as_nanos();
        u32::try_from(left.div_ceil(self.every.as_nanos().max(1))).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_stretch_of_time_has_more_than_the_burst_and_its_share(
            burst in 1_u32..20, every in 1_u64..50, steps in prop::collection::vec(0_u64..40, 1..200),
        ) {
            let rate = Rate { burst, every: Duration::from_millis(every) };
            let (mut now, mut used, mut came) = (Duration::from_secs(1), Duration::ZERO, Vec::new());
            for step in steps {
                now += Duration::from_millis(step);
                if rate.wait(used, now).is_zero() {
                    used = rate.take(used, now);
                    came.push(now);
                }
                prop_assert!(rate.used(used, now) <= burst);
            }
            for (at, from) in came.iter().enumerate() {
                for (count, to) in came[at..].iter().enumerate() {
                    let share = (*to - *from).as_millis() / u128::from(every);
                    prop_assert!(count as u128 <= u128::from(burst - 1) + share + 1);
                }
            }
        }

        #[test]
        fn after_the_wait_that_a_rate_asks_for_it_allows_a_use(burst in 1_u32..20, every in 1_u64..50, came in 0_u32..60) {
            let rate = Rate { burst, every: Duration::from_millis(every) };
            let now = Duration::from_secs(1);
            let used = (0..came).fold(Duration::ZERO, |used, _| rate.take(used, now));
            let then = now + rate.wait(used, now);
            prop_assert_eq!(rate.wait(used, then), Duration::ZERO);
            if came >= burst {
                prop_assert!(rate.wait(used, then - Duration::from_nanos(1)) > Duration::ZERO);
            }
        }
    }
}
