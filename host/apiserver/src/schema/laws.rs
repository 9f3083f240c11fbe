#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use proptest::prelude::*;
use serde_json::Value;

use super::{
    Schema, node,
    tests::{apple, schema},
};

/// Any JSON of a few levels, with names and values that schemas and objects use.
fn any_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "type",
        "properties",
        "items",
        "default",
        "enum",
        "pattern",
        "anyOf",
        "not",
        "spec",
        "metadata",
        "name",
        "rule",
        "a",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-validations",
        "additionalProperties",
        "minimum",
        "required",
        "nullable",
        "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields",
        "format",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec!["object", "array", "string", "integer", "map", "self > 1", "a", "(", "date-time"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_schema_and_no_object_make_a_walk_panic(schema in any_json(), object in any_json(), old in any_json()) {
        // A node leaves out the invalid parts of a schema, so an unchecked schema must be harmless too.
        for schema in [
            Schema::from_crd(&schema).unwrap_or_else(|_| Schema::preserve_all()),
            Schema { root: node::Node::parse(&schema, &|_| None), source: schema.clone().into(), builtin: false },
            Schema::builtin("", "v1", "Pod").unwrap().as_ref().clone(),
        ] {
            let mut object = object.clone();
            schema.prune(&mut object);
            schema.default(&mut object);
            let _ = schema.validate(&object, Some(&old));
        }
    }

    #[test]
    fn pruning_and_defaulting_twice_is_as_once(spec in any_json()) {
        let schema = schema();
        let mut once = apple(spec);
        schema.prune(&mut once);
        schema.default(&mut once);
        let mut twice = once.clone();
        prop_assert_eq!(schema.prune(&mut twice), Vec::<String>::new());
        schema.default(&mut twice);
        prop_assert_eq!(once, twice);
    }
}
