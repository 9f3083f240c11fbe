//! The status of a Deployment: what its ReplicaSets count, and whether a rollout comes on.

use std::time::Duration;

use k8s_openapi::{
    api::apps::v1::{DeploymentStatus, ReplicaSet},
    jiff::Timestamp,
};
use pilothouse_sdk::Object;

use super::{
    conditions::{self, AVAILABLE, COMPLETE, ENOUGH, FAILURE, PROGRESSING, TIMED_OUT, TOO_FEW, UPDATED},
    desired::Desired,
    sets::{self, counted, size},
};

/// What decides the status of a Deployment.
#[derive(Clone, Copy)]
pub(super) struct Observed<'a> {
    pub(super) name: &'a str,
    pub(super) generation: Option<i64>,
    pub(super) desired: &'a Desired,
    pub(super) new: Option<&'a ReplicaSet>,
    pub(super) old: &'a [ReplicaSet],
    /// The counts of the last status, with the conditions so far.
    pub(super) before: &'a DeploymentStatus,
    pub(super) now: Timestamp,
}

impl<'a> Observed<'a> {
    fn sets(&self) -> impl Iterator<Item = &'a ReplicaSet> {
        self.old.iter().chain(self.new)
    }

    /// Returns the status with `Available`, and the other conditions as they are.
    pub(super) fn counted(&self) -> DeploymentStatus {
        let sum = |number: &dyn Fn(&ReplicaSet) -> i32| self.sets().map(number).sum::<i32>();
        let available = sum(&sets::available);
        let updated = self.new.map(|new| counted(new, |status| Some(status.replicas))).unwrap_or_default();
        let mut conditions = self.before.conditions.clone().unwrap_or_default();
        let (status, reason, word) = match available >= self.desired.replicas - self.desired.unavailable() {
            true => ("True", ENOUGH, "has"),
            false => ("False", TOO_FEW, "does not have"),
        };
        let message = format!("Deployment {word} minimum availability.");
        conditions::set(&mut conditions, conditions::new(AVAILABLE, status, reason, message, self.now));
        DeploymentStatus {
            observed_generation: self.generation,
            replicas: unless_zero(sum(&|set| counted(set, |status| Some(status.replicas)))),
            updated_replicas: unless_zero(updated),
            ready_replicas: unless_zero(sum(&|set| counted(set, |status| status.ready_replicas))),
            available_replicas: unless_zero(available),
            // More may be available than should exist.
            unavailable_replicas: unless_zero((sum(&size) - available).max(0)),
            terminating_replicas: self.terminating(),
            collision_count: self.before.collision_count,
            conditions: Some(conditions),
        }
    }

    /// Returns how many Pods are being deleted. `None` while a ReplicaSet does not say.
    fn terminating(&self) -> Option<i32> {
        let seen = self.sets().filter_map(|set| set.status.as_ref());
        let seen = seen.filter(|status| status.observed_generation.is_some_and(|generation| generation > 0));
        seen.map(|status| status.terminating_replicas).sum()
    }

    /// Returns the status of a rollout: `Progressing` says whether it comes on, and `ReplicaFailure` what fails.
    pub(super) fn estimated(&self) -> DeploymentStatus {
        let mut status = self.counted();
        let mut all = status.conditions.take().unwrap_or_default();
        let known = conditions::get(&all, PROGRESSING).cloned();
        let was_complete =
            status.replicas == status.updated_replicas && conditions::has_reason(&all, PROGRESSING, COMPLETE);
        if self.desired.deadline.is_none() {
            conditions::remove(&mut all, PROGRESSING);
        } else if !was_complete {
            let condition = |status: &str, reason: &str, what: &str| {
                conditions::new(PROGRESSING, status, reason, format!("{} {what}.", self.subject()), self.now)
            };
            if is_complete(self.desired, &status) {
                conditions::set(&mut all, condition("True", COMPLETE, "has successfully progressed"));
            } else if self.comes_on(&status) {
                // The time of the last update is the time of the last progress.
                conditions::renew(&mut all, condition("True", UPDATED, "is progressing"));
            } else if known.is_some() && self.is_late(&all) {
                conditions::set(&mut all, condition("False", TIMED_OUT, "has timed out progressing"));
            }
        }
        match self.failure() {
            Some(failure) => conditions::set(&mut all, failure),
            None => conditions::remove(&mut all, FAILURE),
        }
        DeploymentStatus { conditions: Some(all), ..status }
    }

    fn subject(&self) -> String {
        self.new.map_or_else(|| format!("Deployment {:?}", self.name), |new| format!("ReplicaSet {:?}", new.name()))
    }

    /// Returns `true` if there are more new Pods, fewer old ones, or more ready or available ones than in the last
    /// status.
    fn comes_on(&self, status: &DeploymentStatus) -> bool {
        let count = |number: Option<i32>| number.unwrap_or_default();
        let old = |status: &DeploymentStatus| count(status.replicas) - count(status.updated_replicas);
        let before = self.before;
        count(status.updated_replicas) > count(before.updated_replicas)
            || old(status) < old(before)
            || count(status.ready_replicas) > count(before.ready_replicas)
            || count(status.available_replicas) > count(before.available_replicas)
    }

    /// Returns `true` if the last progress is longer ago than the Deployment allows.
    fn is_late(&self, all: &conditions::Conditions) -> bool {
        if conditions::has_reason(all, PROGRESSING, COMPLETE) {
            return false;
        }
        conditions::has_reason(all, PROGRESSING, TIMED_OUT) || self.time_left(all).is_some_and(|left| left.is_zero())
    }

    /// Returns how long until the rollout is late. `None` if it never is.
    fn time_left(&self, all: &conditions::Conditions) -> Option<Duration> {
        let deadline = Duration::from_secs(u64::try_from(self.desired.deadline?).ok()?);
        let since = conditions::get(all, PROGRESSING)?.last_update_time.as_ref()?.0;
        let passed = Duration::try_from(self.now.duration_since(since)).unwrap_or_default();
        Some(deadline.saturating_sub(passed))
    }

    /// Returns when to look whether the rollout is late.
    pub(super) fn check_after(&self, status: &DeploymentStatus) -> Option<Duration> {
        let all = status.conditions.as_ref()?;
        if is_complete(self.desired, status) || conditions::has_reason(all, PROGRESSING, TIMED_OUT) {
            return None;
        }
        // Times are stored in whole seconds.
        Some(self.time_left(all)? + Duration::from_secs(1))
    }

    /// Returns why Pods cannot be created or deleted: first those of the new ReplicaSet.
    fn failure(&self) -> Option<k8s_openapi::api::apps::v1::DeploymentCondition> {
        let failures = self.new.into_iter().chain(self.old).filter_map(|set| set.status.as_ref()?.conditions.as_ref());
        let mut failures = failures.flatten().filter(|condition| condition.type_ == FAILURE);
        failures.next().cloned().map(conditions::of_set)
    }
}

