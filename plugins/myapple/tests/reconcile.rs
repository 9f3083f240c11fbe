//! Tests `myapple` against the mock host: the status for many states of the cluster, and the whole life of one MyApple.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::CustomResourceExt;
use myapple::{MyApple, MyAppleSpec, MyAppleStatus, Size, myapple};
use pilothouse_sdk::{
    Object, Permission, TypeMeta, Verb,
    mock::{MockHost, Outcome},
};

const PIE: (&str, &str) = ("default", "pie");
const PIE_UID: &str = "6e0d3c1a-0000-4000-8000-000000000001";

fn pie(quantity: i32) -> MyApple {
    let spec = MyAppleSpec { color: "red".into(), size: Size::Medium, quantity };
    let mut pie = MyApple::new("pie", spec);
    pie.metadata.namespace = Some("default".into());
    pie.metadata.uid = Some(PIE_UID.into());
    pie
}

/// Returns the right ConfigMap with index `i`, after `change`.
fn apple(i: i32, change: impl FnOnce(&mut ConfigMap)) -> ConfigMap {
    let mut apple = ConfigMap::default();
    apple.metadata.name = Some(format!("pie-{i}"));
    apple.metadata.namespace = Some("default".into());
    let TypeMeta { api_version, kind } = MyApple::type_meta();
    let (name, uid) = ("pie".to_owned(), PIE_UID.to_owned());
    let owner = OwnerReference { api_version, kind, name, uid, controller: Some(true), ..OwnerReference::default() };
    apple.metadata.owner_references = Some(vec![owner]);
    apple.data = Some(data("red", "medium"));
    change(&mut apple);
    apple
}

