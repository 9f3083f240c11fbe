#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

mod model;

use proptest::prelude::*;
use serde_json::{Value, json};

use self::model::{Operation, Path, Schema, Server, Storage};
use super::{Rules, Values};
use crate::{
    key::TypeMeta,
    object::{Object, Subresource},
};

const US: &str = "pilothouse.apples";

fn same(a: &Value, b: &Value) -> bool {
    super::same(a, &serde_json::from_str(&b.to_string()).unwrap())
}

fn text_holds(live: &str, owned: &str, desired: &Value) -> bool {
    super::text_holds(Rules::STRICT, live, owned, desired)
}

/// As a kind's own rules have it, for a text that was applied last.
fn untouched(built_in: bool, live: &Value, owned: &Value, desired: &Value) -> bool {
    let values = if built_in { Values::Any } else { Values::Extended };
    super::text_holds(Rules { values, built_in }, &live.to_string(), &owned.to_string(), desired)
}

fn check(live: &Value, owned: &Value, desired: &Value) -> bool {
    text_holds(&live.to_string(), &owned.to_string(), desired)
}

/// A ConfigMap as a plugin has applied it for its owner, and as others have added to it since.
fn config_map() -> (Value, Value, Value) {
    let owner = json!({
        "apiVersion": "stable.example.com/v1", "kind": "MyApple", "name": "red", "uid": "11111111-2222-3333-4444-555555555555",
        "controller": true, "blockOwnerDeletion": true,
    });
    let live = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "red-0", "namespace": "default", "uid": "aaaaaaaa-0000-0000-0000-000000000000", "resourceVersion": "7",
            "labels": {"app": "apples", "added": "by-someone"},
            "annotations": {"note": "by-someone"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "other"}, owner.clone()],
        },
        "data": {"color": "red", "size": "small", "added": "by-someone"},
    });
    let owned = json!({
        "f:metadata": {
            "f:labels": {"f:app": {}},
            "f:ownerReferences": {"k:{\"uid\":\"11111111-2222-3333-4444-555555555555\"}": {}},
        },
        "f:data": {"f:color": {}, "f:size": {}},
    });
    let desired = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "red-0", "namespace": "default", "labels": {"app": "apples"}, "ownerReferences": [owner]},
        "data": {"color": "red", "size": "small"},
    });
    (live, owned, desired)
}

fn with(mut value: Value, pointer: &str, change: impl FnOnce(&mut Value)) -> Value {
    change(value.pointer_mut(pointer).unwrap());
    value
}

fn set(value: Value, parent: &str, name: &str, to: Value) -> Value {
    with(value, parent, |parent| parent[name] = to)
}

fn without(value: Value, parent: &str, name: &str) -> Value {
    with(value, parent, |parent| drop(parent.as_object_mut().unwrap().remove(name)))
}

#[test]
fn an_applied_text_holds_though_others_add_to_the_object() {
    let (live, owned, desired) = config_map();
    assert!(check(&live, &owned, &desired));
}

#[test]
fn an_edited_a_removed_and_a_new_value_do_not_hold() {
    let (live, owned, desired) = config_map();
    assert!(!check(&set(live.clone(), "/data", "color", json!("blue")), &owned, &desired));
    assert!(!check(&without(live.clone(), "/data", "color"), &owned, &desired));
    assert!(!check(&live, &owned, &set(desired.clone(), "/data", "color", json!("blue"))));
    assert!(!check(&live, &owned, &set(desired, "/data", "taste", json!("sweet"))));
}

#[test]
fn a_value_that_is_so_but_is_not_owned_does_not_hold() {
    let (live, owned, desired) = config_map();
    assert!(!check(&live, &owned, &set(desired.clone(), "/data", "added", json!("by-someone"))));
    assert!(!check(&live, &json!({}), &desired));
}

#[test]
fn a_field_that_is_no_longer_desired_does_not_hold() {
    let (live, owned, desired) = config_map();
    assert!(!check(&live, &owned, &without(desired.clone(), "/data", "size")));
    assert!(!check(&live, &owned, &without(desired.clone(), "", "data")));
    assert!(!check(&live, &owned, &without(desired.clone(), "/metadata", "labels")));
    assert!(!check(&live, &owned, &without(desired, "/metadata", "ownerReferences")));
}