/// Returns `true` if all Pods are new and available, and no old one is left.
pub(super) fn is_complete(desired: &Desired, status: &DeploymentStatus) -> bool {
    [status.updated_replicas, status.replicas, status.available_replicas]
        .iter()
        .all(|count| count.unwrap_or_default() == desired.replicas)
}

/// Kubernetes leaves out numbers that are zero.
fn unless_zero(count: i32) -> Option<i32> {
    Some(count).filter(|count| *count != 0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{DeploymentStatus, ReplicaSet};
    use serde_json::{Value, from_value, json, to_value};

    use super::Observed;
    use crate::deployment::{
        desired::{Desired, Strategy},
        sets::tests::set,
    };

    const DESIRED: Desired = Desired {
        replicas: 4,
        strategy: Strategy::RollingUpdate { surge: 1, unavailable: 1 },
        min_ready_seconds: 0,
        history: None,
        deadline: Some(60),
        paused: false,
    };

    struct Case {
        desired: Desired,
        new: ReplicaSet,
        old: Vec<ReplicaSet>,
        before: Value,
        now: &'static str,
    }

    impl Case {
        fn new(new: ReplicaSet, old: Vec<ReplicaSet>, before: Value) -> Self {
            Self { desired: DESIRED, new, old, before, now: "2026-01-01T00:00:30Z" }
        }

        fn estimated(&self) -> Value {
            let before: DeploymentStatus = from_value(self.before.clone()).expect("a status");
            let observed = Observed {
                name: "web",
                generation: Some(2),
                desired: &self.desired,
                new: Some(&self.new),
                old: &self.old,
                before: &before,
                now: self.now.parse().expect("a time"),
            };
            let status = observed.estimated();
            let mut value = to_value(&status).expect("it is JSON");
            value["checkAfter"] = json!(observed.check_after(&status).map(|after| after.as_secs()));
            value
        }

        /// Returns status, reason, and the time of the last update of `Progressing`.
        fn progress(&self) -> [String; 3] {
            let status = self.estimated();
            let all = status["conditions"].as_array().cloned().unwrap_or_default();
            let found = all.into_iter().find(|condition| condition["type"] == "Progressing").unwrap_or_default();
            ["status", "reason", "lastUpdateTime"].map(|field| found[field].as_str().unwrap_or_default().to_owned())
        }
    }

    fn progressing(status: &str, reason: &str) -> Value {
        let time = "2026-01-01T00:00:00Z";
        json!([{
            "type": "Progressing", "status": status, "reason": reason, "message": "",
            "lastUpdateTime": time, "lastTransitionTime": time,
        }])
    }

    #[test]
    fn the_counts_are_those_of_the_replica_sets() {
        let case = Case::new(set("new", 0, 2, 2, 1), vec![set("old", 1, 3, 3, 2)], json!({"collisionCount": 2}));
        let status = case.estimated();
        let expected = json!({
            "observedGeneration": 2, "replicas": 5, "updatedReplicas": 2, "readyReplicas": 3, "availableReplicas": 3,
            "unavailableReplicas": 2, "terminatingReplicas": 0, "collisionCount": 2,
        });
        for (field, value) in expected.as_object().expect("an object") {
            assert_eq!(&status[field], value, "{field}");
        }
        assert_eq!(status["conditions"][0]["reason"], "MinimumReplicasAvailable");
        let none = Case::new(set("new", 0, 0, 0, 0), vec![], json!({"replicas": 3, "readyReplicas": 3})).estimated();
        assert_eq!(
            (&none["replicas"], &none["readyReplicas"], &none["unavailableReplicas"]),
            (&Value::Null, &Value::Null, &Value::Null)
        );
        assert_eq!(none["conditions"][0]["reason"], "MinimumReplicasUnavailable");
    }

    #[test]
    fn progress_is_told_as_kubernetes_tells_it() {
        let before = |counts: Value, status: &str, reason: &str| {
            let mut before = counts;
            before["conditions"] = progressing(status, reason);
            before
        };
        let (start, now) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:30Z");
        let half = || json!({"replicas": 5, "updatedReplicas": 2, "readyReplicas": 4, "availableReplicas": 4});
        let done = || json!({"replicas": 4, "updatedReplicas": 4, "readyReplicas": 4, "availableReplicas": 4});
        let halfway = || (set("new", 0, 2, 2, 1), vec![set("old", 1, 3, 3, 3)]);
        let complete = || (set("new", 0, 4, 4, 4), vec![set("old", 1, 0, 0, 0)]);
        for (why, sets, before, expected) in [
            (
                "no news",
                halfway(),
                before(half(), "True", "NewReplicaSetCreated"),
                ["True", "NewReplicaSetCreated", start],
            ),
            (
                "a new Pod",
                halfway(),
                before(json!({"replicas": 4, "updatedReplicas": 1}), "True", "ReplicaSetUpdated"),
                ["True", "ReplicaSetUpdated", now],
            ),
            (
                "an old Pod less",
                halfway(),
                before(
                    json!({"replicas": 6, "updatedReplicas": 2, "readyReplicas": 4, "availableReplicas": 4}),
                    "True",
                    "ReplicaSetUpdated",
                ),
                ["True", "ReplicaSetUpdated", now],
            ),
            (
                "all is done",
                complete(),
                before(half(), "True", "ReplicaSetUpdated"),
                ["True", "NewReplicaSetAvailable", now],
            ),
            (
                "all was done",
                complete(),
                before(done(), "True", "NewReplicaSetAvailable"),
                ["True", "NewReplicaSetAvailable", start],
            ),
            (
                "a late success",
                complete(),
                before(half(), "False", "ProgressDeadlineExceeded"),
                ["True", "NewReplicaSetAvailable", now],
            ),
            (
                "late, and goes on",
                halfway(),
                before(json!({}), "False", "ProgressDeadlineExceeded"),
                ["True", "ReplicaSetUpdated", now],
            ),
            (
                "a Pod fails later",
                (set("new", 0, 4, 4, 3), vec![]),
                before(done(), "True", "NewReplicaSetAvailable"),
                ["True", "NewReplicaSetAvailable", start],
            ),
        ] {
            assert_eq!(Case::new(sets.0, sets.1, before).progress(), expected, "{why}");
        }
    }

    #[test]
    fn a_rollout_without_progress_is_late_after_its_deadline() {
        let mut before = json!({"replicas": 5, "updatedReplicas": 2, "readyReplicas": 4, "availableReplicas": 4});
        before["conditions"] = progressing("True", "ReplicaSetUpdated");
        let mut case = Case::new(set("new", 0, 2, 2, 1), vec![set("old", 1, 3, 3, 3)], before);
        assert_eq!(case.estimated()["checkAfter"], 31);
        case.now = "2026-01-01T00:01:00Z";
        assert_eq!(case.progress(), ["False", "ProgressDeadlineExceeded", case.now]);
        assert_eq!(case.estimated()["checkAfter"], Value::Null);
        // Without a deadline, no rollout is late.
        case.desired.deadline = None;
        assert_eq!(case.progress(), ["", "", ""]);
    }

    #[test]
    fn a_failure_of_the_new_replica_set_comes_first() {
        let failing = |mut set: ReplicaSet, message: &str| {
            let failure =
                json!({"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message});
            set.status.get_or_insert_default().conditions = Some(vec![from_value(failure).expect("a condition")]);
            set
        };
        let message = |new: ReplicaSet, old: ReplicaSet| {
            let status = Case::new(new, vec![old], json!({})).estimated();
            let all = status["conditions"].as_array().cloned().unwrap_or_default();
            all.into_iter().find(|c| c["type"] == "ReplicaFailure").map(|c| c["message"].clone())
        };
        let (new, old) = (set("new", 0, 2, 2, 1), set("old", 1, 3, 3, 3));
        assert_eq!(message(new.clone(), old.clone()), None);
        assert_eq!(message(new.clone(), failing(old.clone(), "old")), Some(json!("old")));
        assert_eq!(message(failing(new, "new"), failing(old, "old")), Some(json!("new")));
    }
}
