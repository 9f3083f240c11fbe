//! What a ReplicaSet says, with its defaults.

use std::cmp::Ordering;

use k8s_openapi::{
    api::apps::v1::{ReplicaSet, ReplicaSetStatus},
    jiff::Timestamp,
};
use pilothouse_sdk::Object;

/// The annotations of a ReplicaSet with the numbers of its Deployment when it was last scaled: the replicas, and the
/// most Pods that there may be.
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MOST: &str = "deployment.kubernetes.io/max-replicas";

/// Returns how many Pods it should have.
pub(super) fn size(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub(super) fn set_size(set: &mut ReplicaSet, size: i32) {
    set.spec.get_or_insert_default().replicas = Some(size);
}

pub(super) fn is_active(set: &ReplicaSet) -> bool {
    size(set) > 0
}

/// Returns how many Pods are available.
pub(super) fn available(set: &ReplicaSet) -> i32 {
    counted(set, |status| status.available_replicas)
}

/// Returns a number of the status, or zero.
pub(super) fn counted(set: &ReplicaSet, number: impl Fn(&ReplicaSetStatus) -> Option<i32>) -> i32 {
    set.status.as_ref().and_then(number).unwrap_or_default()
}

pub(super) fn annotation<'a>(set: &'a ReplicaSet, name: &str) -> Option<&'a str> {
    set.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

pub(super) fn annotate(set: &mut ReplicaSet, name: &str, value: &impl ToString) {
    set.metadata.annotations.get_or_insert_default().insert(name.to_owned(), value.to_string());
}

/// Returns the number in an annotation. `None` if there is none, or if it is negative.
pub(super) fn number(set: &ReplicaSet, name: &str) -> Option<i32> {
    annotation(set, name)?.parse().ok().filter(|number| *number >= 0)
}

/// Orders by age, the oldest first.
pub(super) fn by_age(a: &ReplicaSet, b: &ReplicaSet) -> Ordering {
    let created = |set: &ReplicaSet| -> Option<Timestamp> { Some(set.metadata.creation_timestamp.as_ref()?.0) };
    created(a).cmp(&created(b)).then_with(|| a.name().cmp(b.name()))
}

/// Helpers of the tests of this controller.
#[cfg(test)]
pub(super) mod tests {
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use serde_json::{from_value, json};

    /// Returns a ReplicaSet of the image `web:NAME`, of this size, with so many Pods of which some are available. A
    /// greater `age` is older.
    pub(in crate::deployment) fn set(name: &str, age: u32, size: i32, pods: i32, available: i32) -> ReplicaSet {
        let created = format!("2025-12-31T23:{:02}:00Z", 59 - age);
        from_value(json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 1, "creationTimestamp": created},
            "spec": {
                "replicas": size, "selector": {},
                "template": {"spec": {"containers": [{"name": "web", "image": format!("web:{name}")}]}},
            },
            "status": {
                "replicas": pods, "readyReplicas": available, "availableReplicas": available,
                "observedGeneration": 1, "terminatingReplicas": 0,
            },
        }))
        .expect("a ReplicaSet")
    }
}