#[test]
fn owner_references_are_found_by_uid_and_compared_whole() {
    let (live, owned, desired) = config_map();
    let edited = set(live.clone(), "/metadata/ownerReferences/1", "controller", json!(false));
    assert!(!check(&edited, &owned, &desired));
    let extended = set(live.clone(), "/metadata/ownerReferences/1", "more", json!(1));
    assert!(!check(&extended, &owned, &desired));
    let reordered = with(live.clone(), "/metadata/ownerReferences", |list| list.as_array_mut().unwrap().reverse());
    assert!(check(&reordered, &owned, &desired));
    let gone = with(live, "/metadata/ownerReferences", |list| drop(list.as_array_mut().unwrap().pop()));
    assert!(!check(&gone, &owned, &desired));
}

#[test]
fn identity_is_compared_but_never_owned() {
    let (live, owned, desired) = config_map();
    assert!(check(&live, &owned, &without(desired.clone(), "/metadata", "namespace")));
    assert!(check(&live, &owned, &set(desired.clone(), "/metadata", "creationTimestamp", Value::Null)));
    assert!(check(&live, &owned, &set(desired.clone(), "/metadata", "resourceVersion", json!("7"))));
    assert!(!check(&live, &owned, &set(desired.clone(), "/metadata", "resourceVersion", json!("6"))));
    assert!(!check(&live, &owned, &set(desired.clone(), "/metadata", "name", json!("red-1"))));
    assert!(!check(&live, &owned, &set(desired, "", "kind", json!("Secret"))));
}

#[test]
fn empty_labels_are_left_out_by_the_server_and_hold() {
    let live = json!({"metadata": {"name": "a"}});
    let owned = json!({"f:metadata": {"f:labels": {}}});
    for empty in [json!({}), Value::Null] {
        assert!(check(&live, &owned, &json!({"metadata": {"name": "a", "labels": empty}})));
        assert!(!check(&live, &json!({}), &json!({"metadata": {"name": "a", "labels": empty}})));
    }
    let labelled = json!({"metadata": {"name": "a", "labels": {"x": "1"}}});
    assert!(!check(&labelled, &owned, &labelled), "never owned: the set names an empty map");
    assert!(check(&live, &json!({}), &json!({"metadata": {"name": "a", "finalizers": [], "ownerReferences": []}})));
}

#[test]
fn a_status_is_judged_by_itself() {
    let live = json!({"metadata": {"name": "red"}, "spec": {"quantity": 3}, "status": {
        "available": 3,
        "conditions": [{"type": "Other", "status": "True"}, {"type": "Ready", "status": "True", "reason": "AllThere"}],
    }});
    let owned = json!({"f:status": {
        "f:available": {},
        "f:conditions": {"k:{\"type\":\"Ready\"}": {".": {}, "f:type": {}, "f:status": {}, "f:reason": {}}},
    }});
    let desired = json!({"status": {
        "available": 3.0, "conditions": [{"type": "Ready", "status": "True", "reason": "AllThere"}],
    }});
    assert!(check(&live, &owned, &desired));
    assert!(!check(&live, &owned, &set(desired.clone(), "/status", "available", json!(2))));
    assert!(!check(&live, &owned, &set(desired.clone(), "/status/conditions/0", "status", json!("False"))));
    assert!(!check(&live, &owned, &without(desired.clone(), "/status/conditions/0", "reason")));
    assert!(!check(&live, &owned, &without(desired, "/status/conditions/0", "type")));
}

#[test]
fn a_key_that_came_from_a_default_is_found() {
    let live = json!({"spec": {"ports": [{"port": 80, "protocol": "TCP"}, {"port": 80, "protocol": "UDP"}]}});
    let owned = json!({"f:spec": {"f:ports": {
        "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}},
        "k:{\"port\":80,\"protocol\":\"UDP\"}": {".": {}, "f:port": {}, "f:protocol": {}},
    }}});
    assert!(check(&live, &owned, &json!({"spec": {"ports": [{"port": 80}, {"port": 80, "protocol": "UDP"}]}})));
    // Said where it was not said before: another field is owned.
    let said = json!({"spec": {"ports": [{"port": 80, "protocol": "TCP"}, {"port": 80, "protocol": "UDP"}]}});
    assert!(!check(&live, &owned, &said));
}

