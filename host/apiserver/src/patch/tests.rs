#![allow(clippy::unwrap_used, reason = "a failed test should panic")]
#![allow(clippy::needless_pass_by_value, reason = "fixtures are written in place")]

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Error, json as json_patch, merge, strategic};
use crate::schema::Schema;

fn pods() -> std::sync::Arc<Schema> {
    Schema::builtin("", "v1", "Pod").unwrap()
}

fn pod(spec: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a" }, "spec": spec })
}

/// The spec after a strategic merge.
fn patched(spec: Value, patch: Value) -> Result<Value, Error> {
    strategic(&pod(spec), &json!({ "spec": patch }), &pods()).map(|mut pod| pod["spec"].take())
}

#[test]
fn strategic_merge_merges_as_the_schema_says() {
    let two = json!({ "containers": [{ "name": "a", "image": "1" }, { "name": "b", "image": "2" }] });
    let cases = [
        ("a field is set", json!({}), json!({ "hostname": "x" }), json!({ "hostname": "x" })),
        ("null removes", json!({ "hostname": "x" }), json!({ "hostname": null }), json!({})),
        (
            "null of nothing is nothing",
            json!({}),
            json!({ "securityContext": { "runAsUser": null } }),
            json!({ "securityContext": {} }),
        ),
        (
            "items merge by key, new ones come last",
            two.clone(),
            json!({ "containers": [{ "name": "b", "image": "3" }, { "name": "c" }] }),
            json!({ "containers": [{ "name": "a", "image": "1" }, { "name": "b", "image": "3" }, { "name": "c" }] }),
        ),
        (
            "an item is deleted by key",
            two.clone(),
            json!({ "containers": [{ "name": "a", "$patch": "delete" }] }),
            json!({ "containers": [{ "name": "b", "image": "2" }] }),
        ),
        (
            "a list is replaced on demand",
            two.clone(),
            json!({ "containers": [{ "$patch": "replace" }, { "name": "z" }] }),
            json!({ "containers": [{ "name": "z" }] }),
        ),
        (
            "an object is replaced on demand",
            json!({ "securityContext": { "runAsUser": 1, "runAsGroup": 2 } }),
            json!({ "securityContext": { "$patch": "replace", "runAsUser": 3 } }),
            json!({ "securityContext": { "runAsUser": 3 } }),
        ),
        (
            "an object is emptied on demand",
            json!({ "securityContext": { "runAsUser": 1 } }),
            json!({ "securityContext": { "$patch": "delete" } }),
            json!({ "securityContext": {} }),
        ),
        (
            "a deletion of what is not there leaves nothing",
            json!({}),
            json!({ "securityContext": { "$patch": "delete" }, "containers": [{ "$patch": "delete", "name": "a" }] }),
            json!({ "containers": [] }),
        ),
        (
            "an atomic list is replaced",
            json!({ "containers": [{ "name": "a", "command": ["x", "y"] }] }),
            json!({ "containers": [{ "name": "a", "command": ["z"] }] }),
            json!({ "containers": [{ "name": "a", "command": ["z"] }] }),
        ),
        (
            "maps merge",
            json!({ "nodeSelector": { "a": "1", "b": "2" } }),
            json!({ "nodeSelector": { "b": null, "c": "3" } }),
            json!({ "nodeSelector": { "a": "1", "c": "3" } }),
        ),
        (
            "the order of items is set",
            two.clone(),
            json!({ "$setElementOrder/containers": [{ "name": "b" }, { "name": "a" }] }),
            json!({ "containers": [{ "name": "b", "image": "2" }, { "name": "a", "image": "1" }] }),
        ),
        (
            "items that the order does not name stay near their neighbours",
            json!({ "containers": [{ "name": "x" }, { "name": "a" }, { "name": "y" }, { "name": "b" }] }),
            json!({
                "$setElementOrder/containers": [{ "name": "a" }, { "name": "n" }, { "name": "b" }],
                "containers": [{ "name": "n" }]
            }),
            json!({ "containers": [{ "name": "x" }, { "name": "a" }, { "name": "n" }, { "name": "y" }, { "name": "b" }] }),
        ),
        (
            "order and deletion go together",
            two.clone(),
            json!({
                "$setElementOrder/containers": [{ "name": "c" }, { "name": "b" }],
                "containers": [{ "name": "c" }, { "name": "a", "$patch": "delete" }]
            }),
            json!({ "containers": [{ "name": "c" }, { "name": "b", "image": "2" }] }),
        ),
        (
            "keys are retained",
            json!({ "volumes": [{ "name": "v", "emptyDir": {} }] }),
            json!({ "volumes": [{ "name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": { "path": "/" } }] }),
            json!({ "volumes": [{ "name": "v", "hostPath": { "path": "/" } }] }),
        ),
        (
            "a list takes the place of another type",
            json!({ "containers": {} }),
            json!({ "containers": [{ "name": "a" }] }),
            json!({ "containers": [{ "name": "a" }] }),
        ),
    ];
    for (what, current, patch, expected) in cases {
        assert_eq!(patched(current, patch).unwrap(), expected, "{what}");
    }
}

