#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    apply,
    path::Element,
    set::Set,
    tests::{bare, earlier, manager, pods},
    track_update,
};
use crate::schema::Schema;

/// A custom kind with every form of ownership.
fn everything() -> Schema {
    let text = json!({ "type": "string" });
    Schema::from_crd(&json!({
        "type": "object",
        "properties": { "spec": { "type": "object", "properties": {
            "a": text, "b": text,
            "struct": { "type": "object", "properties": { "a": text, "b": text } },
            "map": { "type": "object", "additionalProperties": text },
            "atomic": { "type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": text },
            "list": { "type": "array", "items": text },
            "set": { "type": "array", "x-kubernetes-list-type": "set", "items": text },
            "items": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": { "type": "object", "required": ["name"], "properties": {
                    "name": text, "value": text, "map": { "type": "object", "additionalProperties": text } } }
            },
            "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true }
        } } }
    }))
    .unwrap()
}

/// An object of that kind, whose names match a pattern.
fn any_object(names: &'static str) -> impl Strategy<Value = Value> {
    let name = move || names;
    let word = || prop::sample::select(vec!["x", "y"]);
    let map = move || {
        prop::collection::btree_map(name(), word(), 1..3)
            .prop_map(|map| map.into_iter().map(|(k, v)| (k, Value::from(v))).collect::<serde_json::Map<_, _>>())
    };
    let item = (word(), prop::option::of(map())).prop_map(|(value, map)| {
        map.map_or_else(|| json!({ "value": value }), |map| json!({ "value": value, "map": map }))
    });
    let items = prop::collection::btree_map(name(), item, 0..3).prop_map(|items| {
        let named = items.into_iter().map(|(name, mut item)| {
            item["name"] = Value::from(name);
            item
        });
        Value::from(named.collect::<Vec<_>>())
    });
    let set =
        prop::collection::btree_set(name(), 0..3).prop_map(|set| Value::from(set.into_iter().collect::<Vec<_>>()));
    (prop::option::of(map()), prop::option::of(items), prop::option::of(set), prop::option::of(map())).prop_map(
        |(map, items, set, free)| {
            let mut spec = serde_json::Map::new();
            let fields =
                [("map", map.map(Value::Object)), ("items", items), ("set", set), ("free", free.map(Value::Object))];
            spec.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
            json!({ "apiVersion": "v1", "kind": "E", "metadata": { "name": "a" }, "spec": spec })
        },
    )
}

fn any_set() -> impl Strategy<Value = Set> {
    let step = prop_oneof![
        "[a-c]".prop_map(Element::Field),
        "[a-b]".prop_map(|name| Element::key(vec![("name".to_owned(), Value::from(name))])),
        (0..2).prop_map(|n| Element::key(vec![("port".to_owned(), Value::from(n)), ("name".to_owned(), json!("x"))])),
        prop_oneof![Just(json!(1)), Just(json!("a")), Just(json!(true)), Just(json!(1.5))]
            .prop_map(|value| Element::Value(super::path::Atom::new(value))),
    ];
    prop::collection::vec(prop::collection::vec(step, 1..4), 0..12).prop_map(|paths| paths.into_iter().collect())
}