#[test]
fn lists_that_an_apply_would_reorder_or_refuse_do_not_hold() {
    let owned = json!({"f:spec": {"f:names": {"v:\"a\"": {}, "v:\"b\"": {}}}});
    let names = |names: &[&str]| json!({"spec": {"names": names}});
    assert!(check(&names(&["x", "a", "y", "b"]), &owned, &names(&["a", "b"])));
    assert!(!check(&names(&["b", "a"]), &owned, &names(&["a", "b"])));
    assert!(!check(&names(&["a", "b"]), &owned, &names(&["a", "a"])));
    assert!(!check(&names(&["a", "b"]), &owned, &names(&["a", "b", "b"])));
    assert!(!check(&names(&["a", "b", "a"]), &owned, &names(&["a", "b"])));
    assert!(!check(&names(&["a"]), &owned, &names(&["a", "b"])));
}

#[test]
fn atomic_values_are_compared_whole() {
    let owned = json!({"f:spec": {"f:selector": {}, "f:args": {}}});
    let live = json!({"spec": {"selector": {"app": "a"}, "args": ["x", "y"]}});
    assert!(check(&live, &owned, &live));
    assert!(!check(&set(live.clone(), "/spec/selector", "tier", json!("web")), &owned, &live));
    assert!(!check(&set(live.clone(), "/spec", "args", json!(["y", "x"])), &owned, &live));
}

#[test]
fn a_null_holds_where_it_is_owned_and_nothing_is_there() {
    let owned = json!({"f:spec": {"f:a": {}}});
    let desired = json!({"spec": {"a": null}});
    assert!(check(&json!({"spec": {}}), &owned, &desired));
    assert!(check(&json!({"spec": {"a": null}}), &owned, &desired));
    assert!(!check(&json!({"spec": {"a": 1}}), &owned, &desired));
    assert!(!check(&json!({"spec": {}}), &json!({"f:spec": {"f:b": {}}}), &desired));
    assert!(!check(&json!({}), &owned, &desired), "the apply would bring the spec back");
}

#[test]
fn an_empty_list_that_no_field_set_can_name_holds() {
    let desired = json!({"status": {"ready": true, "conditions": []}});
    let owned = json!({"f:status": {"f:ready": {}}});
    assert!(check(&desired, &owned, &desired));
    assert!(!check(&json!({"status": {"ready": true}}), &owned, &desired));
    assert!(!check(&json!({"status": {"ready": true, "conditions": [1]}}), &owned, &desired));
}

#[test]
fn numbers_compare_by_value() {
    let equal = |a: Value, b: Value| assert!(same(&a, &b), "{a} {b}");
    let differ = |a: Value, b: Value| assert!(!same(&a, &b), "{a} {b}");
    equal(json!(1), json!(1.0));
    equal(json!(0), json!(-0.0));
    equal(json!(0.5), json!(5e-1));
    equal(json!(18_446_744_073_709_551_615_u64), json!(18_446_744_073_709_551_615_u64));
    equal(json!(1e300), json!(1e300));
    differ(json!(9_007_199_254_740_993_i64), json!(9_007_199_254_740_992_f64));
    differ(json!(18_446_744_073_709_551_615_u64), json!(18_446_744_073_709_551_616_f64));
    differ(json!(1), json!("1"));
    differ(json!(0), json!(false));
    differ(json!(0), Value::Null);
}