fn data(color: &str, size: &str) -> BTreeMap<String, String> {
    [("color", color), ("size", size)].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn same(_: &mut ConfigMap) {}

/// Returns what people see of a status: `available`, and the status, reason and message of `Ready`.
fn seen(outcome: &Outcome) -> (i32, String, String, String) {
    let MyAppleStatus { available, conditions, .. } = outcome.status();
    let ready = conditions.get("Ready").unwrap();
    (available, ready.status.clone(), ready.reason.clone(), ready.message.clone())
}

#[test]
fn status_reports_what_the_cache_shows() {
    /// A name, the quantity, the ConfigMaps in the cache, the last error, and what people see.
    type Case =
        (&'static str, i32, Vec<ConfigMap>, Option<&'static str>, (i32, &'static str, &'static str, &'static str));
    let cases: [Case; 9] = [
        ("nothing yet", 3, vec![], None, (0, "False", "Progressing", "0 of 3 available")),
        ("some", 3, vec![apple(0, same), apple(2, same)], None, (2, "False", "Progressing", "2 of 3 available")),
        ("all", 2, vec![apple(0, same), apple(1, same)], None, (2, "True", "AllAvailable", "2 of 2 available")),
        ("a surplus", 1, vec![apple(0, same), apple(1, same)], None, (1, "True", "AllAvailable", "1 of 1 available")),
        (
            "another color",
            1,
            vec![apple(0, |apple| apple.data = Some(data("green", "medium")))],
            None,
            (0, "False", "Progressing", "0 of 1 available"),
        ),
        (
            "an empty one",
            1,
            vec![apple(0, |apple| apple.data = None)],
            None,
            (0, "False", "Progressing", "0 of 1 available"),
        ),
        (
            "a key of somebody else's beside ours",
            1,
            vec![apple(0, |apple| drop(apple.data.as_mut().map(|data| data.insert("note".into(), "sweet".into()))))],
            None,
            (1, "True", "AllAvailable", "1 of 1 available"),
        ),
        (
            "somebody else's",
            1,
            vec![apple(0, |apple| apple.metadata.owner_references = None)],
            None,
            (0, "False", "Progressing", "0 of 1 available"),
        ),
        (
            "a child that could not be written",
            2,
            vec![apple(1, same)],
            Some("cannot apply pie-0: exceeded quota"),
            (1, "False", "WriteFailed", "1 of 2 available: cannot apply pie-0: exceeded quota"),
        ),
    ];
    for (case, quantity, apples, last_error, (available, ready, reason, message)) in cases {
        let host = apples.into_iter().fold(MockHost::new(myapple).with(pie(quantity)), MockHost::with);
        let request = host.request(PIE);
        let request = last_error.map_or(request.clone(), |error| request.attempt(2, error));
        let outcome = request.run().unwrap();
        let expected = (available, ready.to_owned(), reason.to_owned(), message.to_owned());
        assert_eq!(seen(&outcome), expected, "{case}");
    }
}

#[test]
fn there_is_a_child_for_each_index() {
    let host = MockHost::new(myapple).with(pie(3));
    let children = host.reconcile(PIE).unwrap().children::<ConfigMap>();
    assert_eq!(children.iter().map(Object::name).collect::<Vec<_>>(), ["pie-0", "pie-1", "pie-2"]);
    assert!(children.iter().all(|child| child.data == Some(data("red", "medium"))));
}

#[test]
fn an_object_that_is_going_or_gone_is_left_to_the_garbage_collector() {
    let mut host = MockHost::new(myapple).with(pie(3));
    host.edit::<MyApple>(PIE, |pie| {
        pie.metadata.finalizers = Some(vec!["example.com/hold".into()]);
        pie.metadata.deletion_timestamp = Some(Time(host_time()));
    });
    let outcome = host.reconcile(PIE).unwrap();
    assert!(outcome.leaves_children() && outcome.leaves_status());

    let last = host.remove::<MyApple>(PIE);
    let outcome = host.request(PIE).gone(&last).run().unwrap();
    assert!(outcome.leaves_children() && outcome.leaves_status());
}

fn host_time() -> k8s_openapi::jiff::Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

#[test]
fn a_life_of_scaling_editing_and_deleting_settles_each_time() {
    let mut host = MockHost::new(myapple).with(pie(3));
    let status = |host: &MockHost| host.get::<MyApple>(PIE).unwrap().status.unwrap();
    let apples = |host: &MockHost| host.list::<ConfigMap>().iter().map(|map| map.name().to_owned()).collect::<Vec<_>>();

    host.settle(PIE).unwrap();
    assert_eq!(apples(&host), ["pie-0", "pie-1", "pie-2"]);
    assert_eq!(status(&host).available, 3);
    assert_eq!(status(&host).observed_generation, Some(1));

    for quantity in [5, 1] {
        host.edit::<MyApple>(PIE, |pie| pie.spec.quantity = quantity);
        host.settle(PIE).unwrap();
        assert_eq!(host.list::<ConfigMap>().len(), usize::try_from(quantity).unwrap());
        assert_eq!(status(&host).available, quantity);
    }
    assert_eq!(status(&host).observed_generation, Some(3));

    host.edit::<ConfigMap>(("default", "pie-0"), |apple| apple.data = Some(data("green", "medium")));
    host.settle(PIE).unwrap();
    assert_eq!(host.get::<ConfigMap>(("default", "pie-0")).unwrap().data, Some(data("red", "medium")));

    host.remove::<ConfigMap>(("default", "pie-0"));
    host.settle(PIE).unwrap();
    assert_eq!(apples(&host), ["pie-0"]);
    assert!(status(&host).conditions.is_true("Ready"));
}

#[test]
fn ready_changes_its_time_with_its_status_only() {
    let mut host = MockHost::new(myapple).with(pie(1));
    let since = |host: &MockHost| {
        let conditions = host.get::<MyApple>(PIE).unwrap().status.unwrap().conditions;
        conditions.get("Ready").unwrap().last_transition_time.0.to_string()
    };
    host.settle(PIE).unwrap();
    assert_eq!(since(&host), "2026-01-01T00:00:00Z");

    host.advance(std::time::Duration::from_secs(60));
    host.edit::<MyApple>(PIE, |pie| pie.spec.color = "green".into());
    host.fail_child::<ConfigMap>(("default", "pie-0"), "exceeded quota");
    host.settle(PIE).unwrap_err();
    assert_eq!(since(&host), "2026-01-01T00:01:00Z");

    host.advance(std::time::Duration::from_secs(60));
    host.settle(PIE).unwrap_err();
    assert_eq!(since(&host), "2026-01-01T00:01:00Z");
}

#[test]
fn a_foreign_config_map_of_a_wanted_name_is_not_taken_over() {
    let foreign = apple(0, |apple| apple.metadata.owner_references = None);
    let mut host = MockHost::new(myapple).with(foreign).with(pie(2));
    host.settle(PIE).unwrap_err();
    let status = host.get::<MyApple>(PIE).unwrap().status.unwrap();
    let ready = status.conditions.get("Ready").unwrap();
    assert_eq!((status.available, ready.reason.as_str()), (1, "WriteFailed"));
    assert!(ready.message.contains("v1 ConfigMap default/pie-0 exists already"), "{}", ready.message);
}

#[test]
fn without_the_right_to_read_children_the_reconcile_fails() {
    let host = MockHost::new(myapple).refuse(Permission::of::<ConfigMap>().verbs([Verb::Read])).with(pie(1));
    assert_eq!(
        host.reconcile(PIE).unwrap_err().message,
        "cannot read the cache: not granted: read v1 ConfigMap default/pie-0: the administrator's file does not allow it; add under grants: - { apiVersion: v1, kind: ConfigMap, verbs: [read], namespaces: [default] }"
    );
}

#[test]
fn the_custom_resource_definition_is_as_reviewed() {
    insta::assert_snapshot!("crd", serde_saphyr::to_string(&MyApple::crd()).unwrap());
}

#[test]
fn the_administrators_file_grants_exactly_what_is_asked() {
    let file = serde_saphyr::from_str(include_str!("../myapple.yaml")).unwrap();
    MockHost::new(myapple).assert_granted(&file);
}

#[test]
fn the_examples_are_myapples() {
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let apples: Vec<MyApple> = serde_saphyr::from_multiple(&text).unwrap();
        assert!(!apples.is_empty(), "{}", path.display());
        for apple in apples {
            assert!(apple.spec.quantity >= 1, "{}", apple.key());
        }
    }
}
