//! Tests `resource-watch` against the mock host.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]
#![allow(clippy::needless_pass_by_value, reason = "JSON is written where it is passed")]

use kube::CustomResourceExt;
use pilothouse_sdk::{Dynamic, Key, Permission, TypeMeta, Verb, mock::MockHost};
use resource_watch::{Counted, ResourceWatch, ResourceWatchSpec, ResourceWatchStatus, resource_watch};
use serde_json::{Value, json};

fn all() -> Key {
    Key::cluster("all")
}

fn watch(spec: Value) -> ResourceWatch {
    ResourceWatch::new("all", serde_json::from_value::<ResourceWatchSpec>(spec).unwrap())
}

fn backup(namespace: &str, name: &str, tier: &str) -> Dynamic {
    let mut backup = Dynamic::new(TypeMeta::new("example.com/v1", "Backup"), name);
    backup.metadata.namespace = Some(namespace.to_owned());
    backup.metadata.labels = Some([("tier".to_owned(), tier.to_owned())].into());
    backup
}

fn backups(more: Value) -> Value {
    let mut resource = json!({"apiVersion": "example.com/v1", "kind": "Backup"});
    resource.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    resource
}

fn settled(host: &mut MockHost) -> ResourceWatchStatus {
    host.settle(all()).unwrap();
    host.get::<ResourceWatch>(all()).unwrap().status.unwrap()
}

fn seen(counted: &Counted) -> (Option<u32>, Vec<&str>) {
    (counted.count, counted.objects.iter().map(String::as_str).collect())
}

fn host(spec: Value) -> MockHost {
    MockHost::new(resource_watch)
        .with(backup("db", "nightly", "gold"))
        .with(backup("db", "weekly", "silver"))
        .with(backup("shop", "nightly", "gold"))
        .with(watch(spec))
}

#[test]
fn the_objects_of_a_kind_are_counted_and_the_first_are_listed() {
    let mut host = host(json!({"resources": [backups(json!({}))], "list": 2}));
    let status = settled(&mut host);
    assert_eq!(status.total, 3);
    assert_eq!(seen(&status.resources[0]), (Some(3), vec!["db/nightly", "db/weekly"]));
    assert!(status.conditions.is_true("Ready"));
}

#[test]
fn selectors_of_labels_and_namespaces_are_applied() {
    for (selection, expected) in [
        (json!({"labels": "tier=gold"}), vec!["db/nightly", "shop/nightly"]),
        (json!({"namespaces": ["db"]}), vec!["db/nightly", "db/weekly"]),
        (json!({"labels": "tier!=gold", "namespaces": ["db", "shop"]}), vec!["db/weekly"]),
        (json!({"namespaces": ["shop", "db", "shop"]}), vec!["db/nightly", "db/weekly", "shop/nightly"]),
        (json!({"namespaces": ["none"]}), vec![]),
    ] {
        let mut host = host(json!({"resources": [backups(selection.clone())]}));
        let status = settled(&mut host);
        assert_eq!(seen(&status.resources[0]).1, expected, "{selection}");
    }
}

#[test]
fn only_what_comes_goes_or_changes_its_selection_wakes_it() {
    let mut host = host(json!({"resources": [backups(json!({"labels": "tier=gold"}))]}));
    settled(&mut host);
    let mut changed = backup("db", "nightly", "gold");
    changed.data["spec"] = json!({"keep": 9});
    assert_eq!(host.woken_by(|host| host.put(changed)), []);
    assert_eq!(host.woken_by(|host| host.put(backup("db", "hourly", "silver"))), []);
    assert_eq!(host.woken_by(|host| host.put(backup("db", "weekly", "gold"))), [all()]);
    let of = TypeMeta::new("example.com/v1", "Backup");
    assert_eq!(host.woken_by(|host| drop(host.remove_dynamic(&of, ("db", "nightly")))), [all()]);
    assert_eq!(settled(&mut host).resources[0].objects, ["db/weekly", "shop/nightly"]);
}

#[test]
fn a_kind_that_is_not_granted_is_reported_and_the_others_are_counted() {
    let pods = json!({"apiVersion": "v1", "kind": "Pod"});
    let spec = json!({"resources": [pods, backups(json!({}))]});
    let refused = Permission::to(TypeMeta::new("v1", "Pod")).verbs([Verb::Read]);
    let mut host = host(spec).refuse(refused);
    let status = settled(&mut host);
    assert_eq!((status.total, seen(&status.resources[0])), (3, (None, vec![])));
    let message = status.resources[0].message.as_deref().unwrap();
    assert!(message.contains("the administrator's file does not allow it"), "{message}");
    assert_eq!(status.conditions.get("Ready").unwrap().message, "1 of 2 kinds are not");
}

#[test]
fn a_selector_that_is_not_valid_is_reported() {
    let mut host = host(json!({"resources": [backups(json!({"labels": "tier in gold"}))]}));
    let status = settled(&mut host);
    let message = status.resources[0].message.as_deref().unwrap();
    assert!(message.contains("the query is not valid"), "{message}");
}

#[test]
fn what_is_no_longer_named_is_no_longer_watched() {
    let mut host = host(json!({"resources": [backups(json!({}))]}));
    settled(&mut host);
    host.edit::<ResourceWatch>(all(), |watch| watch.spec.resources[0].kind = "Plum".to_owned());
    settled(&mut host);
    assert_eq!(host.woken_by(|host| host.put(backup("db", "new", "gold"))), []);
}

#[test]
fn the_custom_resource_definition_is_as_reviewed() {
    insta::assert_snapshot!("crd", serde_saphyr::to_string(&ResourceWatch::crd()).unwrap());
}

#[test]
fn the_administrators_file_grants_what_is_asked_with_some_kinds_in_place_of_all() {
    let mut file: Value = serde_saphyr::from_str(include_str!("../resource-watch.yaml")).unwrap();
    let grants = file["grants"].as_array_mut().unwrap();
    grants.retain(|grant| !["apps/*", "v1"].contains(&grant["apiVersion"].as_str().unwrap()));
    grants.push(json!({"apiVersion": "*", "kind": "*", "verbs": ["read"]}));
    MockHost::new(resource_watch).assert_granted(&file);
}

#[test]
fn the_example_counts() {
    let mut watch: ResourceWatch = serde_saphyr::from_str(include_str!("../examples/workloads.yaml")).unwrap();
    watch.metadata.name = Some("all".to_owned());
    let mut map = Dynamic::new(TypeMeta::new("v1", "ConfigMap"), "settings");
    map.metadata.namespace = Some("default".to_owned());
    let mut host = MockHost::new(resource_watch).with(watch).with(map);
    let status = settled(&mut host);
    assert_eq!(status.total, 1);
    assert_eq!(seen(&status.resources[1]), (Some(1), vec!["default/settings"]));
}
