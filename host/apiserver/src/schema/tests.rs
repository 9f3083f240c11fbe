#![allow(clippy::unwrap_used, reason = "a failed test should panic")]
#![allow(clippy::needless_pass_by_value, reason = "fixtures are written in place")]

use serde_json::{Value, json};

use super::{Cause, Reason, Schema, node};

fn myapple() -> Value {
    json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["color", "quantity"],
                "properties": {
                    "color": { "type": "string", "minLength": 1, "maxLength": 10, "pattern": "^[a-z]*$" },
                    "size": { "type": "string", "enum": ["small", "medium", "large"], "default": "medium" },
                    "quantity": { "type": "integer", "minimum": 1, "maximum": 100 },
                    "weight": { "type": "number", "exclusiveMinimum": true, "minimum": 0.5 },
                    "note": { "type": "string", "nullable": true },
                    "picked": { "type": "string", "format": "date-time" },
                    "port": { "x-kubernetes-int-or-string": true },
                    "tags": {
                        "type": "array", "items": { "type": "string" }, "x-kubernetes-list-type": "set", "maxItems": 3
                    },
                    "parts": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": { "name": { "type": "string" }, "count": { "type": "integer", "default": 1 } }
                        }
                    },
                    "labels": { "type": "object", "additionalProperties": { "type": "string" } },
                    "free": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": true,
                        "properties": { "known": { "type": "object", "properties": { "a": { "type": "string" } } } }
                    },
                    "either": {
                        "type": "object",
                        "properties": { "a": { "type": "string" }, "b": { "type": "string" } },
                        "oneOf": [{ "required": ["a"] }, { "required": ["b"] }]
                    }
                }
            },
            "status": { "type": "object", "properties": { "available": { "type": "integer" } } }
        }
    })
}

pub(super) fn apple(spec: Value) -> Value {
    json!({ "apiVersion": "stable.example.com/v1", "kind": "MyApple", "metadata": { "name": "a" }, "spec": spec })
}

fn lines(causes: &[Cause]) -> Vec<String> {
    causes.iter().map(ToString::to_string).collect()
}

pub(super) fn schema() -> Schema {
    Schema::from_crd(&myapple()).unwrap()
}

