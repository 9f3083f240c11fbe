#![allow(clippy::unwrap_used, reason = "a failed test should panic")]
#![allow(clippy::needless_pass_by_value, reason = "fixtures are written in place")]

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Error, Manager, apply, path::Element, set::Set, track_update};
use crate::schema::Schema;

const BEFORE: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-01-02T00:00:00Z";

pub(super) fn manager(name: &str) -> Manager {
    Manager { name: name.to_owned(), api_version: "v1".to_owned(), time: NOW.to_owned(), ..Manager::default() }
}

pub(super) fn earlier(name: &str) -> Manager {
    Manager { time: BEFORE.to_owned(), ..manager(name) }
}

fn config_maps() -> Arc<Schema> {
    Schema::builtin("", "v1", "ConfigMap").unwrap()
}

fn config_map(data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a", "namespace": "default" }, "data": data })
}

pub(super) fn pods() -> Arc<Schema> {
    Schema::builtin("", "v1", "Pod").unwrap()
}

fn pod(spec: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a", "namespace": "default" }, "spec": spec })
}

/// Returns each manager's name, operation and fields.
fn owners(object: &Value) -> Vec<(&str, &str, &Value)> {
    let entries = object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    entries
        .iter()
        .map(|entry| (entry["manager"].as_str().unwrap(), entry["operation"].as_str().unwrap(), &entry["fieldsV1"]))
        .collect()
}

pub(super) fn bare(object: &Value) -> Value {
    super::bare(Some(object))
}