#[test]
fn texts_that_are_no_field_sets_do_not_hold() {
    let live = json!({"spec": {"a": [1], "b": 1}});
    let desired = json!({"spec": {"a": [1]}});
    for owned in [
        "",
        "null",
        "[]",
        "\"f:spec\"",
        "{",
        "{\"spec\":{}}",
        "{\"f:spec\":null}",
        "{\"f:spec\":{\"f:a\":[]}}",
        "{\"f:spec\":{\"f:a\":{\"i:0\":{}}}}",
        "{\"f:spec\":{\"f:a\":{\"v:\":{}}}}",
        "{\"f:spec\":{\"f:a\":{\"v:1\":{\"f:x\":{}}}}}",
        "{\"f:spec\":{\"f:a\":{\"k:1\":{}}}}",
        "{\"f:spec\":{\"f:a\":{\"k:{}\":{}}}}",
        "{\"f:spec\":{\"f:a\":{\"v:1\":{},\"f:x\":{}}}}",
        "{\"f:spec\":{\"f:a\":{\"k:{\\\"x\\\":1}\":{},\"k:{\\\"y\\\":1}\":{}}}}",
        "{\"f:spec\":{\"\":{}}}",
        "{\"f:spec\":{\"é\":{}}}",
        "{\".\":1,\"f:spec\":{\"f:a\":{\"v:1\":{}}}}",
    ] {
        assert!(!text_holds(&live.to_string(), owned, &desired), "{owned}");
    }
    assert!(text_holds(&live.to_string(), "{\"f:spec\":{\"f:a\":{\"v:1\":{}}}}", &desired));
    let deep = format!("{}{}", "{\"f:a\":".repeat(100_000), "}".repeat(100_000));
    assert!(!text_holds(&live.to_string(), &deep, &desired));
}

#[test]
fn the_entry_of_the_manager_and_the_subresource_is_the_one_that_counts() {
    let object = json!({
        "apiVersion": "stable.example.com/v1", "kind": "MyApple",
        "metadata": {
            "name": "red", "namespace": "default", "uid": "11111111-2222-3333-4444-555555555555", "resourceVersion": "7",
            "managedFields": [
                {"manager": US, "operation": "Apply", "apiVersion": "stable.example.com/v1", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:spec": {"f:color": {}}}},
                {"manager": US, "operation": "Apply", "apiVersion": "stable.example.com/v1", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:status": {"f:available": {}}}, "subresource": "status"},
            ],
        },
        "spec": {"color": "red"}, "status": {"available": 1},
    });
    let live =
        Object::parse(object.to_string().as_bytes(), &TypeMeta::new("stable.example.com/v1", "MyApple")).unwrap();
    let (spec, status) = (json!({"spec": {"color": "red"}}), json!({"status": {"available": 1}}));
    assert!(super::holds(&live, US, None, &spec));
    assert!(super::holds(&live, US, Some(Subresource::Status), &status));
    assert!(!super::holds(&live, US, Some(Subresource::Status), &spec));
    assert!(!super::holds(&live, US, None, &status));
    assert!(!super::holds(&live, "pilothouse.pears", None, &spec));
}

#[test]
fn an_empty_list_is_none_in_a_built_in_kind() {
    let built_in = |live: &Value, owned: &Value, desired: &Value| {
        let rules = Rules { values: Values::Same, built_in: true };
        super::text_holds(rules, &live.to_string(), &owned.to_string(), desired)
    };
    let desired = json!({"spec": {"name": "a", "env": [], "tolerations": []}, "rules": []});
    let owned = json!({"f:spec": {"f:name": {}, "f:tolerations": {}}, "f:rules": {}});
    let live = json!({"spec": {"name": "a"}, "rules": null});
    assert!(built_in(&live, &owned, &desired));
    assert!(!check(&live, &owned, &desired), "a custom resource keeps an empty list");
    assert!(!built_in(&set(live.clone(), "/spec", "tolerations", json!([{"key": "a"}])), &owned, &desired));
    assert!(!built_in(&set(live, "", "rules", json!([{"verbs": ["get"]}])), &owned, &desired));
    for (api_version, expected) in [
        ("v1", true),
        ("apps/v1", true),
        ("rbac.authorization.k8s.io/v1", true),
        ("apiextensions.k8s.io/v1", false),
        ("gateway.networking.k8s.io/v1", false),
        ("stable.example.com/v1", false),
    ] {
        assert_eq!(super::is_built_in(api_version), expected, "{api_version}");
    }
}

/// A Deployment as it was sent, as the server stores it, and what the field set of the apply is.
fn deployment() -> (Value, Value, Value) {
    let desired = json!({"metadata": {"name": "a", "labels": {"app": "a"}}, "spec": {
        "replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": null}}, "tolerations": [],
        "containers": [
            {"name": "first", "limits": {"memory": "1024Mi"}, "env": [{"name": "A", "value": ""}, {"name": "B", "value": "b"}]},
            {"name": "second", "ports": [{"port": 80}]},
        ],
        "volumes": [{"name": "v", "items": [{"key": "k"}]}],
    }});
    let owned = json!({"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": {
        "f:replicas": {}, "f:strategy": {"f:rollingUpdate": {"f:maxSurge": {}}}, "f:tolerations": {},
        "f:containers": {
            "k:{\"name\":\"first\"}": {".": {}, "f:name": {}, "f:limits": {"f:memory": {}}, "f:env": {
                "k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:value": {}},
                "k:{\"name\":\"B\"}": {".": {}, "f:name": {}, "f:value": {}},
            }},
            "k:{\"name\":\"second\"}": {".": {}, "f:name": {}, "f:ports": {
                "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}},
            }},
        },
        "f:volumes": {"k:{\"name\":\"v\"}": {".": {}, "f:name": {}, "f:items": {}}},
    }});
    let live = json!({"metadata": {"name": "a", "labels": {"app": "a"}}, "spec": {
        "replicas": 2, "revisionHistoryLimit": 10,
        "containers": [
            {"name": "first", "limits": {"memory": "1Gi"}, "env": [{"name": "A"}, {"name": "B", "value": "b"}]},
            {"name": "injected"},
            {"name": "second", "ports": [{"port": 80, "protocol": "TCP"}]},
        ],
        "volumes": [{"name": "v", "items": [{"key": "k", "mode": 420}]}],
    }});
    (live, owned, desired)
}