#[test]
fn causes_are_worded_as_kube_apiserver_words_them() {
    let cases = [
        (json!({ "color": "red", "quantity": 3 }), vec![]),
        (
            json!({ "color": "red", "quantity": 0 }),
            vec!["spec.quantity: Invalid value: 0: spec.quantity in body should be greater than or equal to 1"],
        ),
        (
            json!({ "color": "red", "quantity": 1.5 }),
            vec![
                "spec.quantity: Invalid value: \"number\": spec.quantity in body must be of type integer: \"number\"",
                "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec.quantity",
            ],
        ),
        (json!({ "color": "red", "quantity": 2.0 }), vec![]),
        (
            json!({ "color": "red", "quantity": "3" }),
            vec!["spec.quantity: Invalid value: \"string\": spec.quantity in body must be of type integer: \"string\""],
        ),
        (
            json!({ "color": "red", "quantity": 1, "size": "huge" }),
            vec!["spec.size: Unsupported value: \"huge\": supported values: \"small\", \"medium\", \"large\""],
        ),
        (json!({ "quantity": 1 }), vec!["spec.color: Required value"]),
        (
            json!({ "color": "", "quantity": 1 }),
            vec!["spec.color: Invalid value: \"\": spec.color in body should be at least 1 chars long"],
        ),
        (
            json!({ "color": "Red", "quantity": 1 }),
            vec!["spec.color: Invalid value: \"Red\": spec.color in body should match '^[a-z]*$'"],
        ),
        (json!({ "color": "abcdefghijk", "quantity": 1 }), vec!["spec.color: Too long: may not be more than 10 bytes"]),
        (
            json!({ "color": "red", "quantity": 1, "weight": 0.5 }),
            vec!["spec.weight: Invalid value: 0.5: spec.weight in body should be greater than 0.5"],
        ),
        (
            json!({ "color": "red", "quantity": 1, "picked": "today" }),
            vec!["spec.picked: Invalid value: \"today\": spec.picked in body must be of type date-time: \"today\""],
        ),
        (
            json!({ "color": "red", "quantity": 1, "picked": 5 }),
            vec!["spec.picked: Invalid value: \"int64\": spec.picked in body must be of type date-time: \"int64\""],
        ),
        (json!({ "color": "red", "quantity": 1, "port": "http" }), vec![]),
        (
            json!({ "color": "red", "quantity": 1, "port": true }),
            vec![
                "spec.port: Invalid value: \"boolean\": spec.port in body must be of type integer,string: \"boolean\"",
            ],
        ),
        (
            json!({ "color": "red", "quantity": 1, "tags": ["a", "b", "c", "d"] }),
            vec!["spec.tags: Too many: 4: must have at most 3 items"],
        ),
        (
            json!({ "color": "red", "quantity": 1, "tags": ["a", "b", "a"] }),
            vec!["spec.tags[2]: Duplicate value: \"a\""],
        ),
        (
            json!({ "color": "red", "quantity": 1, "parts": [{ "name": "a" }, { "name": "a", "count": 2 }] }),
            vec!["spec.parts[1]: Duplicate value: {\"name\":\"a\"}"],
        ),
        (
            json!({ "color": "red", "quantity": 1, "labels": { "a": 1 } }),
            vec![
                "spec.labels.a: Invalid value: \"integer\": spec.labels.a in body must be of type string: \"integer\"",
            ],
        ),
        (
            json!({ "color": "red", "quantity": 1, "either": { "a": "", "b": "" } }),
            vec![
                "<nil>: Invalid value: \"\": \"spec.either\" must validate one and only one schema (oneOf). Found 2 valid \
                 alternatives",
            ],
        ),
        (
            json!({ "color": "red", "quantity": 1, "either": {} }),
            vec![
                "<nil>: Invalid value: \"\": \"spec.either\" must validate one and only one schema (oneOf). Found none valid",
                "spec.either.a: Required value",
            ],
        ),
        (json!(null), vec!["spec: Invalid value: \"null\": spec in body must be of type object: \"null\""]),
    ];
    let schema = schema();
    for (spec, expected) in cases {
        assert_eq!(lines(&schema.validate(&apple(spec.clone()), None)), expected, "{spec}");
    }
    assert_eq!(lines(&schema.validate(&json!({}), None)), ["spec: Required value"]);
}

#[test]
fn causes_carry_the_reason_of_their_kind() {
    let reasons = |spec: Value| -> Vec<Reason> {
        schema().validate(&apple(spec), None).into_iter().map(|cause| cause.reason).collect()
    };
    assert_eq!(reasons(json!({ "color": "red", "quantity": 0 })), [Reason::Invalid]);
    assert_eq!(reasons(json!({ "color": "red", "quantity": "" })), [Reason::TypeInvalid]);
    assert_eq!(reasons(json!({ "color": "red", "quantity": 1, "size": "x" })), [Reason::NotSupported]);
    assert_eq!(reasons(json!({ "quantity": 1 })), [Reason::Required]);
    assert_eq!(reasons(json!({ "color": "red", "quantity": 1, "tags": ["a", "a"] })), [Reason::Duplicate]);
}

#[test]
fn what_did_not_change_is_not_held_against_a_write() {
    let old = apple(json!({ "color": "NOT VALID", "quantity": 0, "parts": [{ "name": "a", "count": "x" }] }));
    let schema = schema();
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({ "a": "b" });
    assert_eq!(lines(&schema.validate(&new, Some(&old))), Vec::<String>::new());

    new["spec"]["parts"] = json!([{ "name": "b", "count": 1 }, { "name": "a", "count": "x" }]);
    assert_eq!(
        lines(&schema.validate(&new, Some(&old))),
        Vec::<String>::new(),
        "items of a map list are told apart by key"
    );

    new["spec"]["quantity"] = json!(-1);
    assert_eq!(
        lines(&schema.validate(&new, Some(&old))),
        ["spec.quantity: Invalid value: -1: spec.quantity in body should be greater than or equal to 1"]
    );
}

