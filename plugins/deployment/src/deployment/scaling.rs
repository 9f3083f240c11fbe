//! Scales a Deployment that is not rolling out, or that is scaled while it does.

use std::cmp::Reverse;

use k8s_openapi::api::apps::v1::ReplicaSet;

use super::{
    desired::{Desired, Strategy},
    sets::{self, DESIRED, MOST, by_age, is_active, size},
};

/// Changes the size of a ReplicaSet, and records the Deployment's numbers with it. Returns `true` if the size was
/// another.
pub(super) fn resize(set: &mut ReplicaSet, to: i32, desired: &Desired) -> bool {
    let from = size(set);
    sets::set_size(set, to);
    record(set, desired);
    from != to
}

/// Records the Deployment's numbers in a ReplicaSet.
pub(super) fn record(set: &mut ReplicaSet, desired: &Desired) {
    sets::annotate(set, DESIRED, &desired.replicas);
    sets::annotate(set, MOST, &desired.most());
}

/// Returns `true` if the Deployment was scaled since its ReplicaSets were.
pub(super) fn is_scaled<'a>(desired: &Desired, sets: impl Iterator<Item = &'a ReplicaSet>) -> bool {
    let mut recorded = sets.filter(|set| is_active(set)).filter_map(|set| sets::number(set, DESIRED));
    recorded.any(|recorded| recorded != desired.replicas)
}

/// Gives the ReplicaSets the sizes that fit the Deployment's replicas, without rolling out further.
///
/// A failing template must not gain ground because somebody scales. So a surplus is shared in proportion to the sizes.
/// `pods` is how many the Deployment has. Afterwards it [is not scaled](is_scaled) any more, and the rollout goes on.
pub(super) fn scale(desired: &Desired, new: Option<&mut ReplicaSet>, old: &mut [ReplicaSet], pods: i32) {
    let is_saturated = new.as_ref().is_some_and(|new| is_saturated(desired, new));
    let active = new.iter().filter(|new| is_active(new)).count() + old.iter().filter(|set| is_active(set)).count();
    if active <= 1 {
        if let Some(only) = active_or_latest(new, old) {
            resize(only, desired.replicas, desired);
        }
    } else if is_saturated {
        for set in old.iter_mut().filter(|set| is_active(set)) {
            resize(set, 0, desired);
        }
    } else if matches!(desired.strategy, Strategy::RollingUpdate { .. }) {
        share(desired, new.into_iter().chain(old).filter(|set| is_active(set)).collect(), pods);
    } else {
        // The next step ends all of them, whatever their sizes.
        new.into_iter().chain(old).filter(|set| is_active(set)).for_each(|set| record(set, desired));
    }
}

/// Returns `true` if the new ReplicaSet has all replicas, knows it, and all are available.
fn is_saturated(desired: &Desired, new: &ReplicaSet) -> bool {
    let all = desired.replicas;
    size(new) == all && sets::number(new, DESIRED) == Some(all) && sets::available(new) == all
}

/// Returns the only active ReplicaSet. If none is, returns the new one, or else the youngest.
fn active_or_latest<'a>(new: Option<&'a mut ReplicaSet>, old: &'a mut [ReplicaSet]) -> Option<&'a mut ReplicaSet> {
    if old.iter().any(is_active) {
        return old.iter_mut().find(|set| is_active(set));
    }
    new.or_else(|| old.iter_mut().max_by(|a, b| by_age(a, b)))
}

/// Shares what is to be added or removed among the active ReplicaSets, in proportion to their sizes.
fn share(desired: &Desired, mut sets: Vec<&mut ReplicaSet>, pods: i32) {
    let allowed = if desired.replicas > 0 { desired.most() } else { 0 };
    let difference = allowed - sets.iter().map(|set| size(set)).sum::<i32>();
    // The largest first. Among equals, the youngest grows first, and the oldest shrinks first.
    sets.sort_by(|a, b| {
        let age = if difference > 0 { by_age(b, a) } else { by_age(a, b) };
        Reverse(size(a)).cmp(&Reverse(size(b))).then(age)
    });
    let mut left = difference;
    let mut sizes = Vec::new();
    for set in &sets {
        let part = part(desired, set, pods);
        let part = if difference > 0 { part.min(left) } else { part.max(left) };
        left -= part;
        sizes.push(size(set) + part);
    }
    // What rounding leaves goes to the largest.
    if let Some(largest) = sizes.first_mut() {
        *largest = (*largest + left).max(0);
    }
    for (set, size) in sets.into_iter().zip(sizes) {
        resize(set, size, desired);
    }
}

/// Returns how much a ReplicaSet grows if it keeps its part of the Deployment.
fn part(desired: &Desired, set: &ReplicaSet, pods: i32) -> i32 {
    let size = size(set);
    if desired.replicas == 0 {
        return -size;
    }
    let before = sets::number(set, MOST).filter(|most| *most > 0).unwrap_or(pods);
    if before == 0 {
        return 0;
    }
    let scaled = (f64::from(size) * f64::from(desired.most()) / f64::from(before)).round();
    // The cast of a whole number beyond the bounds of an integer gives the bound.
    scaled as i32 - size
}

#[cfg(test)]
mod tests {
    use super::{is_scaled, record, scale, share, size};
    use crate::deployment::{
        desired::{Desired, Strategy},
        sets::tests::set,
    };

    fn rolling(replicas: i32, surge: i32, unavailable: i32) -> Desired {
        let strategy = Strategy::RollingUpdate { surge, unavailable };
        Desired { replicas, strategy, min_ready_seconds: 0, history: None, deadline: None, paused: false }
    }