fn conflicts(result: Result<Value, Error>) -> Vec<(String, String)> {
    match result {
        Err(Error::Conflicts(conflicts)) => conflicts.into_iter().map(|c| (c.message, c.field)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_create_by_apply_owns_what_it_names() {
    let applied = config_map(json!({ "color": "red" }));
    let created = apply(None, &applied, &config_maps(), &manager("a"), false).unwrap();
    assert_eq!(bare(&created), applied);
    assert_eq!(
        created["metadata"]["managedFields"],
        json!([{
            "manager": "a", "operation": "Apply", "apiVersion": "v1", "time": NOW,
            "fieldsType": "FieldsV1", "fieldsV1": { "f:data": { "f:color": {} } }
        }])
    );
}

#[test]
fn an_update_owns_what_it_changes_and_takes_it_from_others() {
    let mut created = config_map(json!({ "color": "red", "size": "small" }));
    track_update(None, &mut created, &config_maps(), &earlier("creator"));
    assert_eq!(
        owners(&created),
        [("creator", "Update", &json!({ "f:data": { ".": {}, "f:color": {}, "f:size": {} } }))]
    );

    let mut edited = created.clone();
    edited["data"]["color"] = json!("blue");
    edited["metadata"]["labels"] = json!({ "app": "x" });
    track_update(Some(&created), &mut edited, &config_maps(), &manager("editor"));
    assert_eq!(
        owners(&edited),
        [
            ("creator", "Update", &json!({ "f:data": { ".": {}, "f:size": {} } })),
            (
                "editor",
                "Update",
                &json!({ "f:data": { "f:color": {} }, "f:metadata": { "f:labels": { ".": {}, "f:app": {} } } })
            ),
        ]
    );
    assert_eq!(edited["metadata"]["managedFields"][0]["time"], BEFORE);
    assert_eq!(edited["metadata"]["managedFields"][1]["time"], NOW);
}

#[test]
fn an_update_that_changes_nothing_keeps_owners_and_times() {
    let mut created = config_map(json!({ "color": "red" }));
    track_update(None, &mut created, &config_maps(), &earlier("creator"));
    for name in ["creator", "other"] {
        let mut same = created.clone();
        track_update(Some(&created), &mut same, &config_maps(), &manager(name));
        assert_eq!(same, created);
        let mut without_owners = bare(&created);
        track_update(Some(&created), &mut without_owners, &config_maps(), &manager(name));
        assert_eq!(without_owners, created);
    }
}

#[test]
fn an_owner_of_nothing_vanishes() {
    let mut created = config_map(json!({ "color": "red" }));
    track_update(None, &mut created, &config_maps(), &earlier("creator"));
    let mut emptied = created.clone();
    emptied.as_object_mut().unwrap().remove("data");
    track_update(Some(&created), &mut emptied, &config_maps(), &manager("remover"));
    assert_eq!(emptied["metadata"].get("managedFields"), None);
}

#[test]
fn an_empty_list_of_owners_forgets_them() {
    let mut created = config_map(json!({ "color": "red" }));
    track_update(None, &mut created, &config_maps(), &earlier("creator"));
    let mut same = created.clone();
    for reset in [json!([]), json!([{}])] {
        same["metadata"]["managedFields"] = reset;
        track_update(Some(&created), &mut same, &config_maps(), &manager("x"));
        assert_eq!(owners(&same), []);
    }
    same["metadata"]["managedFields"] = json!([{ "manager": "garbage" }]);
    track_update(Some(&created), &mut same, &config_maps(), &manager("x"));
    assert_eq!(same, created, "what cannot be read does not count");
}

#[test]
fn status_has_owners_of_its_own() {
    let mut created = pod(json!({ "hostname": "h" }));
    track_update(None, &mut created, &pods(), &earlier("kubelet"));
    let mut with_status = created.clone();
    with_status["status"] = json!({ "phase": "Running" });
    let status =
        Manager { subresource: Some("status".to_owned()), ignore: vec!["spec".to_owned()], ..manager("kubelet") };
    track_update(Some(&created), &mut with_status, &pods(), &status);
    assert_eq!(
        with_status["metadata"]["managedFields"],
        json!([
            { "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": BEFORE,
              "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": { ".": {}, "f:hostname": {} } } },
            { "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": NOW, "subresource": "status",
              "fieldsType": "FieldsV1", "fieldsV1": { "f:status": { ".": {}, "f:phase": {} } } },
        ])
    );
}

#[test]
fn what_a_write_cannot_change_it_does_not_own() {
    let spec_only = Manager { ignore: vec!["status".to_owned()], ..manager("a") };
    let mut applied = pod(json!({ "hostname": "h" }));
    applied["status"] = json!({ "phase": "Running" });
    let created = apply(None, &applied, &pods(), &spec_only, false).unwrap();
    assert_eq!(bare(&created), pod(json!({ "hostname": "h" })));
    assert_eq!(owners(&created), [("a", "Apply", &json!({ "f:spec": { "f:hostname": {} } }))]);

    let status_only = Manager {
        subresource: Some("status".to_owned()),
        ignore: vec!["spec".to_owned(), "metadata".to_owned()],
        ..manager("a")
    };
    applied["spec"]["hostname"] = json!("other");
    applied["metadata"]["labels"] = json!({ "a": "b" });
    let changed = apply(Some(&created), &applied, &pods(), &status_only, false).unwrap();
    assert_eq!(changed["spec"], json!({ "hostname": "h" }));
    assert_eq!(changed["metadata"].get("labels"), None);
    assert_eq!(changed["status"], json!({ "phase": "Running" }));
    assert_eq!(
        owners(&changed),
        [
            ("a", "Apply", &json!({ "f:spec": { "f:hostname": {} } })),
            ("a", "Apply", &json!({ "f:status": { "f:phase": {} } })),
        ]
    );
}

#[test]
fn a_conflict_names_the_owner_and_the_field() {
    let mut live = config_map(json!({ "color": "red" }));
    track_update(None, &mut live, &config_maps(), &earlier("kubectl-edit"));
    let applied = config_map(json!({ "color": "blue" }));
    let refused = apply(Some(&live), &applied, &config_maps(), &manager("a"), false);
    assert_eq!(
        refused.clone().unwrap_err().to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using v1: .data.color"
    );
    assert_eq!(conflicts(refused), [("conflict with \"kubectl-edit\" using v1".to_owned(), ".data.color".to_owned())]);

    let forced = apply(Some(&live), &applied, &config_maps(), &manager("a"), true).unwrap();
    assert_eq!(bare(&forced), applied);
    assert_eq!(
        owners(&forced),
        [("a", "Apply", &json!({ "f:data": { "f:color": {} } })), ("kubectl-edit", "Update", &json!({ "f:data": {} }))],
    );
}

#[test]
fn several_conflicts_stand_by_owner() {
    let first =
        apply(None, &config_map(json!({ "a": "1", "b": "1" })), &config_maps(), &earlier("one"), false).unwrap();
    let both = apply(Some(&first), &config_map(json!({ "c": "1" })), &config_maps(), &earlier("two"), false).unwrap();
    let applied = config_map(json!({ "a": "2", "b": "2", "c": "2" }));
    let refused = apply(Some(&both), &applied, &config_maps(), &manager("x"), false).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Apply failed with 3 conflicts: conflicts with \"one\":\n- .data.a\n- .data.b\nconflicts with \"two\":\n- .data.c"
    );
}

#[test]
fn equal_values_are_owned_together_and_stay_while_one_wants_them() {
    let schema = config_maps();
    let one =
        apply(None, &config_map(json!({ "color": "red", "size": "1" })), &schema, &earlier("one"), false).unwrap();
    let both = apply(Some(&one), &config_map(json!({ "color": "red" })), &schema, &manager("two"), false).unwrap();
    assert_eq!(bare(&both), bare(&one));
    assert_eq!(
        owners(&both),
        [
            ("two", "Apply", &json!({ "f:data": { "f:color": {} } })),
            ("one", "Apply", &json!({ "f:data": { "f:color": {}, "f:size": {} } })),
        ]
    );
    let left = apply(Some(&both), &config_map(json!({})), &schema, &manager("one"), false).unwrap();
    assert_eq!(left["data"], json!({ "color": "red" }));
    let mut nothing = config_map(json!({}));
    nothing.as_object_mut().unwrap().remove("data");
    let gone = apply(Some(&left), &nothing, &schema, &manager("two"), false).unwrap();
    assert_eq!(gone.get("data"), None, "a map that becomes empty goes with its last key");
    assert_eq!(owners(&gone), []);
}

#[test]
fn what_is_no_longer_applied_goes_and_what_others_own_stays() {
    let schema = pods();
    let applied = pod(json!({
        "containers": [{ "name": "web", "image": "1", "env": [{ "name": "A", "value": "1" }] }, { "name": "log", "image": "1" }],
        "securityContext": { "runAsUser": 1 }, "hostname": "h",
    }));
    let live = apply(None, &applied, &schema, &earlier("a"), false).unwrap();
    let mut edited = live.clone();
    edited["spec"]["containers"][0]["tty"] = json!(true);
    edited["spec"]["containers"][1]["tty"] = json!(true);
    edited["spec"]["securityContext"]["runAsGroup"] = json!(2);
    track_update(Some(&live), &mut edited, &schema, &earlier("b"));

    let less = pod(json!({ "containers": [{ "name": "web", "image": "2" }] }));
    let after = apply(Some(&edited), &less, &schema, &manager("a"), false).unwrap();
    assert_eq!(
        after["spec"],
        json!({
            // The owner of an item's field does not own the item.
            "containers": [{ "name": "web", "image": "2", "tty": true }],
            "securityContext": { "runAsGroup": 2 },
        })
    );
}

#[test]
fn applied_items_stand_as_applied_and_others_keep_their_place() {
    let schema = pods();
    let named = |names: &[&str]| {
        let items: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        pod(json!({ "containers": items }))
    };
    let cases: [(&[&str], &[&str], &[&str]); 7] = [
        (&["a", "b"], &["b", "a"], &["b", "a"]),
        (&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]),
        (&["x", "a", "y", "b", "z"], &["a", "b"], &["x", "a", "y", "b", "z"]),
        (&["x", "a", "y", "b", "z"], &["a", "n", "b"], &["x", "a", "y", "n", "b", "z"]),
        (&["a"], &["n", "a"], &["n", "a"]),
        (&["a", "b"], &["c", "d"], &["a", "b", "c", "d"]),
        (&["a", "b", "c"], &["b", "a", "x"], &["b", "c", "a", "x"]),
    ];
    for (live, applied, expected) in cases {
        let after = apply(Some(&named(live)), &named(applied), &schema, &manager("a"), false).unwrap();
        assert_eq!(after["spec"], named(expected)["spec"], "{live:?} {applied:?}");
    }
}