#[test]
fn unknown_fields_are_pruned_and_named() {
    let mut object = apple(json!({
        "color": "red", "colour": "red",
        "parts": [{ "name": "a" }, { "name": "b", "x": { "y": 1 } }],
        "labels": { "any": "thing" },
        "free": { "what": { "ever": 1 }, "known": { "a": "", "b": "" } },
    }));
    object["metadata"]["nmae"] = json!("typo");
    object["extra"] = json!(1);
    let gone = schema().prune(&mut object);
    assert_eq!(gone, ["extra", "metadata.nmae", "spec.colour", "spec.free.known.b", "spec.parts[1].x"]);
    assert_eq!(
        object,
        apple(json!({
            "color": "red", "parts": [{ "name": "a" }, { "name": "b" }], "labels": { "any": "thing" },
            "free": { "what": { "ever": 1 }, "known": { "a": "" } },
        }))
    );
}

#[test]
fn defaults_fill_objects_that_are_there() {
    let mut object = apple(json!({ "parts": [{ "name": "a" }, { "name": "b", "count": 2 }] }));
    schema().default(&mut object);
    assert_eq!(
        object["spec"],
        json!({ "size": "medium", "parts": [{ "name": "a", "count": 1 }, { "name": "b", "count": 2 }] })
    );
    let mut without_spec = json!({ "metadata": { "name": "a" } });
    schema().default(&mut without_spec);
    assert_eq!(without_spec, json!({ "metadata": { "name": "a" } }));
}

#[test]
fn null_is_dropped_or_defaulted_unless_it_is_a_value() {
    let mut object = apple(json!({ "color": null, "size": null, "note": null, "labels": { "a": null, "b": "c" } }));
    schema().default(&mut object);
    assert_eq!(object["spec"], json!({ "size": "medium", "note": null, "labels": { "b": "c" } }));
}

#[test]
fn whole_numbers_are_stored_as_such() {
    let mut object =
        apple(json!({ "quantity": 2.0, "weight": 1.5, "free": { "list": [{ "n": -3.0 }], "large": 1e300 } }));
    schema().default(&mut object);
    let expected = r#"{"free":{"large":1e+300,"list":[{"n":-3}]},"quantity":2,"size":"medium","weight":1.5}"#;
    assert_eq!(object["spec"].to_string(), expected);
}

#[test]
fn expressions_are_checked_where_they_stand() {
    let schema = Schema::from_crd(&json!({
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "min-size": { "type": "integer" },
                    "max": { "type": "integer" },
                    "name": {
                        "type": "string",
                        "x-kubernetes-validations": [{ "rule": "self == oldSelf", "message": "name is immutable" }]
                    },
                    "list": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["key"],
                        "items": {
                            "type": "object",
                            "required": ["key"],
                            "properties": { "key": { "type": "string" }, "value": { "type": "integer" } },
                            "x-kubernetes-validations": [{ "rule": "self.value >= oldSelf.value" }]
                        }
                    },
                    "once": {
                        "type": "string",
                        "x-kubernetes-validations": [
                            { "rule": "!oldSelf.hasValue() || self == oldSelf.value()", "optionalOldSelf": true }
                        ]
                    }
                },
                "x-kubernetes-validations": [
                    {
                        "rule": "!has(self.max) || self.min__dash__size <= self.max",
                        "messageExpression": "'min-size ' + string(self.min__dash__size) + ' is above ' + string(self.max)",
                        "fieldPath": ".max",
                        "reason": "FieldValueForbidden"
                    }
                ]
            }
        }
    }))
    .unwrap();
    let check = |new: Value, old: Option<Value>| {
        lines(&schema.validate(&json!({ "spec": new }), old.map(|old| json!({ "spec": old })).as_ref()))
    };
    assert_eq!(check(json!({ "min-size": 1, "max": 2 }), None), Vec::<String>::new());
    assert_eq!(check(json!({ "min-size": 3, "max": 2 }), None), ["spec.max: Forbidden: min-size 3 is above 2"]);
    assert_eq!(check(json!({ "name": "a" }), None), Vec::<String>::new(), "there is nothing to compare with");
    assert_eq!(
        check(json!({ "name": "b" }), Some(json!({ "name": "a" }))),
        ["spec.name: Invalid value: \"b\": name is immutable"]
    );
    assert_eq!(
        check(
            json!({ "list": [{ "key": "b", "value": 1 }, { "key": "a", "value": 4 }] }),
            Some(json!({ "list": [{ "key": "a", "value": 5 }, { "key": "b", "value": 0 }] })),
        ),
        ["spec.list[1]: Invalid value: failed rule: self.value >= oldSelf.value"]
    );
    assert_eq!(check(json!({ "once": "a" }), None), Vec::<String>::new());
    assert_eq!(
        check(json!({ "once": "b" }), Some(json!({ "once": "a" }))),
        ["spec.once: Invalid value: \"b\": failed rule: !oldSelf.hasValue() || self == oldSelf.value()"]
    );
    assert_eq!(
        check(json!({ "min-size": "x", "max": 2 }), None),
        [
            "spec.min-size: Invalid value: \"string\": spec.min-size in body must be of type integer: \"string\"",
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the \
             existing errors to complete validation",
        ]
    );
}

