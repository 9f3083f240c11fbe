//! Which Pods a ReplicaSet deletes first: those that would be missed least.

use std::{
    cmp::{Ordering, Reverse},
    collections::BTreeMap,
};

use k8s_openapi::jiff::Timestamp;

use super::pods::Pod;

/// Sorts Pods so that those to delete first come first:
///
/// 1. without a node;
/// 2. pending, then of unknown phase, then running;
/// 3. not ready;
/// 4. of lower deletion cost;
/// 5. with more active siblings on its node, as `neighbours` counts them;
/// 6. ready for a shorter time;
/// 7. restarted more often, and then with sidecars that were;
/// 8. younger.
///
/// Times of the same magnitude count as equal in 6 and 8. The uid then decides, so that not always the youngest Pods
/// go.
pub(super) fn first(pods: &mut [Pod], neighbours: &BTreeMap<String, usize>, now: Timestamp) {
    pods.sort_by(|a, b| order(a, b, neighbours, now));
}

fn order(a: &Pod, b: &Pod, neighbours: &BTreeMap<String, usize>, now: Timestamp) -> Ordering {
    let node = |pod: &Pod| pod.spec.node_name.clone().unwrap_or_default();
    let rank = |pod: &Pod| Reverse(neighbours.get(&node(pod)).copied().unwrap_or_default());
    let created = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (!node(a).is_empty())
        .cmp(&!node(b).is_empty())
        .then_with(|| phase(a).cmp(&phase(b)))
        .then_with(|| a.is_ready().cmp(&b.is_ready()))
        .then_with(|| a.deletion_cost().cmp(&b.deletion_cost()))
        .then_with(|| rank(a).cmp(&rank(b)))
        .then_with(|| match a.is_ready() && b.is_ready() {
            true => younger((a, a.ready_since()), (b, b.ready_since()), now),
            false => Ordering::Equal,
        })
        .then_with(|| b.restarts().cmp(&a.restarts()))
        .then_with(|| younger((a, created(a)), (b, created(b)), now))
}

fn phase(pod: &Pod) -> u8 {
    match pod.status.phase.as_deref() {
        None | Some("" | "Pending") => 0,
        Some("Running") => 2,
        Some(_) => 1,
    }
}

/// Compares two Pods by times of theirs. An unknown time counts as the youngest.
fn younger(
    (a, since_a): (&Pod, Option<Timestamp>),
    (b, since_b): (&Pod, Option<Timestamp>),
    now: Timestamp,
) -> Ordering {
    if since_a == since_b {
        return Ordering::Equal;
    }
    let (Some(time_a), Some(time_b)) = (since_a, since_b) else { return since_a.is_some().cmp(&since_b.is_some()) };
    magnitude(time_a, now).cmp(&magnitude(time_b, now)).then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

/// Returns the binary logarithm of an age in nanoseconds, rounded down. `None` for no age.
fn magnitude(time: Timestamp, now: Timestamp) -> Option<u32> {
    u128::try_from(now.duration_since(time).as_nanos()).ok()?.checked_ilog2()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, from_value, json};

    use super::first;
    use crate::replicaset::Pod;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn pod(name: &str, object: Value) -> Pod {
        let mut pod: Pod = from_value(object).expect("a Pod");
        pod.metadata.name = Some(name.to_owned());
        pod
    }

    fn ready(since: &str) -> Value {
        let condition = json!({"type": "Ready", "status": "True", "lastTransitionTime": since});
        json!({"phase": "Running", "conditions": [condition]})
    }

    /// Checks that the first Pod goes before the second, in whatever order they come.
    fn goes_first(why: &str, first_pod: Value, second_pod: Value) {
        let neighbours = BTreeMap::from([("full".to_owned(), 3), ("empty".to_owned(), 1)]);
        let (one, other) = (pod("first", first_pod), pod("second", second_pod));
        for mut pods in [vec![one.clone(), other.clone()], vec![other, one]] {
            first(&mut pods, &neighbours, NOW.parse().expect("a time"));
            assert_eq!(pods[0].metadata.name.as_deref(), Some("first"), "{why}");
        }
    }

    #[test]
    fn pods_go_in_the_order_of_kubernetes() {
        let on = |node: &str, status: Value| json!({"metadata": {}, "spec": {"nodeName": node}, "status": status});
        let running = || json!({"phase": "Running"});
        let long = "2025-12-01T00:00:00Z";
        let (no_node, pending) = (json!({"metadata": {}, "status": ready(long)}), json!({"phase": "Pending"}));
        goes_first("without a node", no_node, on("n", pending.clone()));
        goes_first("pending", on("n", pending.clone()), on("n", json!({"phase": "Unknown"})));
        goes_first("unknown", on("n", json!({"phase": "Unknown"})), on("n", running()));
        goes_first("not ready", on("n", running()), on("n", ready(long)));

        let costs = |cost: &str, since: &str| {
            let mut pod = on("n", ready(since));
            pod["metadata"]["annotations"] = json!({"controller.kubernetes.io/pod-deletion-cost": cost});
            pod
        };
        goes_first("cheap", costs("-1", long), costs("1", NOW));
        goes_first("on a full node", on("full", ready(long)), on("empty", ready(NOW)));
        goes_first("ready for a shorter time", on("n", ready("2026-01-01T00:59:00Z")), on("n", ready(long)));

        let restarted = |count: i32, created: &str| {
            let mut pod = on("n", running());
            pod["status"]["containerStatuses"] = json!([{"restartCount": count}, {"restartCount": 0}]);
            pod["metadata"]["creationTimestamp"] = json!(created);
            pod
        };
        goes_first("restarted more often", restarted(2, long), restarted(1, NOW));
        let sidecar = |count: i32, policy: Value| {
            let mut pod = restarted(1, long);
            pod["spec"]["initContainers"] = json!([{"name": "proxy", "restartPolicy": policy}]);
            pod["status"]["initContainerStatuses"] = json!([{"name": "proxy", "restartCount": count}]);
            pod
        };
        goes_first("a sidecar restarted", sidecar(1, json!("Always")), restarted(1, NOW));
        goes_first("restarted more often than a sidecar", restarted(2, long), sidecar(3, json!("Always")));
        goes_first("no sidecar", restarted(1, "2026-01-01T00:59:00Z"), sidecar(3, Value::Null));
        goes_first("younger", restarted(1, "2026-01-01T00:59:00Z"), restarted(1, long));
    }

    #[test]
    fn among_pods_of_the_same_magnitude_the_uid_decides() {
        let pod = |uid: &str, created: &str| json!({"metadata": {"uid": uid, "creationTimestamp": created}});
        // 40 and 59 minutes.
        goes_first("uid", pod("a", "2026-01-01T00:01:00Z"), pod("b", "2026-01-01T00:20:00Z"));
    }
}