    /// Scales ReplicaSets of these sizes, the newest first, from one number of replicas to another.
    fn shared(from: Desired, to: Desired, sizes: &[i32]) -> Vec<i32> {
        let mut sets: Vec<_> =
            (0..).zip(sizes).map(|(age, size)| set(&age.to_string(), age, *size, *size, *size)).collect();
        for set in &mut sets {
            record(set, &from);
        }
        share(&to, sets.iter_mut().collect(), sizes.iter().sum());
        sets.iter().map(size).collect()
    }

    #[test]
    fn a_surplus_is_shared_in_proportion() {
        for (from, to, before, after) in [
            (rolling(10, 0, 1), rolling(12, 0, 1), vec![10], vec![12]),
            (rolling(10, 0, 1), rolling(5, 0, 1), vec![10], vec![5]),
            (rolling(10, 0, 1), rolling(20, 0, 1), vec![5, 5], vec![10, 10]),
            (rolling(10, 0, 1), rolling(5, 0, 1), vec![5, 5], vec![3, 2]),
            (rolling(10, 0, 1), rolling(5, 0, 1), vec![8, 2], vec![4, 1]),
            (rolling(10, 0, 1), rolling(0, 0, 1), vec![8, 2], vec![0, 0]),
            // As in the e2e test of Kubernetes: 10 replicas with a surge of 3 are scaled to 30 when 5 and 8 are there.
            (rolling(10, 3, 2), rolling(30, 3, 2), vec![5, 8], vec![13, 20]),
            // And back.
            (rolling(30, 3, 2), rolling(10, 3, 2), vec![13, 20], vec![5, 8]),
            // Nothing to share.
            (rolling(10, 0, 1), rolling(10, 0, 1), vec![6, 4], vec![6, 4]),
        ] {
            assert_eq!(shared(from, to, &before), after, "{before:?} from {from:?} to {to:?}");
        }
    }

    #[test]
    fn without_the_annotation_the_pods_are_the_measure() {
        let mut sets = [set("a", 0, 4, 4, 4), set("b", 1, 4, 4, 4)];
        share(&rolling(16, 0, 1), sets.iter_mut().collect(), 8);
        assert_eq!(sets.each_ref().map(size), [8, 8]);
    }

    #[test]
    fn one_active_replica_set_or_else_the_latest_gets_all() {
        for (new, old, expected) in [
            (Some(4), vec![0, 0], (Some(7), vec![0, 0])),
            (Some(0), vec![0, 3], (Some(0), vec![0, 7])),
            (Some(0), vec![0, 0], (Some(7), vec![0, 0])),
            (None, vec![0, 0], (None, vec![7, 0])),
        ] {
            let mut new = new.map(|size| set("new", 0, size, size, size));
            let mut old: Vec<_> =
                (1..).zip(&old).map(|(age, size)| set(&age.to_string(), age, *size, *size, *size)).collect();
            scale(&rolling(7, 1, 1), new.as_mut(), &mut old, 0);
            assert_eq!((new.as_ref().map(size), old.iter().map(size).collect::<Vec<_>>()), expected);
        }
    }

    #[test]
    fn old_replica_sets_end_when_the_new_one_has_all() {
        let desired = rolling(4, 1, 1);
        let (mut new, mut old) = (set("new", 0, 4, 4, 4), vec![set("old", 1, 2, 2, 2)]);
        record(&mut new, &desired);
        scale(&desired, Some(&mut new), &mut old, 6);
        assert_eq!((size(&new), size(&old[0])), (4, 0));
    }

    #[test]
    fn scaling_ends_with_every_strategy_and_any_sizes() {
        let rolls = Strategy::RollingUpdate { surge: 1, unavailable: 1 };
        for (strategy, new, old, replicas) in [Strategy::Recreate, rolls].into_iter().flat_map(|strategy| {
            let sizes = [None, Some(0), Some(1), Some(4)];
            sizes.into_iter().flat_map(move |new| {
                let old = [[0, 0], [2, 0], [2, 1], [5, 5]];
                old.into_iter().flat_map(move |old| [0, 1, 4, 9].map(|replicas| (strategy, new, old, replicas)))
            })
        }) {
            let desired = |replicas| Desired { strategy, ..rolling(replicas, 1, 1) };
            let recorded = |age: u32, size| {
                let mut set = set(&age.to_string(), age, size, size, size);
                record(&mut set, &desired(3));
                set
            };
            let mut set_of_template = new.map(|size| recorded(3, size));
            let mut others = [recorded(1, old[0]), recorded(2, old[1])];
            scale(&desired(replicas), set_of_template.as_mut(), &mut others, 3);
            let scaled = is_scaled(&desired(replicas), others.iter().chain(&set_of_template));
            assert!(!scaled, "{strategy:?}: {new:?} and {old:?} to {replicas}");
        }
    }

    #[test]
    fn a_deployment_is_scaled_if_an_active_replica_set_says_otherwise() {
        let (mut active, mut idle) = (set("a", 0, 1, 1, 1), set("b", 1, 0, 0, 0));
        record(&mut active, &rolling(4, 1, 1));
        record(&mut idle, &rolling(9, 1, 1));
        let sets = [active, idle, set("none", 2, 3, 3, 3)];
        assert!(!is_scaled(&rolling(4, 1, 1), sets.iter()));
        assert!(is_scaled(&rolling(5, 1, 1), sets.iter()));
    }
}