#[test]
fn a_schema_that_is_not_structural_is_refused_with_the_place() {
    let spec = |spec: Value| json!({ "type": "object", "properties": { "spec": spec } });
    let cases = [
        (json!({}), "type: Required value: must not be empty at the root"),
        (json!({ "type": "array" }), "type: Invalid value: \"array\": must be object at the root"),
        (spec(json!({})), "properties[spec].type: Required value: must not be empty for specified object fields"),
        (spec(json!({ "type": "array" })), "properties[spec].items: Required value: must be specified"),
        (
            spec(json!({ "type": "array", "items": {} })),
            "properties[spec].items.type: Required value: must not be empty for specified array items",
        ),
        (
            spec(json!({ "type": "text" })),
            "properties[spec].type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \"integer\", \
             \"number\", \"object\", \"string\"",
        ),
        (
            spec(json!({ "type": "object", "properties": {}, "anyOf": [{ "type": "object" }] })),
            "properties[spec].anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            spec(json!({ "type": "object", "allOf": [{ "properties": { "a": { "minLength": 1 } } }] })),
            "properties[spec].properties[a]: Required value: because it is defined in \
             properties[spec].allOf[0].properties[a]",
        ),
        (spec(json!({ "type": "object", "$ref": "#/a" })), "properties[spec].$ref: Forbidden: $ref is not supported"),
        (
            spec(json!({ "type": "string", "pattern": "(" })),
            "properties[spec].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: ",
        ),
        (
            spec(json!({ "type": "string", "pattern": "((a{1000}){1000}){1000}" })),
            "properties[spec].pattern: Invalid value: ",
        ),
        (
            spec(
                json!({ "type": "object", "additionalProperties": { "type": "string" }, "properties": { "a": { "type": "string" } } }),
            ),
            "properties[spec].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            spec(json!({ "type": "array", "items": { "type": "string" }, "x-kubernetes-list-type": "map" })),
            "properties[spec].items.type: Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is \
             map",
        ),
        (
            spec(json!({
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"],
                "items": { "type": "object", "properties": { "a": { "type": "string" } } }
            })),
            "properties[spec].items.properties[a].default: Required value: this property is in x-kubernetes-list-map-keys, so \
             it must have a default or be a required property",
        ),
        (
            spec(json!({ "type": "integer", "default": "one" })),
            "properties[spec].default: Invalid value: \"string\":  in body must be of type integer: \"string\"",
        ),
        (
            spec(json!({ "type": "integer", "x-kubernetes-validations": [{ "rule": "self >" }] })),
            "properties[spec].x-kubernetes-validations[0].rule: Invalid value: {\"rule\":\"self >\"}: compilation failed: ",
        ),
        (
            json!({ "type": "object", "properties": { "metadata": { "type": "object", "required": ["labels"] } } }),
            "properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is \
             implicitly specified",
        ),
    ];
    for (schema, expected) in cases {
        let found = lines(&Schema::from_crd(&schema).unwrap_err());
        assert!(found.iter().any(|line| line.starts_with(expected)), "{schema}\nwants {expected}\nfound {found:#?}");
    }
}

