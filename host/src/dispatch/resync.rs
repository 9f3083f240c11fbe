//! The looks at every key that nothing asked for: a net under all that is missed for whatever reason.
//!
//! Each look comes a tenth of the period sooner or later than the last, so that controllers that began together do not go on
//! together. Keys enter the queue at the priority of a first list: changes overtake them.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Weak,
    time::Duration,
};

use tokio::sync::watch;
use tracing::debug;

use super::controller::Controller;

/// Looks at every key each time a period has passed; none: never. Ends with the controller.
pub(super) async fn run(controller: Weak<Controller>, mut every: watch::Receiver<Option<Duration>>) {
    let random = RandomState::new();
    for round in 0_u64.. {
        let period = *every.borrow_and_update();
        let passed = async {
            match period {
                Some(period) => tokio::time::sleep(jittered(period, random.hash_one(round))).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = passed => {}
            // Another period begins anew.
            changed = every.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        }
        let Some(controller) = controller.upgrade() else { return };
        debug!(plugin = %controller.plugin(), controller = controller.name(), "looking at every key again");
        controller.resync().await;
    }
}

/// The period, give or take a tenth.
fn jittered(period: Duration, random: u64) -> Duration {
    let part = f64::from(u32::try_from(random >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX);
    period.mul_f64(0.9 + 0.2 * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_comes_within_a_tenth_of_its_time() {
        let period = Duration::from_secs(36_000);
        assert_eq!(jittered(period, 0), Duration::from_secs(32_400));
        assert_eq!(jittered(period, u64::MAX), Duration::from_secs(39_600));
        let random = RandomState::new();
        let looks: Vec<Duration> = (0..100).map(|round: u64| jittered(period, random.hash_one(round))).collect();
        assert!(looks.iter().all(|look| look.abs_diff(period) <= period / 10));
        assert!(looks.windows(2).any(|pair| pair[0] != pair[1]));
    }
}
