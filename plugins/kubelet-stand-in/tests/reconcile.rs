//! Tests `kubelet-stand-in` against the mock host.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kubelet_stand_in::kubelet_stand_in;
use pilothouse_sdk::mock::MockHost;
use serde_json::{Value, from_value, json};

const WEB: (&str, &str) = ("default", "web");

#[expect(clippy::needless_pass_by_value, reason = "objects are written in place")]
fn pod(spec: Value, status: Value) -> Pod {
    let metadata = json!({"namespace": "default", "name": "web"});
    from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
}

/// Returns the phase, `Ready`, and whether the container is ready.
fn seen(host: &MockHost) -> (String, String, bool) {
    let status = host.get::<Pod>(WEB).unwrap().status.unwrap();
    let ready = status.conditions.unwrap().into_iter().find(|condition| condition.type_ == "Ready").unwrap();
    (status.phase.unwrap(), ready.status, status.container_statuses.unwrap()[0].ready)
}

#[test]
fn a_pod_runs_and_is_ready_at_once() {
    let mut host = MockHost::new(kubelet_stand_in)
        .with(pod(json!({"containers": [{"name": "web", "image": "web:1"}]}), json!(null)));
    let outcome = host.settle(WEB).unwrap();
    assert_eq!(seen(&host), ("Running".to_owned(), "True".to_owned(), true));
    assert_eq!(outcome.requeue_after(), None);
}

#[test]
fn a_pod_is_ready_after_its_longest_delay() {
    let container = |name: &str, delay: i32| json!({"name": name, "readinessProbe": {"initialDelaySeconds": delay}});
    let spec = json!({"containers": [container("web", 2), container("side", 10)]});
    let mut host = MockHost::new(kubelet_stand_in).with(pod(spec, json!(null)));
    let outcome = host.settle(WEB).unwrap();
    assert_eq!(seen(&host), ("Running".to_owned(), "False".to_owned(), false));
    assert_eq!(outcome.requeue_after(), Some(Duration::from_secs(10)));
    host.advance(Duration::from_secs(4));
    assert_eq!(host.settle(WEB).unwrap().requeue_after(), Some(Duration::from_secs(6)));
    host.advance(Duration::from_secs(6));
    host.settle(WEB).unwrap();
    assert_eq!(seen(&host), ("Running".to_owned(), "True".to_owned(), true));
    let ready = host.get::<Pod>(WEB).unwrap().status.unwrap().conditions.unwrap().pop().unwrap();
    assert_eq!(ready.last_transition_time.unwrap().0.to_string(), "2026-01-01T00:00:10Z");
}

#[test]
fn what_is_not_its_own_is_left_alone() {
    let spec = || json!({"containers": [{"name": "web"}]});
    let mut bound = spec();
    bound["nodeName"] = json!("n1");
    let mut deleted = pod(spec(), json!(null));
    deleted.metadata.deletion_timestamp = Some(from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    deleted.metadata.finalizers = Some(vec!["example.com/kept".to_owned()]);
    for pod in [
        pod(bound, json!({"phase": "Pending"})),
        pod(spec(), json!({"phase": "Failed"})),
        pod(spec(), json!({"phase": "Succeeded"})),
        deleted,
    ] {
        let host = MockHost::new(kubelet_stand_in).with(pod.clone());
        assert!(host.reconcile(WEB).unwrap().leaves_status(), "{pod:?}");
    }
}

#[test]
fn the_administrators_file_grants_exactly_what_is_asked() {
    let file = serde_saphyr::from_str(include_str!("../kubelet-stand-in.yaml")).unwrap();
    MockHost::new(kubelet_stand_in).assert_granted(&file);
}

#[test]
fn the_example_is_a_pod_that_is_slow() {
    let slow: Pod = serde_saphyr::from_str(include_str!("../examples/slow.yaml")).unwrap();
    let mut host = MockHost::new(kubelet_stand_in).with(slow);
    assert_eq!(host.settle(("default", "slow")).unwrap().requeue_after(), Some(Duration::from_secs(10)));
}