#[test]
fn an_int_or_string_may_say_so_in_two_ways() {
    for port in [
        json!({ "x-kubernetes-int-or-string": true }),
        json!({ "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] }),
        json!({
            "x-kubernetes-int-or-string": true,
            "allOf": [{ "anyOf": [{ "type": "integer" }, { "type": "string" }] }, { "pattern": "^a" }]
        }),
    ] {
        let schema = Schema::from_crd(&json!({ "type": "object", "properties": { "port": port } })).unwrap();
        assert_eq!(schema.validate(&json!({ "port": 80 }), None), []);
        assert_eq!(schema.validate(&json!({ "port": "a" }), None), []);
        assert_ne!(schema.validate(&json!({ "port": [] }), None), []);
    }
}

#[test]
fn embedded_resources_keep_the_fields_of_objects() {
    let schema = Schema::from_crd(&json!({
        "type": "object",
        "properties": {
            "template": {
                "type": "object", "x-kubernetes-embedded-resource": true, "properties": { "spec": { "type": "string" } }
            }
        }
    }))
    .unwrap();
    let mut object = json!({
        "template": { "apiVersion": "v1", "kind": "A", "metadata": { "labels": { "a": "b" }, "x": 1 }, "spec": "", "y": 2 }
    });
    assert_eq!(schema.prune(&mut object), ["template.metadata.x", "template.y"]);
    assert_eq!(schema.validate(&object, None), []);
    assert_eq!(
        lines(&schema.validate(&json!({ "template": { "kind": "" } }), None)),
        ["template.apiVersion: Required value: must not be empty", "template.kind: Required value: must not be empty",]
    );
}

#[test]
fn built_in_kinds_are_known_in_all_their_groups() {
    for (group, version, kind) in [
        ("", "v1", "ConfigMap"),
        ("", "v1", "Pod"),
        ("", "v1", "Status"),
        ("", "v1", "DeleteOptions"),
        ("apps", "v1", "Deployment"),
        ("batch", "v1", "CronJob"),
        ("rbac.authorization.k8s.io", "v1", "ClusterRole"),
        ("coordination.k8s.io", "v1", "Lease"),
        ("events.k8s.io", "v1", "Event"),
        ("networking.k8s.io", "v1", "Ingress"),
        ("policy", "v1", "PodDisruptionBudget"),
        ("autoscaling", "v1", "Scale"),
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
    ] {
        assert!(Schema::builtin(group, version, kind).is_some(), "{group}/{version} {kind}");
    }
    assert!(Schema::builtin("", "v2", "ConfigMap").is_none());
    assert!(Schema::builtin("stable.example.com", "v1", "MyApple").is_none());
}

#[test]
fn a_built_in_object_is_pruned_defaulted_and_validated() {
    let schema = Schema::builtin("", "v1", "Pod").unwrap();
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a", "creationTimestamp": null },
        "spec": {
            "containers": [{ "name": "c", "image": "i", "imag": "i", "ports": [{ "containerPort": 80 }],
                "resources": { "limits": { "cpu": 1, "memory": "1Gi" } },
                "livenessProbe": { "httpGet": { "port": "http" } } }],
            "nodeSelector": { "a": null },
        },
        "status": { "containerStatuses": [{ "name": "c" }] }
    });
    assert_eq!(schema.prune(&mut pod), ["spec.containers[0].imag"]);
    schema.default(&mut pod);
    assert_eq!(
        pod,
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a" },
            "spec": {
                "containers": [{ "name": "c", "image": "i", "ports": [{ "containerPort": 80, "protocol": "TCP" }],
                    "resources": { "limits": { "cpu": 1, "memory": "1Gi" } },
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                    "livenessProbe": { "httpGet": { "port": "http", "path": "/", "scheme": "HTTP" },
                        "failureThreshold": 3, "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1 } }],
                "nodeSelector": { "a": "" }, "dnsPolicy": "ClusterFirst", "restartPolicy": "Always",
                "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
            },
            "status": { "containerStatuses": [{ "name": "c" }] }
        })
    );
    assert_eq!(schema.validate(&pod, None), []);
    pod["spec"]["containers"] = json!([{ "image": 1, "ports": [{ "containerPort": 5_000_000_000_i64 }] }]);
    assert_eq!(
        lines(&schema.validate(&pod, None)),
        [
            "spec.containers[0].image: Invalid value: \"integer\": spec.containers[0].image in body must be of type string: \
             \"integer\"",
            "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in \
             spec.containers[0].ports[0].containerPort",
            "spec.containers[0].name: Required value",
        ]
    );
}

#[test]
fn what_a_built_in_definition_leaves_open_is_kept() {
    let crd = Schema::builtin("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
    let mut object = json!({ "spec": { "versions": [{ "name": "v1", "schema": { "openAPIV3Schema": {
        "type": "object", "properties": { "a": { "default": { "any": { "thing": [1] } }, "unknown": 1 } },
        "additionalProperties": { "type": "string" }
    } } }] } });
    assert_eq!(crd.prune(&mut object), ["spec.versions[0].schema.openAPIV3Schema.properties.a.unknown"]);
    let schema = &object["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert_eq!(schema["properties"]["a"]["default"], json!({ "any": { "thing": [1] } }));
    assert_eq!(schema["additionalProperties"], json!({ "type": "string" }));
}

#[test]
fn micro_times_have_six_digits() {
    let lease = Schema::builtin("coordination.k8s.io", "v1", "Lease").unwrap();
    let at = |time: &str| lease.validate(&json!({ "spec": { "renewTime": time } }), None).len();
    assert_eq!(at("2026-01-02T03:04:05.123456Z"), 0);
    assert_eq!(at("2026-01-02T03:04:05.5Z"), 1);
}

#[test]
fn documents_refer_to_definitions_that_are_given() {
    for schema in [
        Schema::builtin("apps", "v1", "Deployment").unwrap().as_ref().clone(),
        Schema::from_crd(&myapple()).unwrap(),
        Schema::preserve_all(),
    ] {
        let definitions = schema.openapi_definitions();
        let text = format!("{}{}", schema.openapi(), Value::Object(definitions.clone()));
        let mut references = 0;
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(definitions.contains_key(name), "{name}");
            references += 1;
        }
        assert!(references > 0);
    }
    let document = Schema::from_crd(&myapple()).unwrap().openapi();
    assert_eq!(document["properties"]["kind"], json!({ "type": "string" }));
    assert_eq!(document["properties"]["spec"], myapple()["properties"]["spec"]);
}

#[test]
fn a_schema_that_says_nothing_keeps_everything() {
    let schema = Schema::preserve_all();
    let object = json!({ "apiVersion": "a/v1", "kind": "A", "metadata": { "name": "a" }, "any": [{ "thing": null }] });
    let mut walked = object.clone();
    assert_eq!(schema.prune(&mut walked), Vec::<String>::new());
    schema.default(&mut walked);
    assert_eq!(walked, object);
    assert_eq!(schema.validate(&object, None), []);
}

#[test]
fn nesting_is_bounded() {
    let mut chain = json!({ "type": "string" });
    let mut object = json!("");
    for _ in 0..2 * node::MAX_DEPTH {
        chain = json!({ "type": "object", "properties": { "a": chain } });
        object = json!({ "a": object });
    }
    assert!(Schema::from_crd(&chain).is_err());
    assert!(node::too_deep(&object));
    let schema = Schema::preserve_all();
    assert_eq!(schema.prune(&mut object.clone()), Vec::<String>::new());
    schema.default(&mut object);
    let crd = Schema::builtin("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
    let object = json!({ "spec": { "versions": [{ "schema": { "openAPIV3Schema": chain } }] } });
    assert!(lines(&crd.validate(&object, None)).iter().any(|line| line.ends_with("Forbidden: nested too deeply")));
}
