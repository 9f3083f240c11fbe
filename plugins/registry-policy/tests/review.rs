//! Tests `registry-policy` against the mock host.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]
#![allow(clippy::needless_pass_by_value, reason = "JSON is written where it is passed")]

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::{Dynamic, mock::MockHost};
use registry_policy::registry_policy;
use serde_json::{Value, from_value, json};

const ALLOWS: &str =
    "the ConfigMap default/allowed-registries allows these registries: registry.example.com, ghcr.io/acme";

fn file() -> Value {
    serde_saphyr::from_str(include_str!("../registry-policy.yaml")).unwrap()
}

fn policy(registries: &str) -> ConfigMap {
    let metadata = json!({"namespace": "default", "name": "allowed-registries"});
    from_value(json!({"metadata": metadata, "data": {"registries": registries}})).unwrap()
}

fn host() -> MockHost {
    MockHost::configured(registry_policy, &file()["config"]).with(policy("registry.example.com\nghcr.io/acme\n"))
}

fn object(api_version: &str, kind: &str, members: Value) -> Dynamic {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": "shop", "name": "web"}});
    object.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    from_value(object).unwrap()
}

fn pod(image: &str) -> Dynamic {
    object("v1", "Pod", json!({"spec": {"containers": [{"name": "web", "image": image}]}}))
}

/// Returns why the creation is denied.
fn denied(host: &MockHost, object: Dynamic) -> Option<String> {
    host.review("images").create(object).run().unwrap().denied().map(str::to_owned)
}

#[test]
fn a_pod_from_another_registry_is_denied_with_its_image_and_the_config_map() {
    let host = host();
    assert_eq!(denied(&host, pod("ghcr.io/acme/web:1")), None);
    let expected = format!("not from an allowed registry: nginx (spec.containers[web]); {ALLOWS}");
    assert_eq!(denied(&host, pod("nginx")), Some(expected));
    for result in ["allowed", "denied"] {
        assert_eq!(host.metric("registry_policy_reviews_total", [("result", result)]), Some(1.0));
    }
}

#[test]
fn every_place_of_an_image_counts() {
    let place = |list: &str, entry: Value| {
        let mut spec = json!({"containers": [{"name": "web", "image": "registry.example.com/web"}]});
        spec[list] = json!([entry]);
        denied(&host(), object("v1", "Pod", json!({ "spec": spec }))).unwrap()
    };
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let found = place(list, json!({"name": "bad", "image": "nginx"}));
        assert!(found.contains(&format!("nginx (spec.{list}[bad])")), "{found}");
    }
    let found = place("volumes", json!({"name": "bad", "image": {"reference": "nginx"}}));
    assert!(found.contains("nginx (spec.volumes[bad])"), "{found}");
}

#[test]
fn every_kind_of_pod_template_is_reviewed() {
    let spec = json!({"spec": {"containers": [{"name": "web", "image": "nginx"}]}});
    let template = json!({"spec": {"template": spec}});
    for (api_version, kind, members, path) in [
        ("apps/v1", "Deployment", template.clone(), "spec.template.spec"),
        ("apps/v1", "ReplicaSet", template.clone(), "spec.template.spec"),
        ("apps/v1", "StatefulSet", template.clone(), "spec.template.spec"),
        ("apps/v1", "DaemonSet", template.clone(), "spec.template.spec"),
        ("batch/v1", "Job", template.clone(), "spec.template.spec"),
        ("v1", "ReplicationController", template.clone(), "spec.template.spec"),
        ("v1", "PodTemplate", json!({ "template": spec }), "template.spec"),
        ("batch/v1", "CronJob", json!({"spec": {"jobTemplate": template}}), "spec.jobTemplate.spec.template.spec"),
    ] {
        let found = denied(&host(), object(api_version, kind, members)).unwrap_or_default();
        assert!(found.contains(&format!("nginx ({path}.containers[web])")), "{kind}: {found:?}");
    }
}

#[test]
fn an_update_is_denied_only_for_the_images_that_it_adds() {
    let host = host();
    let review = |old: &str, new: &str| {
        let decision = host.review("images").update(&pod(old), pod(new)).run().unwrap();
        decision.denied().map(str::to_owned)
    };
    assert_eq!(review("nginx", "nginx"), None);
    assert_eq!(review("nginx", "ghcr.io/acme/web"), None);
    assert!(review("nginx", "nginx:2").unwrap().contains("nginx:2"));
    let decision = host.review("images").delete(&pod("nginx")).run().unwrap();
    assert_eq!(decision.denied(), None);
}

#[test]
fn a_message_names_some_images_and_counts_the_others() {
    let containers: Vec<Value> = (0..7).map(|i| json!({"name": format!("c{i}"), "image": format!("web{i}")})).collect();
    let found = denied(&host(), object("v1", "Pod", json!({"spec": {"containers": containers}}))).unwrap();
    assert!(found.contains("web4 (spec.containers[c4]), 2 more;"), "{found}");
}

#[test]
fn an_edit_of_the_config_map_counts_at_once_and_without_it_nothing_is_allowed() {
    let mut host = host();
    host.put(policy("docker.io"));
    assert_eq!(denied(&host, pod("nginx")), None);
    host.remove::<ConfigMap>(("default", "allowed-registries"));
    let found = denied(&host, pod("nginx")).unwrap();
    assert!(
        found.ends_with("default/allowed-registries, which lists the allowed registries, does not exist"),
        "{found}"
    );
}

#[test]
fn the_administrator_decides_which_namespaces_count_and_what_happens_without_an_answer() {
    let webhook = host().manifest().webhooks[0].clone();
    assert_eq!(webhook.namespaces.unwrap(), "registry-policy=enforced");
    let config = json!({"configMap": {"namespace": "a", "name": "b"}, "allowOnFailure": true});
    let lenient = MockHost::configured(registry_policy, config).manifest().webhooks[0].clone();
    assert_ne!(lenient.on_failure, webhook.on_failure);
    assert_eq!(lenient.namespaces, None);
}

#[test]
fn the_administrators_file_grants_exactly_what_is_asked() {
    host().assert_granted(&file());
}

#[test]
fn the_example_is_a_policy() {
    let objects: Vec<Dynamic> = serde_saphyr::from_multiple(include_str!("../examples/policy.yaml")).unwrap();
    assert_eq!(objects[0].metadata.labels.as_ref().unwrap()["registry-policy"], "enforced");
    let mut host = host();
    host.put(objects[1].clone());
    assert_eq!(denied(&host, pod("eu.pkg.example.org/web")), None);
    assert!(denied(&host, pod("nginx")).is_some());
}