#[test]
fn items_have_keys_in_which_defaults_count() {
    let ports = |ports: Value| pod(json!({ "containers": [{ "name": "c", "ports": ports }] }));
    let created = apply(
        None,
        &ports(json!([{ "containerPort": 80 }, { "containerPort": 80, "protocol": "UDP" }])),
        &pods(),
        &manager("a"),
        false,
    );
    assert_eq!(
        owners(&created.unwrap())[0].2,
        &json!({ "f:spec": { "f:containers": { "k:{\"name\":\"c\"}": { ".": {}, "f:name": {}, "f:ports": {
            "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": { ".": {}, "f:containerPort": {} },
            "k:{\"containerPort\":80,\"protocol\":\"UDP\"}": { ".": {}, "f:containerPort": {}, "f:protocol": {} },
        } } } } })
    );
    let twice = ports(json!([{ "containerPort": 80 }, { "containerPort": 80, "protocol": "TCP" }]));
    let Err(Error::Invalid(why)) = apply(None, &twice, &pods(), &manager("a"), false) else {
        panic!("must be refused")
    };
    assert_eq!(
        why,
        "failed to create typed patch object (default/a; /v1, Kind=Pod): .spec.containers[name=\"c\"].ports: duplicate entries \
         for key [containerPort=80,protocol=\"TCP\"]"
    );
}

