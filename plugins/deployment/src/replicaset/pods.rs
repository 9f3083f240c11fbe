//! What the controllers look at in a Pod: a few of its fields, so that a change of any other wakes nothing.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::core::v1::{self, PodCondition},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use pilothouse_sdk::Object;
use serde::{Deserialize, Serialize};

/// How much it costs to delete a Pod, compared with its siblings.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The part of a Pod that decides whether it counts, and whether it goes.
#[derive(Clone, Debug, Default, Deserialize, Object, PartialEq, Serialize)]
#[object(api_version = "v1", kind = "Pod")]
pub(crate) struct Pod {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: Spec,
    #[serde(default)]
    pub(crate) status: Status,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    pub(crate) node_name: Option<String>,
    pub(crate) init_containers: Vec<InitContainer>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct InitContainer {
    pub(crate) name: String,
    pub(crate) restart_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Status {
    pub(crate) phase: Option<String>,
    pub(crate) conditions: Vec<PodCondition>,
    pub(crate) container_statuses: Vec<Restarts>,
    pub(crate) init_container_statuses: Vec<Restarts>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Restarts {
    /// Empty for containers that are no init containers.
    pub(crate) name: String,
    pub(crate) restart_count: i32,
}

impl Pod {
    /// The paths of these fields.
    pub(crate) const FIELDS: [&str; 14] = [
        "metadata.uid",
        "metadata.creationTimestamp",
        "metadata.deletionTimestamp",
        "metadata.labels",
        "metadata.annotations[\"controller.kubernetes.io/pod-deletion-cost\"]",
        "metadata.ownerReferences",
        "spec.nodeName",
        "spec.initContainers[*].name",
        "spec.initContainers[*].restartPolicy",
        "status.phase",
        "status.conditions",
        "status.containerStatuses[*].restartCount",
        "status.initContainerStatuses[*].name",
        "status.initContainerStatuses[*].restartCount",
    ];

    /// Returns `true` if the Pod counts as a replica: it has neither ended, nor is it being deleted.
    pub(crate) fn is_active(&self) -> bool {
        !self.has_ended() && self.metadata.deletion_timestamp.is_none()
    }

    /// Returns `true` if the Pod is being deleted, and has not ended yet.
    pub(crate) fn is_terminating(&self) -> bool {
        !self.has_ended() && self.metadata.deletion_timestamp.is_some()
    }

    /// Returns `true` if none of its containers runs any more.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready().is_some()
    }

    /// Returns since when the Pod is ready. `None` if it is not ready, or does not say.
    pub(super) fn ready_since(&self) -> Option<Timestamp> {
        Some(self.ready()?.last_transition_time.as_ref()?.0)
    }

    fn ready(&self) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|condition| condition.type_ == "Ready" && condition.status == "True")
    }

    /// Returns how long until a Pod that stays ready is available, which is after `least` seconds. Zero if it is.
    /// `None` if the Pod is not ready, or does not say since when.
    pub(super) fn available_in(&self, least: i32, now: Timestamp) -> Option<Duration> {
        if least == 0 {
            return self.is_ready().then_some(Duration::ZERO);
        }
        let least = Duration::from_secs(u64::try_from(least).unwrap_or_default());
        let ready = Duration::try_from(now.duration_since(self.ready_since()?)).unwrap_or_default();
        Some(least.saturating_sub(ready))
    }

    /// Returns what deleting the Pod costs. A value that is not valid counts as none.
    pub(super) fn deletion_cost(&self) -> i32 {
        let cost = self.metadata.annotations.as_ref().and_then(|annotations| annotations.get(DELETION_COST));
        cost.and_then(|cost| cost.parse().ok()).unwrap_or_default()
    }

    /// Returns the restarts of the container that was restarted most often, and those of such a sidecar.
    pub(super) fn restarts(&self) -> (i32, i32) {
        let is_sidecar = |status: &&Restarts| {
            let containers = &mut self.spec.init_containers.iter();
            containers.any(|it| it.name == status.name && it.restart_policy.as_deref() == Some("Always"))
        };
        let sidecars = self.status.init_container_statuses.iter().filter(is_sidecar);
        let most = |restarts: Option<i32>| restarts.unwrap_or_default();
        let containers = self.status.container_statuses.iter().map(|container| container.restart_count).max();
        (most(containers), most(sidecars.map(|sidecar| sidecar.restart_count).max()))
    }

    /// Returns `true` if the Pod has all of these labels.
    pub(super) fn has_labels(&self, wanted: &BTreeMap<String, String>) -> bool {
        let labels = self.metadata.labels.as_ref();
        wanted.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
    }
}

/// A Pod that was just created.
impl From<v1::Pod> for Pod {
    fn from(pod: v1::Pod) -> Self {
        let spec = Spec { node_name: pod.spec.and_then(|spec| spec.node_name), init_containers: Vec::new() };
        Self { metadata: pod.metadata, spec, status: Status::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, from_value, json};

    use super::Pod;

    fn pod(mut object: Value) -> Pod {
        if object["metadata"].is_null() {
            object["metadata"] = json!({});
        }
        from_value(object).expect("a Pod")
    }

    #[test]
    fn only_pods_that_run_or_will_run_count() {
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (object, is_active, is_terminating) in [
            (json!({}), true, false),
            (json!({"status": {"phase": "Pending"}}), true, false),
            (json!({"status": {"phase": "Running"}}), true, false),
            (json!({"status": {"phase": "Failed"}}), false, false),
            (json!({"status": {"phase": "Succeeded"}}), false, false),
            (json!({"metadata": deleted, "status": {"phase": "Running"}}), false, true),
            (json!({"metadata": deleted, "status": {"phase": "Failed"}}), false, false),
        ] {
            let pod = pod(object.clone());
            assert_eq!((pod.is_active(), pod.is_terminating()), (is_active, is_terminating), "{object}");
        }
    }

    #[test]
    fn a_pod_is_available_when_it_was_ready_long_enough() {
        let ready = |status: &str| {
            let since = "2026-01-01T00:00:00Z";
            pod(json!({"status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": since}]}}))
        };
        let at = |second: u32| format!("2026-01-01T00:00:{second:02}Z").parse().expect("a time");
        for (pod, least, second, expected) in [
            (ready("True"), 0, 0, Some(0)),
            (ready("True"), 10, 0, Some(10)),
            (ready("True"), 10, 4, Some(6)),
            (ready("True"), 10, 10, Some(0)),
            (ready("True"), 10, 30, Some(0)),
            (ready("False"), 0, 30, None),
            (ready("False"), 10, 30, None),
            (pod(json!({})), 0, 30, None),
        ] {
            assert_eq!(pod.available_in(least, at(second)), expected.map(Duration::from_secs), "{least} {second}");
        }
    }

    #[test]
    fn the_fields_are_those_of_the_type() {
        let cost = "controller.kubernetes.io/pod-deletion-cost";
        assert!(Pod::FIELDS.contains(&format!("metadata.annotations[\"{cost}\"]").as_str()));
        let costs = |value: &str| pod(json!({"metadata": {"annotations": {cost: value}}})).deletion_cost();
        assert_eq!([costs("-5"), costs("100"), costs("much")], [-5, 100, 0]);
    }
}
