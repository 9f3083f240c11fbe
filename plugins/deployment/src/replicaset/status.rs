//! The status of a ReplicaSet.

use k8s_openapi::{
    api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};

use super::pods::Pod;

const FAILURE: &str = "ReplicaFailure";

/// A ReplicaSet and its Pods.
pub(super) struct Counted<'a> {
    pub(super) set: &'a ReplicaSet,
    pub(super) spec: &'a ReplicaSetSpec,
    pub(super) active: &'a [Pod],
    pub(super) terminating: usize,
}

impl Counted<'_> {
    /// Returns the status. `failure` says why Pods could not be created or deleted.
    pub(super) fn status(&self, failure: Option<String>, now: Timestamp) -> ReplicaSetStatus {
        let least = self.spec.min_ready_seconds.unwrap_or_default();
        let labels = self.spec.template.as_ref().and_then(|template| template.metadata.as_ref()?.labels.clone());
        let labels = labels.unwrap_or_default();
        let is_available = |pod: &Pod| pod.available_in(least, now).is_some_and(|left| left.is_zero());
        let count = |counts: &dyn Fn(&Pod) -> bool| self.active.iter().filter(|pod| counts(pod)).count();
        ReplicaSetStatus {
            replicas: number(self.active.len()),
            fully_labeled_replicas: unless_zero(count(&|pod| pod.has_labels(&labels))),
            ready_replicas: unless_zero(count(&Pod::is_ready)),
            available_replicas: unless_zero(count(&is_available)),
            terminating_replicas: Some(number(self.terminating)),
            observed_generation: self.set.metadata.generation,
            conditions: self.conditions(failure, now),
        }
    }

    fn conditions(&self, failure: Option<String>, now: Timestamp) -> Option<Vec<ReplicaSetCondition>> {
        let known = self.set.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let (failures, mut conditions): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|condition| condition.type_ == FAILURE);
        let wanted = usize::try_from(self.spec.replicas.unwrap_or(1)).unwrap_or_default();
        // The first failure stays until there is none.
        conditions.extend(failure.map(|message| {
            failures.into_iter().next().unwrap_or_else(|| ReplicaSetCondition {
                type_: FAILURE.to_owned(),
                status: "True".to_owned(),
                reason: Some(if self.active.len() < wanted { "FailedCreate" } else { "FailedDelete" }.to_owned()),
                message: Some(message),
                last_transition_time: Some(Time(now)),
            })
        }));
        (!conditions.is_empty()).then_some(conditions)
    }
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Kubernetes leaves out such numbers if they are zero.
fn unless_zero(count: usize) -> Option<i32> {
    (count > 0).then(|| number(count))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use serde_json::{Value, from_value, json, to_value};

    use super::Counted;
    use crate::replicaset::Pod;

    fn status(set: Value, pods: Value, failure: Option<&str>) -> Value {
        let set: ReplicaSet = from_value(set).expect("a ReplicaSet");
        let active: Vec<Pod> = from_value(pods).expect("Pods");
        let spec = set.spec.as_ref().expect("a spec");
        let counted = Counted { set: &set, spec, active: &active, terminating: 1 };
        let now = "2026-01-01T00:01:00Z".parse().expect("a time");
        to_value(counted.status(failure.map(ToOwned::to_owned), now)).expect("it is JSON")
    }

    fn set() -> Value {
        json!({
            "metadata": {"generation": 4},
            "spec": {
                "replicas": 3, "minReadySeconds": 30, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web", "tier": "front"}}},
            },
        })
    }

    #[test]
    fn each_pod_counts_for_what_it_is() {
        let pod = |labels: Value, since: Option<&str>| {
            let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": since});
            let conditions = if since.is_some() { json!([ready]) } else { json!([]) };
            json!({"metadata": {"labels": labels}, "status": {"phase": "Running", "conditions": conditions}})
        };
        let full = json!({"app": "web", "tier": "front", "more": "yes"});
        let pods = json!([
            pod(full.clone(), Some("2026-01-01T00:00:00Z")),
            pod(full, Some("2026-01-01T00:00:45Z")),
            pod(json!({"app": "web"}), None),
        ]);
        assert_eq!(
            status(set(), pods, None),
            json!({
                "replicas": 3, "fullyLabeledReplicas": 2, "readyReplicas": 2, "availableReplicas": 1,
                "terminatingReplicas": 1, "observedGeneration": 4,
            })
        );
        let none = json!({"replicas": 0, "terminatingReplicas": 1, "observedGeneration": 4});
        assert_eq!(status(set(), json!([]), None), none);
    }

    #[test]
    fn a_failure_is_a_condition_until_it_is_over() {
        let failed = status(set(), json!([]), Some("over quota"));
        let condition = json!({
            "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "over quota",
            "lastTransitionTime": "2026-01-01T00:01:00Z",
        });
        assert_eq!(failed["conditions"], json!([condition]));
        let mut known = set();
        known["status"] = failed.clone();
        assert_eq!(status(known.clone(), json!([]), Some("another"))["conditions"], failed["conditions"]);
        assert_eq!(status(known, json!([]), None)["conditions"], Value::Null);

        let pods = json!([{"metadata": {}}, {"metadata": {}}, {"metadata": {}}, {"metadata": {}}]);
        assert_eq!(status(set(), pods, Some("no"))["conditions"][0]["reason"], "FailedDelete");
    }
}
