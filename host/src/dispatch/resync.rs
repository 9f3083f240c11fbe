//! Looks at every key: when whatever serves them has changed, and now and then though nothing asked for it, as a net under all that is
//! missed for whatever reason.
//!
//! Each of the latter comes a tenth of the period sooner or later than the last, so that controllers that began together do not go on
//! together. Keys enter the queue at the priority of a first list: changes overtake them.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, Weak},
    time::Duration,
};

use pilothouse_core::{
    key::Key,
    object::Object,
    predicate::Predicate,
    selector::Selector,
    store::{Change, Query},
    workqueue::INITIAL,
};
use tokio::sync::watch;
use tracing::debug;

use super::{
    controller::{Controller, Serving},
    judging,
    queue::Cause,
};

/// So many keys are looked at before others have their turn: in some tenths of a millisecond, though each object is copied.
const TURN: usize = 64;

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
        look_at_those_that_matter(&controller).await;
    }
}

/// Looks at every key again, after whatever changed; those that are gone and still to be reconciled too. Gives way now and then. Where another
/// revision takes the controller over meanwhile, this is left to the look that comes with it.
pub(super) async fn look_at_each(controller: &Controller) {
    look_in_turns(controller, &controller.serving(), None).await;
    for keys in controller.gone_keys().chunks(TURN) {
        keys.iter().for_each(|key| look_at(controller, key.clone()));
        tokio::task::yield_now().await;
    }
}

fn look_at(controller: &Controller, key: Key) {
    controller.queue().add(key, INITIAL, || Cause::Resync);
}

/// Looks again at every key for which a change from its object to itself matters, after whatever changed. Gives way now and then.
async fn look_at_those_that_matter(controller: &Controller) {
    let serving = controller.serving();
    look_in_turns(controller, &serving, Some(&serving.spec.for_.when)).await;
}

/// `when`: only keys for which a change from its object to itself matters.
async fn look_in_turns(controller: &Controller, serving: &Arc<Serving>, when: Option<&Predicate>) {
    let all = Selector::default();
    for lease in serving.reconciles.leases() {
        let mut after = None;
        loop {
            // The informer stands still meanwhile.
            let page = lease.page(&Query { after: after.as_ref(), ..Query::new(&all) }, None, TURN);
            for object in page.items {
                if when.is_none_or(|when| matters(controller, when, &object)) {
                    look_at(controller, object.key().clone());
                }
                // Each may have taken milliseconds.
                if when.is_some_and(Predicate::may_wait) {
                    tokio::task::yield_now().await;
                }
            }
            let Some(last) = page.next else { break };
            after = Some(last);
            tokio::task::yield_now().await;
            if !Arc::ptr_eq(serving, &controller.serving()) {
                return;
            }
        }
    }
}

fn matters(controller: &Controller, when: &Predicate, object: &Arc<Object>) -> bool {
    let change = Change { old: Some(object.clone()), new: Some(object.clone()), missed: false };
    judging::judge(when, &change, controller.record())
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