#[test]
fn strategic_merge_treats_lists_of_primitives_as_sets() {
    let object = |finalizers: Value| json!({ "metadata": { "finalizers": finalizers } });
    let cases = [
        (json!({ "finalizers": ["b", "c"] }), json!(["a", "b", "c"])),
        (json!({ "$deleteFromPrimitiveList/finalizers": ["a"] }), json!(["b"])),
        (json!({ "$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["z"] }), json!(["z", "b"])),
        (json!({ "$setElementOrder/finalizers": ["b", "a"] }), json!(["b", "a"])),
        (json!({ "$setElementOrder/finalizers": ["c", "a"], "finalizers": ["c"] }), json!(["c", "a", "b"])),
        (json!({ "$deleteFromPrimitiveList/ownerReferences": ["a"] }), json!(["a", "b"])),
    ];
    for (patch, expected) in cases {
        let patch = json!({ "metadata": patch });
        assert_eq!(strategic(&object(json!(["a", "b"])), &patch, &pods()).unwrap(), object(expected), "{patch}");
    }
}

#[test]
fn a_strategic_merge_that_contradicts_itself_is_refused() {
    let two = json!({ "containers": [{ "name": "a" }, { "name": "b" }] });
    let internal = [
        json!({ "containers": [{ "image": "x" }] }),
        json!({ "containers": [{ "$patch": "delete" }] }),
        json!({ "containers": [{ "name": "a", "$patch": "merge" }] }),
        json!({ "containers": [{ "name": "a", "$patch": "burn" }] }),
        json!({ "containers": ["a"] }),
        json!({ "$patch": "burn" }),
        json!({ "$setElementOrder/containers": [{ "name": "a" }], "containers": [{ "name": "z" }] }),
        json!({ "$setElementOrder/nothing": [] }),
    ];
    for patch in internal {
        assert!(matches!(patched(two.clone(), patch.clone()), Err(Error::Internal(_))), "{patch}");
    }
    let malformed = [
        json!({ "$retainKeys": ["hostname"], "nodeName": "x" }),
        json!({ "$retainKeys": "hostname" }),
        json!({ "$deleteFromPrimitiveList/containers": "a" }),
        json!({ "$setElementOrder/containers": "a" }),
    ];
    for patch in malformed {
        assert!(matches!(patched(two.clone(), patch.clone()), Err(Error::Malformed(_))), "{patch}");
    }
    assert!(matches!(strategic(&json!({}), &json!([]), &pods()), Err(Error::Malformed(_))));
}

#[test]
fn json_patch_does_its_operations_in_turn() {
    let object = json!({ "a": { "b": [1, 2] } });
    let cases = [
        (json!([]), json!({ "a": { "b": [1, 2] } })),
        (json!([{ "op": "add", "path": "/a/b/-", "value": 3 }]), json!({ "a": { "b": [1, 2, 3] } })),
        (json!([{ "op": "remove", "path": "/a/b/0" }]), json!({ "a": { "b": [2] } })),
        (json!([{ "op": "replace", "path": "/a/b", "value": 0 }]), json!({ "a": { "b": 0 } })),
        (json!([{ "op": "replace", "path": "/a/c", "value": 0 }]), json!({ "a": { "b": [1, 2], "c": 0 } })),
        (json!([{ "op": "move", "from": "/a/b", "path": "/c" }]), json!({ "a": {}, "c": [1, 2] })),
        (json!([{ "op": "copy", "from": "/a/b/1", "path": "/c" }]), json!({ "a": { "b": [1, 2] }, "c": 2 })),
        (
            json!([{ "op": "test", "path": "/a/b/0", "value": 1 }, { "op": "add", "path": "/x~1y", "value": null }]),
            json!({ "a": { "b": [1, 2] }, "x/y": null }),
        ),
    ];
    for (patch, expected) in cases {
        assert_eq!(json_patch(&object, &patch, &pods()).unwrap(), expected, "{patch}");
    }
    for patch in [
        json!([{ "op": "remove", "path": "/x" }]),
        json!([{ "op": "replace", "path": "/x/y", "value": 0 }]),
        json!([{ "op": "replace", "path": "/a/b/7", "value": 0 }]),
        json!([{ "op": "test", "path": "/a/b/0", "value": 2 }]),
        json!([{ "op": "add", "path": "/a/b/7", "value": 0 }]),
    ] {
        assert!(matches!(json_patch(&object, &patch, &pods()), Err(Error::Unprocessable(_))), "{patch}");
    }
    for patch in [json!({}), json!([{ "op": "burn", "path": "/a" }]), json!([{ "op": "add", "path": "a" }])] {
        assert!(matches!(json_patch(&object, &patch, &pods()), Err(Error::Malformed(_))), "{patch}");
    }
}

#[test]
fn a_json_patch_has_limits() {
    let many: Vec<Value> = vec![json!({ "op": "test", "path": "", "value": {} }); 10_001];
    assert!(matches!(json_patch(&json!({}), &many.into(), &pods()), Err(Error::TooLarge(_))));

    // Each copy doubles the object.
    let doubling: Vec<Value> =
        (0..100).map(|n| json!({ "op": "copy", "from": "/a", "path": format!("/a/{n}") })).collect();
    assert!(matches!(
        json_patch(&json!({ "a": {} }), &doubling.into(), &pods()),
        Err(Error::TooLarge(_) | Error::Unprocessable(_))
    ));

    // Each move nests the object once more.
    let nesting: Vec<Value> = (0..500)
        .flat_map(|_| {
            [
                json!({ "op": "add", "path": "/b", "value": {} }),
                json!({ "op": "move", "from": "/a", "path": "/b/a" }),
                json!({ "op": "move", "from": "/b", "path": "/a" }),
            ]
        })
        .collect();
    assert!(matches!(json_patch(&json!({ "a": {} }), &nesting.into(), &pods()), Err(Error::Unprocessable(_))));
}

#[test]
fn merge_patch_replaces_lists_and_removes_by_null() {
    let object = json!({ "a": { "b": [1, 2], "c": 3 }, "d": 4 });
    let patch = json!({ "a": { "b": [3], "c": null }, "e": { "f": null, "g": 1 } });
    assert_eq!(merge(&object, &patch, &pods()).unwrap(), json!({ "a": { "b": [3] }, "d": 4, "e": { "g": 1 } }));
    assert!(matches!(merge(&object, &json!("a"), &pods()), Err(Error::Malformed(_))));
}

/// An object without nulls, which a merge patch cannot express.
fn object(depth: u32) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0..3).prop_map(Value::from), Just(json!(["a"]))];
    let objects = |inner| {
        prop::collection::btree_map("[a-c]", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect()))
    };
    objects(leaf.prop_recursive(depth, 30, 4, objects).boxed())
}

