//! Wakes every key: after whatever serves the keys has changed, and periodically as a safety net.
//!
//! Each period is up to a tenth shorter or longer, so that controllers that began together drift apart. Keys enter the
//! queue at the priority of a first list, so changes overtake them.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use pilothouse_core::{
    object::Object,
    predicate::Predicate,
    selector::Selector,
    store::{Change, Query},
};
use tokio::sync::watch;
use tracing::debug;

use super::{judging, record::Record, serving::Serving, wakes::Wakes};

/// Keys that are looked at before other tasks have their turn. That takes some tenths of a millisecond, as each object
/// is copied.
const TURN: usize = 64;

/// Wakes every key each time that a period has passed. With the period `None` it waits for another one.
pub(super) async fn run(wakes: Wakes<'_>, mut every: watch::Receiver<Option<Duration>>) {
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
        debug!(plugin = %wakes.id.plugin, controller = &*wakes.id.name, "looking at every key again");
        let serving = wakes.serving();
        wake_cached(wakes, &serving, Some(&serving.spec.for_.when)).await;
    }
}

/// Wakes every key, deleted objects that are still to be reconciled included. Yields now and then.
///
/// If another revision takes over meanwhile, this ends early: that swap calls it again.
pub(super) async fn wake_all(wakes: Wakes<'_>) {
    wake_cached(wakes, &wakes.serving(), None).await;
    for keys in wakes.ledger.gone_keys().chunks(TURN) {
        keys.iter().for_each(|key| wakes.resync(key.clone()));
        tokio::task::yield_now().await;
    }
}

/// Wakes the keys of all cached objects. With a predicate, only those for which a change from the object to itself
/// matters.
async fn wake_cached(wakes: Wakes<'_>, serving: &Arc<Serving>, when: Option<&Predicate>) {
    let all = Selector::default();
    for lease in serving.reconciles.leases() {
        let mut after = None;
        loop {
            // The informer is locked for this page.
            let page = lease.page(&Query { after: after.as_ref(), ..Query::new(&all) }, None, TURN);
            for object in page.items {
                if when.is_none_or(|when| matters(wakes.record, when, &object)) {
                    wakes.resync(object.key().clone());
                }
                // Each evaluation may have taken milliseconds.
                if when.is_some_and(Predicate::may_wait) {
                    tokio::task::yield_now().await;
                }
            }
            let Some(last) = page.next else { break };
            after = Some(last);
            tokio::task::yield_now().await;
            if !Arc::ptr_eq(serving, &wakes.serving()) {
                return;
            }
        }
    }
}

fn matters(record: &Record, when: &Predicate, object: &Arc<Object>) -> bool {
    let change = Change { old: Some(object.clone()), new: Some(object.clone()), missed: false };
    judging::judge(when, &change, record)
}

/// Returns the period, a tenth shorter or longer at most.
fn jittered(period: Duration, random: u64) -> Duration {
    let part = f64::from(u32::try_from(random >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX);
    period.mul_f64(0.9 + 0.2 * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jittered_period_is_within_a_tenth_of_the_period() {
        let period = Duration::from_secs(36_000);
        assert_eq!(jittered(period, 0), Duration::from_secs(32_400));
        assert_eq!(jittered(period, u64::MAX), Duration::from_secs(39_600));
        let random = RandomState::new();
        let periods: Vec<Duration> = (0..100).map(|round: u64| jittered(period, random.hash_one(round))).collect();
        assert!(periods.iter().all(|jittered| jittered.abs_diff(period) <= period / 10));
        assert!(periods.windows(2).any(|pair| pair[0] != pair[1]));
    }
}