/// Any JSON with the words that this module reads.
fn any_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "apiVersion",
        "kind",
        "metadata",
        "managedFields",
        "name",
        "manager",
        "operation",
        "fieldsType",
        "fieldsV1",
        "f:a",
        "f:metadata",
        "k:{\"name\":1}",
        "v:[]",
        "spec",
        "containers",
        "items",
        "set",
        "map",
        "list",
        "labels",
        "finalizers",
    ]);
    let leaf =
        prop::sample::select(vec![json!(null), json!("a"), json!("Apply"), json!("FieldsV1"), json!(1), json!(1.5)]);
    leaf.prop_recursive(6, 60, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn sets_obey_the_laws_of_sets(a in any_set(), b in any_set(), c in any_set()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.union(&a), a.clone());
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert_eq!(a.difference(&b.union(&c)), a.difference(&b).difference(&c));
        prop_assert_eq!(a.outside(&b).intersection(&b), Set::default());
        prop_assert_eq!(a.outside(&b).union(&a.difference(&b)), a.difference(&b));
        prop_assert_eq!(a.paths().into_iter().collect::<Set>(), a.clone());
        prop_assert_eq!(Set::parse(&a.serialize()), a);
    }

    #[test]
    fn what_is_applied_is_there_and_applying_it_again_changes_nothing(
        live in any_object("[a-c][0-2]"), applied in any_object("[a-c][0-2]"), later in any_object("[a-c][0-2]")
    ) {
        let schema = everything();
        for config in [applied, later] {
            let mut live = live.clone();
            track_update(None, &mut live, &schema, &earlier("writer"));
            let once = apply(Some(&live), &config, &schema, &earlier("applier"), true).unwrap();
            let twice = apply(Some(&once), &config, &schema, &manager("applier"), true).unwrap();
            prop_assert_eq!(&once, &twice);
            let unforced = apply(Some(&once), &config, &schema, &manager("applier"), false).unwrap();
            prop_assert_eq!(&once, &unforced);
            // Applied to nothing, the result is the applied object.
            let alone = apply(None, &config, &schema, &manager("applier"), false).unwrap();
            prop_assert_eq!(&bare(&alone), &config);
            // Everything that it names has its value.
            let difference = super::walk::Comparison::of(&schema, &config, &bare(&once));
            prop_assert!(super::walk::paths(&schema, &config).intersection(&difference.modified).is_empty());
            prop_assert!(super::walk::paths(&schema, &config).intersection(&difference.removed).is_empty());
        }
    }

    #[test]
    fn applying_nothing_takes_back_what_was_applied(live in any_object("[a-b][0-2]"), applied in any_object("[c-d][0-2]")) {
        let schema = everything();
        let mut live = live;
        track_update(None, &mut live, &schema, &earlier("writer"));
        let more = apply(Some(&live), &applied, &schema, &manager("applier"), false);
        // Empty lists and maps are values of their own, and may conflict.
        prop_assume!(more.is_ok());
        let nothing = json!({ "apiVersion": "v1", "kind": "E", "metadata": { "name": "a" } });
        let back = apply(Some(&more.unwrap()), &nothing, &schema, &manager("applier"), false).unwrap();
        let without_empty = |object: &Value| {
            let mut spec = object["spec"].as_object().cloned().unwrap_or_default();
            spec.retain(|_, value| *value != json!([]) && *value != json!({}));
            spec
        };
        prop_assert_eq!(without_empty(&back), without_empty(&live));
    }

    #[test]
    fn nobody_owns_what_is_not_there(live in any_object("[a-b][0-2]"), applied in any_object("[a-c][0-2]"), edited in any_object("[a-c][0-2]")) {
        let schema = everything();
        let mut object = live;
        track_update(None, &mut object, &schema, &earlier("writer"));
        object = apply(Some(&object), &applied, &schema, &manager("applier"), true).unwrap();
        let mut new = edited;
        track_update(Some(&object), &mut new, &schema, &manager("editor"));
        let there = super::Comparison::of(&schema, &json!({}), &bare(&new)).added;
        for entry in super::entries::read(&new).unwrap() {
            prop_assert_eq!(entry.owned.difference(&there), Set::default());
        }
    }

    #[test]
    fn no_input_panics(live in any_json(), applied in any_json()) {
        for schema in [pods(), Arc::new(Schema::preserve_all()), Arc::new(everything())] {
            let _ = apply(Some(&live), &applied, &schema, &manager("a"), true);
            let mut new = applied.clone();
            track_update(Some(&live), &mut new, &schema, &manager("a"));
            let with_owners = json!({ "metadata": { "managedFields": applied }, "spec": live });
            let _ = apply(Some(&with_owners), &json!({ "spec": applied }), &schema, &manager("a"), true);
        }
    }
}