/// The merge patch that makes `to` of `from`.
fn difference(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
    let gone = from.keys().filter(|key| !to.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changed = to.iter().filter(|(key, value)| from.get(*key) != Some(value));
    let changed = changed.map(|(key, value)| (key.clone(), difference(from.get(key).unwrap_or(&Value::Null), value)));
    Value::Object(gone.chain(changed).collect::<Map<_, _>>())
}

/// Any JSON with the words that strategic merges use.
fn words() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "spec",
        "metadata",
        "containers",
        "name",
        "finalizers",
        "volumes",
        "$patch",
        "$retainKeys",
        "image",
        "ports",
        "$setElementOrder/containers",
        "$deleteFromPrimitiveList/finalizers",
        "$setElementOrder/finalizers",
    ]);
    let leaf = prop::sample::select(vec![
        json!(null),
        json!("a"),
        json!("delete"),
        json!("replace"),
        json!("merge"),
        json!(1),
    ]);
    leaf.prop_recursive(5, 60, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_merge_patch_of_the_difference_gives_the_other_object(from in object(4), to in object(4)) {
        prop_assert_eq!(merge(&from, &difference(&from, &to), &pods()).unwrap(), to);
    }

    #[test]
    fn no_strategic_merge_panics(current in words(), patch in words()) {
        let _ = strategic(&current, &patch, &pods());
        let _ = strategic(&json!({ "spec": current }), &json!({ "spec": patch }), &pods());
    }

    #[test]
    fn a_strategic_merge_without_directives_applied_twice_is_as_once(
        names in prop::collection::vec("[a-e]", 0..5), change in prop::collection::btree_set("[a-e]", 0..5)
    ) {
        let mut seen = std::collections::BTreeSet::new();
        let items = |names: Vec<String>| names.into_iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
        let current = json!({ "containers": items(names.into_iter().filter(|name| seen.insert(name.clone())).collect()) });
        let patch = json!({ "containers": items(change.into_iter().collect()) });
        let once = patched(current, patch.clone()).unwrap();
        prop_assert_eq!(patched(once.clone(), patch).unwrap(), once);
    }
}