#[test]
fn sets_are_owned_by_value() {
    let finalizers = |names: Value| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a", "finalizers": names } });
    let schema = config_maps();
    let one = apply(None, &finalizers(json!(["x/1", "x/2"])), &schema, &manager("one"), false).unwrap();
    let both = apply(Some(&one), &finalizers(json!(["x/2", "x/3"])), &schema, &manager("two"), false).unwrap();
    assert_eq!(both["metadata"]["finalizers"], json!(["x/1", "x/2", "x/3"]));
    let left = apply(Some(&both), &finalizers(json!([])), &schema, &manager("one"), false).unwrap();
    assert_eq!(left["metadata"]["finalizers"], json!(["x/2", "x/3"]));
    assert_eq!(
        owners(&left),
        [("two", "Apply", &json!({ "f:metadata": { "f:finalizers": { "v:\"x/2\"": {}, "v:\"x/3\"": {} } } }))]
    );
}

#[test]
fn atomic_values_are_owned_whole() {
    let schema = Schema::builtin("", "v1", "Service").unwrap();
    let service = |selector: Value| json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "a" }, "spec": { "selector": selector } });
    let live = apply(None, &service(json!({ "a": "1" })), &schema, &manager("one"), false).unwrap();
    assert_eq!(owners(&live)[0].2, &json!({ "f:spec": { "f:selector": {} } }));
    let other = service(json!({ "b": "2" }));
    let refused = apply(Some(&live), &other, &schema, &manager("two"), false);
    assert_eq!(conflicts(refused), [("conflict with \"one\"".to_owned(), ".spec.selector".to_owned())]);
    let forced = apply(Some(&live), &other, &schema, &manager("two"), true).unwrap();
    assert_eq!(forced["spec"], json!({ "selector": { "b": "2" } }));
    assert_eq!(owners(&forced), [("two", "Apply", &json!({ "f:spec": { "f:selector": {} } }))]);
}

#[test]
fn what_does_not_fit_the_schema_cannot_be_applied() {
    let cases = [
        (json!({ "hostnam": "x" }), ".spec.hostnam: field not declared in schema"),
        (json!({ "hostname": 1 }), ".spec.hostname: expected string, got &value.valueUnstructured{Value:1}"),
        (json!({ "containers": {} }), ".spec.containers: expected list, got &{map[]}"),
        (json!({ "nodeSelector": [] }), ".spec.nodeSelector: expected map, got &{[]}"),
        (json!({ "hostNetwork": "yes" }), ".spec.hostNetwork: expected boolean, got &{yes}"),
        (
            json!({ "activeDeadlineSeconds": "1" }),
            ".spec.activeDeadlineSeconds: expected numeric (int or float), got string",
        ),
        (
            json!({ "containers": ["a"] }),
            ".spec.containers: element 0: associative list with keys may not have non-map elements",
        ),
        (
            json!({ "containers": [{ "name": "a" }, { "name": "a" }] }),
            ".spec.containers: duplicate entries for key [name=\"a\"]",
        ),
    ];
    for (spec, expected) in cases {
        let expected = format!("failed to create typed patch object (default/a; /v1, Kind=Pod): {expected}");
        assert_eq!(apply(None, &pod(spec), &pods(), &manager("a"), false), Err(Error::Invalid(expected)));
    }
}

#[test]
fn a_live_list_with_the_same_key_twice_is_no_obstacle() {
    let mut live =
        pod(json!({ "containers": [{ "name": "a", "image": "1" }, { "name": "a", "image": "2" }, { "name": "b" }] }));
    track_update(None, &mut live, &pods(), &earlier("w"));
    let after = apply(
        Some(&live),
        &pod(json!({ "containers": [{ "name": "a", "image": "3" }] })),
        &pods(),
        &manager("x"),
        true,
    )
    .unwrap();
    assert_eq!(after["spec"]["containers"], json!([{ "name": "a", "image": "3" }, { "name": "b" }]));
    let mut edited = live.clone();
    edited["spec"]["containers"][1]["image"] = json!("4");
    track_update(Some(&live), &mut edited, &pods(), &manager("x"));
    assert_eq!(
        owners(&edited)[1],
        ("x", "Update", &json!({ "f:spec": { "f:containers": { "k:{\"name\":\"a\"}": {} } } }))
    );
}