#[test]
fn values_that_a_built_in_kind_stores_in_another_form_are_untouched_while_they_are_owned() {
    let (live, owned, desired) = deployment();
    assert!(!check(&live, &owned, &desired));
    assert!(untouched(true, &live, &owned, &desired));
    // A foreign change takes the field away from our set.
    let first = r#"/f:spec/f:containers/k:{"name":"first"}"#;
    for (parent, name) in [
        ("/f:spec".to_owned(), "f:replicas"),
        // A node that lost its last member goes too.
        (first.to_owned(), "f:limits"),
        (format!(r#"{first}/f:env/k:{{"name":"A"}}"#), "f:value"),
        (r#"/f:spec/f:volumes/k:{"name":"v"}"#.to_owned(), "f:items"),
    ] {
        assert!(!untouched(true, &live, &without(owned.clone(), &parent, name), &desired), "{parent}/{name}");
    }
    let tolerant = set(live.clone(), "/spec", "tolerations", json!([{"operator": "Exists"}]));
    assert!(!untouched(true, &tolerant, &without(owned.clone(), "/f:spec", "f:tolerations"), &desired));
    // What is not in the set is compared: the order of elements, and metadata.
    let reordered = with(live.clone(), "/spec/containers", |list| list.as_array_mut().unwrap().reverse());
    assert!(!untouched(true, &reordered, &owned, &desired));
    assert!(!untouched(true, &set(live.clone(), "/metadata/labels", "app", json!("b")), &owned, &desired));
    // Another text names other fields.
    assert!(!untouched(true, &live, &owned, &without(desired.clone(), "/spec", "replicas")));
    assert!(!untouched(true, &live, &owned, &set(desired, "/spec", "paused", json!(true))));
}

#[test]
fn defaults_inside_an_atomic_list_of_a_custom_resource_leave_it_untouched() {
    let desired = json!({"spec": {"rules": [{"refs": [{"name": "a", "port": null}]}], "memory": "1024Mi"}});
    let owned = json!({"f:spec": {"f:rules": {}, "f:memory": {}}});
    let live =
        json!({"spec": {"rules": [{"refs": [{"name": "a", "kind": "Service"}], "weight": 1}], "memory": "1024Mi"}});
    assert!(!check(&live, &owned, &desired));
    assert!(untouched(false, &live, &owned, &desired));
    let element = "/spec/rules/0/refs/0";
    for other in [
        set(live.clone(), element, "name", json!("b")),
        without(live.clone(), element, "name"),
        set(live.clone(), element, "port", json!(80)),
        with(live.clone(), "/spec/rules", |list| list.as_array_mut().unwrap().push(json!({}))),
        // A custom resource stores texts as they are sent, quantities too.
        set(live, "/spec", "memory", json!("1Gi")),
    ] {
        assert!(!untouched(false, &other, &owned, &desired), "{other}");
    }
}

#[test]
fn an_element_that_lost_all_its_fields_is_not_untouched() {
    let desired = json!({"spec": {"ports": [{"value": 1}]}});
    let live = |value: i32| json!({"spec": {"ports": [{"protocol": "TCP", "value": value}]}});
    // Its key is a default, and so is not among the fields.
    let whole = json!({"f:spec": {"f:ports": {"k:{\"protocol\":\"TCP\"}": {".": {}, "f:value": {}}}}});
    let lost = json!({"f:spec": {"f:ports": {"k:{\"protocol\":\"TCP\"}": {}}}});
    for built_in in [true, false] {
        assert!(untouched(built_in, &live(1), &whole, &desired));
        assert!(!untouched(built_in, &live(2), &lost, &desired));
    }
}

// Properties: against the model of a server.

fn schema() -> Schema {
    use Schema::{Atomic, ListBy, MapOf, Scalar, SetOf, Struct};
    let map = || MapOf(Box::new(Scalar));
    let port = Struct(vec![("port", Scalar), ("protocol", Scalar), ("opts", map())]);
    let ports = ListBy(vec![("port", None), ("protocol", Some(json!("TCP")))], Box::new(port));
    let refs = ListBy(vec![("uid", None)], Box::new(Atomic));
    let inner = || Struct(vec![("x", Scalar), ("names", SetOf)]);
    let spec = Struct(vec![
        ("scalar", Scalar),
        ("map", map()),
        ("atom", Atomic),
        ("names", SetOf),
        ("ports", ports),
        ("refs", refs),
        ("inner", inner()),
        ("many", MapOf(Box::new(inner()))),
    ]);
    Struct(vec![("spec", spec)])
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![4 => Just(json!(1)), 1 => Just(json!(1.0)), 2 => Just(json!("a")), 1 => Just(json!(0)), 1 => Just(json!(false))]
}

/// A value of the schema: small domains, so that writers meet.
fn value(schema: &Schema) -> BoxedStrategy<Value> {
    match schema {
        Schema::Scalar => scalar().boxed(),
        Schema::Atomic => prop_oneof![
            Just(json!({})),
            Just(json!([])),
            Just(json!({"a": 1})),
            Just(json!({"a": 1, "b": []})),
            Just(json!([1, 2])),
        ]
        .boxed(),
        Schema::Struct(fields) => fields.iter().fold(Just(json!({})).boxed(), |object, (name, schema)| {
            let (name, null) = (*name, prop::bool::weighted(0.1));
            (object, prop::option::weighted(0.6, value(schema)), null)
                .prop_map(move |(mut object, value, null)| {
                    if let Some(value) = value {
                        object[name] = if null { Value::Null } else { value };
                    }
                    object
                })
                .boxed()
        }),
        Schema::MapOf(of) => prop::collection::btree_map(prop_oneof!["a", "b"], value(of), 0..3)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
            .boxed(),
        Schema::SetOf => Just(vec!["a", "b", "c"])
            .prop_shuffle()
            .prop_flat_map(|all| prop::sample::subsequence(all, 0..=3))
            .prop_map(|names| json!(names))
            .boxed(),
        Schema::ListBy(keys, of) => {
            let keyed_by_port = keys.len() == 2;
            let elements = prop::collection::btree_map((1..3, prop::bool::ANY), (value(of), prop::bool::ANY), 0..3);
            elements
                .prop_map(move |elements| {
                    let element = |((number, udp), (mut element, said)): ((i32, bool), (Value, bool))| {
                        if keyed_by_port {
                            element["port"] = json!(number);
                            element["protocol"] = json!(if udp { "UDP" } else { "TCP" });
                            if !said && !udp {
                                element.as_object_mut().unwrap().remove("protocol");
                            }
                            return element;
                        }
                        json!({"uid": format!("{number}{udp}"), "rest": element})
                    };
                    elements.into_iter().map(element).collect::<Vec<_>>()
                })
                .prop_shuffle()
                .prop_map(Value::Array)
                .boxed()
        }
    }
}

#[derive(Clone, Debug)]
enum Write {
    Apply(&'static str, Value),
    Update(&'static str, Value),
}

fn history() -> impl Strategy<Value = Vec<Write>> {
    let step = (prop_oneof![3 => Just("us"), 2 => Just("other"), 2 => Just("editor")], value(&schema()));
    let step = step.prop_map(|(who, value)| match who {
        "us" => Write::Apply(US, value),
        "other" => Write::Apply("other", value),
        _ => Write::Update("editor", value),
    });
    prop::collection::vec(step, 0..5)
}

fn storage() -> impl Strategy<Value = Storage> {
    prop_oneof![Just(Storage::Keep), Just(Storage::DropNulls), Just(Storage::DropEmpty)]
}

/// What the next apply says.
#[derive(Clone, Debug)]
enum Want {
    /// What the last one said.
    Again,
    /// Exactly the present values, by any writer.
    AllThatIs,
    New(Value),
}

fn want() -> impl Strategy<Value = Want> {
    prop_oneof![3 => Just(Want::Again), 1 => Just(Want::AllThatIs), 3 => value(&schema()).prop_map(Want::New)]
}

fn server_after(history: &[Write], storage: Storage) -> Server {
    let schema = schema();
    let mut server = Server::new();
    for write in history {
        match write {
            Write::Apply(who, config) => server.apply(&schema, storage, who, config),
            Write::Update(who, object) => server.update(&schema, storage, who, object.clone()),
        }
    }
    server
}

fn desired(want: Want, history: &[Write], server: &Server) -> Value {
    let ours = history.iter().rev().find_map(|write| match write {
        Write::Apply(US, config) => Some(config.clone()),
        _ => None,
    });
    match want {
        Want::Again => ours.unwrap_or_else(|| json!({})),
        Want::AllThatIs => server.object.clone(),
        Want::New(value) => value,
    }
}

/// Nothing in it is empty, so that no server leaves any of it out and no field set is in doubt.
fn is_full(value: &Value) -> bool {
    !model::is_zero(value)
        && match value {
            Value::Array(list) => list.iter().all(is_full),
            Value::Object(map) => map.values().all(is_full),
            _ => true,
        }
}

/// The two things that no field set tells apart (see the module): what is below a leaf that is not atomic, and empty
/// lists.
fn no_field_set_can_tell(path: &Path, before: &model::Paths, desired: &Value) -> bool {
    let is_leaf = |leaf: &&[model::Step]| {
        before.contains(*leaf) && !before.iter().any(|other| other.len() > leaf.len() && other.starts_with(leaf))
    };
    let below_leaf = (1..=path.len())
        .map(|length| &path[..length])
        .filter(is_leaf)
        .any(|leaf| !matches!(model::schema_at(&schema(), leaf), Some(Schema::Scalar | Schema::Atomic)));
    let empty_lists = model::find(&schema(), desired, path).is_some_and(super::of_empty_lists);
    below_leaf || empty_lists
}

fn assert_apply_changes_nothing(before: &Server, storage: Storage, desired: &Value) -> Result<Server, TestCaseError> {
    let none = model::Paths::new();
    let of = |server: &Server| server.owned.get(&(US, Operation::Apply)).unwrap_or(&none).clone();
    let mut after = before.clone();
    after.apply(&schema(), storage, US, desired);
    // A null that is owned and not there counts as nothing.
    let values = |server: &Server| model::without_nulls(server.object.clone());
    prop_assert!(same(&values(before), &values(&after)), "values: {} became {}", before.object, after.object);
    for path in of(before).symmetric_difference(&of(&after)) {
        prop_assert!(no_field_set_can_tell(path, &of(before), desired), "owned: {path:?}");
    }
    Ok(after)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn an_apply_changes_no_object_for_which_the_diff_holds(history in history(), storage in storage(), want in want()) {
        let before = server_after(&history, storage);
        let desired = desired(want, &history, &before);
        if text_holds(&before.object.to_string(), &before.fields(US), &desired) {
            let after = assert_apply_changes_nothing(&before, storage, &desired)?;
            for (owner, owned) in before.owned.iter().filter(|(owner, _)| **owner != (US, Operation::Apply)) {
                let kept = after.owned.get(owner).cloned().unwrap_or_default();
                for path in owned.symmetric_difference(&kept) {
                    // A null that the server drops is written anew by each apply, and so has one owner at a time.
                    prop_assert_eq!(model::find(&schema(), &desired, path), Some(&Value::Null));
                }
            }
        }
    }

    #[test]
    fn an_apply_changes_an_object_for_which_the_diff_does_not_hold(history in history(), storage in storage(), want in want()) {
        let before = server_after(&history, storage);
        let desired = desired(want, &history, &before);
        if is_full(&desired) && !text_holds(&before.object.to_string(), &before.fields(US), &desired) {
            let mut after = before.clone();
            after.apply(&schema(), storage, US, &desired);
            prop_assert!(!same(&before.object, &after.object) || before.owned != after.owned);
        }
    }

    /// A second apply of the same changes nothing, and we know it: unless something empty makes it doubtful.
    #[test]
    fn an_applied_text_holds_in_the_servers_answer(history in history(), storage in storage(), config in value(&schema())) {
        let mut server = server_after(&history, storage);
        server.apply(&schema(), storage, US, &config);
        if is_full(&config) {
            prop_assert!(text_holds(&server.object.to_string(), &server.fields(US), &config));
        }
    }

    /// Any writes by others since our last apply.
    #[test]
    fn a_second_apply_of_the_same_text_changes_no_untouched_object(
        earlier in history(), storage in storage(), config in value(&schema()), later in history(),
    ) {
        let built_in = storage == Storage::DropEmpty;
        // No built-in kind has maps of structs.
        prop_assume!(!built_in || config.pointer("/spec/many").is_none());
        let later = later.into_iter().filter(|write| !matches!(write, Write::Apply(US, _)));
        let history: Vec<Write> = earlier.into_iter().chain([Write::Apply(US, config.clone())]).chain(later).collect();
        let before = server_after(&history, storage);
        let owned = serde_json::from_str(&before.fields(US)).unwrap();
        if untouched(built_in, &before.object, &owned, &config) {
            assert_apply_changes_nothing(&before, storage, &config)?;
        }
    }

    /// Field sets that no history explains: values are safe all the same.
    #[test]
    fn an_apply_changes_no_object_for_which_the_diff_holds_under_any_field_set(
        live in value(&schema()), owned in value(&schema()), desired in value(&schema()), same_set in prop::bool::ANY,
    ) {
        let storage = Storage::DropNulls;
        let mut before = Server::new();
        before.update(&schema(), storage, "editor", live);
        let owned = model::paths(&schema(), if same_set { &desired } else { &owned });
        before.owned.insert((US, Operation::Apply), owned);
        if text_holds(&before.object.to_string(), &before.fields(US), &desired) {
            assert_apply_changes_nothing(&before, storage, &desired)?;
        }
    }

    #[test]
    fn no_text_makes_it_panic(live in "\\PC{0,40}", owned in "[\\[\\]{}\":,.fkvi0a\\\\ ]{0,40}", desired in value(&schema())) {
        let valid = json!({"spec": {"names": ["a"]}}).to_string();
        let _ = text_holds(&live, &owned, &desired);
        let _ = text_holds(&valid, &owned, &desired);
    }
}