#[test]
fn who_wrote_before_anyone_kept_account_owns_what_was_there() {
    let live = config_map(json!({ "color": "red" }));
    let refused = apply(Some(&live), &config_map(json!({ "color": "blue" })), &config_maps(), &manager("a"), false);
    assert_eq!(
        conflicts(refused),
        [("conflict with \"before-first-apply\" using v1".to_owned(), ".data.color".to_owned())]
    );
}

#[test]
fn kubectl_takes_over_from_its_client_side_apply() {
    let schema = config_maps();
    let annotated = |data: Value| {
        let mut object = config_map(data.clone());
        let text = config_map(data).to_string();
        object["metadata"]["annotations"] = json!({ "kubectl.kubernetes.io/last-applied-configuration": text });
        object
    };
    let mut live = annotated(json!({ "color": "red" }));
    track_update(None, &mut live, &schema, &earlier("kubectl-client-side-apply"));
    let applied = config_map(json!({ "color": "blue" }));
    assert_eq!(conflicts(apply(Some(&live), &applied, &schema, &manager("other"), false)).len(), 1);
    let after = apply(Some(&live), &applied, &schema, &manager("kubectl"), false).unwrap();
    assert_eq!(after["data"], json!({ "color": "blue" }));
    assert_eq!(
        after["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"],
        format!("{applied}\n")
    );

    let mut edited = live.clone();
    edited["data"]["color"] = json!("green");
    track_update(Some(&live), &mut edited, &schema, &earlier("kubectl-edit"));
    assert_eq!(conflicts(apply(Some(&edited), &applied, &schema, &manager("kubectl"), false)).len(), 1);
}

#[test]
fn the_eleventh_update_manager_makes_the_oldest_ancient() {
    let mut object = config_map(json!({}));
    track_update(None, &mut object, &config_maps(), &earlier("creator"));
    for n in 0..12 {
        let old = object.clone();
        object["data"][format!("k{n:02}")] = json!("v");
        let writer = Manager { time: format!("2026-01-01T00:00:{n:02}Z"), ..manager(&format!("m{n:02}")) };
        track_update(Some(&old), &mut object, &config_maps(), &writer);
    }
    let names: Vec<&str> = owners(&object).iter().map(|owner| owner.0).collect();
    assert_eq!(names, ["ancient-changes", "m03", "m04", "m05", "m06", "m07", "m08", "m09", "m10", "m11"]);
    assert_eq!(owners(&object)[0].2, &json!({ "f:data": { ".": {}, "f:k00": {}, "f:k01": {}, "f:k02": {} } }));
    assert_eq!(object["metadata"]["managedFields"][0]["time"], "2026-01-01T00:00:02Z");
}

#[test]
fn fields_v1_is_written_as_kubernetes_writes_it() {
    let cases = [
        json!({}),
        json!({ "f:a": {} }),
        json!({ "f:a": { ".": {}, "f:b": {} } }),
        json!({ "f:a.b/c": { "f:d:e": {} } }),
        json!({ "f:l": { "k:{\"a\":1,\"b\":\"x\"}": { ".": {}, "f:a": {} } } }),
        json!({ "f:s": { "v:\"a\\u003cb\"": {}, "v:1": {}, "v:true": {} } }),
        json!({ "f:i": { "i:3": {} } }),
    ];
    for fields in cases {
        assert_eq!(Set::parse(&fields).serialize(), fields);
    }
    assert_eq!(
        Set::parse(
            &json!({ "x:unknown": {}, "f": {}, "k:not json": {}, "f:a": { "k:{\"b\": 1.0, \"a\": \"<\"}": {} } })
        )
        .serialize(),
        json!({ "f:a": { "k:{\"a\":\"\\u003c\",\"b\":1}": {} } })
    );
    let path = Set::parse(&json!({ "f:l": { "k:{\"a\":1,\"b\":\"x\"}": { "f:s": { "v:\"y\"": {} } } } })).paths();
    let shown: String = path[0].iter().map(Element::to_string).collect();
    assert_eq!(shown, ".l[a=1,b=\"x\"].s[=\"y\"]");
}
