//! Checks that a CustomResourceDefinition's schema is structural and has no unsupported keywords.
//!
//! A schema is structural if each field's type is declared exactly once, outside of `allOf`, `anyOf`, `oneOf` and
//! `not`. Pruning and defaulting then have one answer. The checks read the JSON, because a [`Node`](super::node::Node)
//! has only valid parts.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{
    Cause, Schema, cel,
    node::{Additional, MAX_DEPTH, Node, strings},
    rules::pattern,
    validate,
};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Keywords of JSON Schema that CustomResourceDefinitions do not support.
const UNSUPPORTED: [&str; 6] = ["$ref", "additionalItems", "definitions", "dependencies", "id", "patternProperties"];

/// Keywords that are forbidden within `allOf`, `anyOf`, `oneOf` and `not`, with the messages.
const FORBIDDEN_NESTED: [(&str, &str); 11] = [
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-validations", "must be empty to be structural"),
];

/// Returns all violations of a schema.
pub(super) fn check(schema: &Value) -> Vec<Cause> {
    let Some(root) = schema.as_object() else {
        return vec![Cause::required("", "schemas are required")];
    };
    let mut causes = Vec::new();
    check_node(root, Place::Root, "", &mut causes, 0);
    if root.get("nullable") == Some(&Value::Bool(true)) {
        causes.push(Cause::forbidden("nullable", "nullable cannot be true at the root"));
    }
    causes.sort_by(|a, b| a.field.cmp(&b.field));
    causes
}

/// Returns a cause for every default that its own schema rejects.
pub(super) fn check_defaults(schema: &Schema) -> Vec<Cause> {
    let mut causes = Vec::new();
    check_default(&schema.root, "", &mut causes, 0);
    causes
}

fn check_default(node: &Node, path: &str, causes: &mut Vec<Cause>, depth: usize) {
    if depth > MAX_DEPTH || node.reference.is_some() {
        return;
    }
    if let Some(default) = &node.default {
        let schema = Schema { root: node.clone(), source: Value::Null.into(), builtin: false };
        let mut complete = default.clone();
        schema.default(&mut complete);
        let path = child(path, "default");
        for field in schema.prune(&mut complete) {
            causes.push(Cause::invalid(&path, default, &format!("must not have unknown fields, but has {field}")));
        }
        causes.extend(
            validate::validate(&schema, &complete, None)
                .into_iter()
                .map(|cause| Cause { field: path.clone(), ..cause }),
        );
    }
    for (name, field) in &node.properties {
        check_default(field, &format!("{}[{name}]", child(path, "properties")), causes, depth + 1);
    }
    if let Some(Additional::Each(each)) = &node.additional {
        check_default(each, &child(path, "additionalProperties"), causes, depth + 1);
    }
    if let Some(items) = &node.items {
        check_default(items, &child(path, "items"), causes, depth + 1);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Item,
    Field,
}

/// Checks a schema that declares fields.
fn check_node(schema: &Map<String, Value>, place: Place, path: &str, causes: &mut Vec<Cause>, depth: usize) {
    if depth > MAX_DEPTH {
        causes.push(Cause::forbidden(path, "nested too deeply"));
        return;
    }
    let at = |name: &str| child(path, name);
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    let flag = |name: &str| schema.get(name) == Some(&Value::Bool(true));
    let properties = schema.get("properties").and_then(Value::as_object);
    let (preserves, is_embedded) =
        (flag("x-kubernetes-preserve-unknown-fields"), flag("x-kubernetes-embedded-resource"));
    let int_or_string = flag("x-kubernetes-int-or-string");

    check_supported(schema, path, causes);
    if !kind.is_empty() && !TYPES.contains(&kind) {
        causes.push(Cause::not_supported(&at("type"), &Value::from(kind), &TYPES));
    }
    if is_embedded && kind != "object" {
        causes.push(wrong_type(&at("type"), kind, "must be object if x-kubernetes-embedded-resource is true"));
    } else if kind.is_empty() && !int_or_string && !preserves {
        let detail = match place {
            Place::Root => "must not be empty at the root",
            Place::Item => "must not be empty for specified array items",
            Place::Field => "must not be empty for specified object fields",
        };
        causes.push(Cause::required(&at("type"), detail));
    }
    if place == Place::Root && !kind.is_empty() && kind != "object" {
        causes.push(Cause::invalid(&at("type"), &Value::from(kind), "must be object at the root"));
    }
    if int_or_string && preserves {
        let field = at("x-kubernetes-preserve-unknown-fields");
        causes.push(Cause::invalid(&field, &json!(true), "must be false if x-kubernetes-int-or-string is true"));
    }
    if int_or_string && is_embedded {
        let field = at("x-kubernetes-embedded-resource");
        causes.push(Cause::invalid(&field, &json!(true), "must be false if x-kubernetes-int-or-string is true"));
    }
    if is_embedded && !preserves && properties.is_none_or(Map::is_empty) {
        causes.push(Cause::required(
            &at("properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ));
    }
    if let Some(properties) = properties {
        let is_object = place == Place::Root || is_embedded;
        for (name, property) in properties {
            let path = format!("{}[{name}]", at("properties"));
            if name == "metadata" && is_object {
                check_metadata(property, place == Place::Root, &path, causes);
                continue;
            }
            let kind = property.get("type").and_then(Value::as_str).unwrap_or_default();
            if is_object && matches!(name.as_str(), "kind" | "apiVersion") && kind != "string" {
                causes.push(Cause::invalid(&child(&path, "type"), &Value::from(kind), "must be string"));
            }
            check_child(property, Place::Field, &path, causes, depth);
        }
    }
    check_additional(schema, place, path, causes, depth);
    match schema.get("items") {
        None if kind == "array" => causes.push(Cause::required(&at("items"), "must be specified")),
        None => {}
        Some(Value::Array(_)) => {
            causes.push(Cause::forbidden(&at("items"), "items must be a schema object and not an array"));
        }
        Some(items) => check_child(items, Place::Item, &at("items"), causes, depth),
    }
    check_lists(schema, kind, path, causes);
    check_rules(schema, path, causes);
    check_branches(Some(schema), schema, int_or_string, path, causes, depth);
}

fn check_child(schema: &Value, place: Place, path: &str, causes: &mut Vec<Cause>, depth: usize) {
    match schema.as_object() {
        Some(schema) => check_node(schema, place, path, causes, depth + 1),
        None => causes.push(Cause::invalid(path, schema, "must be a schema")),
    }
}

fn check_supported(schema: &Map<String, Value>, path: &str, causes: &mut Vec<Cause>) {
    for name in UNSUPPORTED {
        if schema.get(name).is_some_and(|value| !value.is_null()) {
            causes.push(Cause::forbidden(&child(path, name), &format!("{name} is not supported")));
        }
    }
    if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        causes.push(Cause::forbidden(&child(path, "uniqueItems"), detail));
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        let field = child(path, "x-kubernetes-preserve-unknown-fields");
        causes.push(Cause::invalid(&field, &json!(false), "must be true or undefined"));
    }
    if let Some(text) = schema.get("pattern").and_then(Value::as_str)
        && let Err(error) = pattern(text)
    {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        causes.push(Cause::invalid(&child(path, "pattern"), &Value::from(text), &detail));
    }
}

fn check_metadata(schema: &Value, at_root: bool, path: &str, causes: &mut Vec<Cause>) {
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    if kind != "object" {
        causes.push(Cause::invalid(&child(path, "type"), &Value::from(kind), "must be object"));
    }
    let allowed = |(name, value): (&String, &Value)| match name.as_str() {
        "type" | "description" => true,
        "properties" => value
            .as_object()
            .is_some_and(|fields| fields.keys().all(|field| matches!(field.as_str(), "name" | "generateName"))),
        _ => false,
    };
    if at_root && !schema.as_object().is_some_and(|schema| schema.iter().all(allowed)) {
        causes.push(Cause::forbidden(
            path,
            "must not specify anything other than name and generateName, but metadata is implicitly specified",
        ));
    }
}

fn check_additional(schema: &Map<String, Value>, place: Place, path: &str, causes: &mut Vec<Cause>, depth: usize) {
    let field = child(path, "additionalProperties");
    let Some(additional) = schema.get("additionalProperties").filter(|value| !value.is_null()) else { return };
    let has_properties = schema.get("properties").and_then(Value::as_object).is_some_and(|fields| !fields.is_empty());
    if has_properties && *additional != Value::Bool(true) {
        causes.push(Cause::forbidden(&field, "additionalProperties and properties are mutual exclusive"));
    }
    if place == Place::Root {
        causes.push(Cause::forbidden(&field, "must not be used at the root"));
    } else if schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true)) {
        causes.push(Cause::forbidden(&field, "must not be used if x-kubernetes-embedded-resource is set"));
    }
    if let Value::Object(each) = additional {
        check_node(each, Place::Field, &field, causes, depth + 1);
    }
}

/// Checks `x-kubernetes-list-type`, `-list-map-keys` and `-map-type`.
fn check_lists(schema: &Map<String, Value>, kind: &str, path: &str, causes: &mut Vec<Cause>) {
    let at = |name: &str| child(path, name);
    let text = |name: &str| schema.get(name).and_then(Value::as_str);
    if let Some(map_type) = text("x-kubernetes-map-type") {
        if kind != "object" {
            causes.push(wrong_type(&at("type"), kind, "must be object if x-kubernetes-map-type is specified"));
        }
        if !["atomic", "granular"].contains(&map_type) {
            let field = at("x-kubernetes-map-type");
            causes.push(Cause::not_supported(&field, &Value::from(map_type), &["atomic", "granular"]));
        }
    }
    let keys = strings(schema, "x-kubernetes-list-map-keys");
    let list_type = text("x-kubernetes-list-type");
    if !keys.is_empty() && list_type != Some("map") {
        let field = at("x-kubernetes-list-type");
        causes.push(wrong_type(
            &field,
            list_type.unwrap_or_default(),
            "must be map if x-kubernetes-list-map-keys is non-empty",
        ));
    }
    let Some(list_type) = list_type else { return };
    if kind != "array" {
        causes.push(wrong_type(&at("type"), kind, "must be array if x-kubernetes-list-type is specified"));
    }
    let items = schema.get("items").and_then(Value::as_object);
    match list_type {
        "atomic" => {}
        "set" => {
            let is_atomic = |items: &Map<String, Value>| match items.get("type").and_then(Value::as_str) {
                Some("object") => items.get("x-kubernetes-map-type") == Some(&json!("atomic")),
                Some("array") => !matches!(items.get("x-kubernetes-list-type"), Some(list) if *list != json!("atomic")),
                _ => true,
            };
            if let Some(items) = items.filter(|items| !is_atomic(items)) {
                let keyword = if items.get("type") == Some(&json!("array")) { "list" } else { "map" };
                let field = format!("{}.x-kubernetes-{keyword}-type", at("items"));
                let value = items.get(&format!("x-kubernetes-{keyword}-type")).cloned().unwrap_or_default();
                causes.push(Cause::invalid(
                    &field,
                    &value,
                    "must be atomic as item of a list with x-kubernetes-list-type=set",
                ));
            }
        }
        "map" => check_map_list(&keys, items, path, causes),
        other => {
            let field = at("x-kubernetes-list-type");
            causes.push(Cause::not_supported(&field, &Value::from(other), &["atomic", "set", "map"]));
        }
    }
    if items.is_some_and(|items| items.get("nullable") == Some(&Value::Bool(true))) && list_type != "atomic" {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        causes.push(Cause::forbidden(&format!("{}.nullable", at("items")), &detail));
    }
}

fn check_map_list(keys: &[String], items: Option<&Map<String, Value>>, path: &str, causes: &mut Vec<Cause>) {
    let at = |name: &str| child(path, name);
    let keys_field = at("x-kubernetes-list-map-keys");
    if keys.is_empty() {
        causes.push(Cause::required(&keys_field, "must not be empty if x-kubernetes-list-type is map"));
    }
    let Some(items) = items else {
        causes.push(Cause::required(&at("items"), "must have a schema if x-kubernetes-list-type is map"));
        return;
    };
    let kind = items.get("type").and_then(Value::as_str).unwrap_or_default();
    if kind != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        causes.push(Cause::invalid(&format!("{}.type", at("items")), &Value::from(kind), detail));
    }
    let required = strings(items, "required");
    let mut seen = HashSet::new();
    for key in keys {
        let field = format!("{}.properties[{key}]", at("items"));
        if !seen.insert(key) {
            causes.push(Cause::invalid(&keys_field, &json!(keys), "must not contain duplicate entries"));
        }
        let Some(property) = items.get("properties").and_then(|properties| properties.get(key)) else {
            causes.push(Cause::invalid(&keys_field, &json!(keys), "entries must all be names of item properties"));
            continue;
        };
        if matches!(property.get("type").and_then(Value::as_str), Some("array" | "object")) {
            let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            causes.push(Cause::invalid(&format!("{field}.type"), &Value::from(kind), detail));
        }
        if !required.contains(key) && property.get("default").is_none_or(Value::is_null) {
            let detail =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            causes.push(Cause::required(&format!("{field}.default"), detail));
        }
        if property.get("nullable") == Some(&Value::Bool(true)) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            causes.push(Cause::forbidden(&format!("{field}.nullable"), detail));
        }
    }
}

/// Checks `x-kubernetes-validations`.
fn check_rules(schema: &Map<String, Value>, path: &str, causes: &mut Vec<Cause>) {
    let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array);
    for (index, rule) in rules.into_iter().flatten().enumerate() {
        let at = |name: &str| format!("{}[{index}].{name}", child(path, "x-kubernetes-validations"));
        let text = |name: &str| rule.get(name).and_then(Value::as_str);
        let expression = text("rule").unwrap_or_default();
        if expression.trim().is_empty() {
            causes.push(Cause::required(&at("rule"), "rule is not specified"));
        } else if let Err(error) = cel::compile(expression) {
            causes.push(Cause::invalid(&at("rule"), rule, &format!("compilation failed: {error}")));
        }
        if let Some(message) = text("message") {
            if message.trim().is_empty() {
                causes.push(Cause::invalid(&at("message"), &json!(message), "must be non-empty if specified"));
            } else if message.contains('\n') {
                causes.push(Cause::invalid(&at("message"), &json!(message), "must not contain line breaks"));
            }
        } else if expression.trim().contains('\n') && text("messageExpression").is_none() {
            causes.push(Cause::required(&at("message"), "message must be specified if rule contains line breaks"));
        }
        if let Some(expression) = text("messageExpression") {
            if expression.trim().is_empty() {
                causes.push(Cause::required(
                    &at("messageExpression"),
                    "messageExpression must be non-empty if specified",
                ));
            } else if let Err(error) = cel::compile(expression) {
                let detail = format!("messageExpression compilation failed: {error}");
                causes.push(Cause::invalid(&at("messageExpression"), rule, &detail));
            }
        }
        const REASONS: [&str; 4] =
            ["FieldValueRequired", "FieldValueForbidden", "FieldValueInvalid", "FieldValueDuplicate"];
        if let Some(reason) = text("reason").filter(|reason| !REASONS.contains(reason)) {
            causes.push(Cause::not_supported(&at("reason"), &json!(reason), &REASONS));
        }
    }
}

/// Checks `allOf`, `anyOf`, `oneOf` and `not`. `outside` is the surrounding schema, which must declare their fields. It
/// is `None` inside a list or map that needs no declaration.
fn check_branches(
    outside: Option<&Map<String, Value>>,
    schema: &Map<String, Value>,
    int_or_string: bool,
    path: &str,
    causes: &mut Vec<Cause>,
    depth: usize,
) {
    let pattern = json!([{ "type": "integer" }, { "type": "string" }]);
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let Some(branches) = schema.get(keyword).and_then(Value::as_array) else { continue };
        // The two allowed declarations of an int-or-string.
        if int_or_string && keyword == "anyOf" && schema.get("anyOf") == Some(&pattern) {
            continue;
        }
        for (index, branch) in branches.iter().enumerate() {
            if let Some(branch) = branch.as_object() {
                let int_or_string = int_or_string && keyword == "allOf" && index == 0;
                let path = format!("{}[{index}]", child(path, keyword));
                check_branch(outside, branch, int_or_string, &path, causes, depth + 1);
            }
        }
    }
    if let Some(not) = schema.get("not").and_then(Value::as_object) {
        check_branch(outside, not, false, &child(path, "not"), causes, depth + 1);
    }
}

/// Checks a schema that only restricts.
fn check_branch(
    outside: Option<&Map<String, Value>>,
    branch: &Map<String, Value>,
    int_or_string: bool,
    path: &str,
    causes: &mut Vec<Cause>,
    depth: usize,
) {
    if depth > MAX_DEPTH {
        causes.push(Cause::forbidden(path, "nested too deeply"));
        return;
    }
    check_supported(branch, path, causes);
    for (name, detail) in FORBIDDEN_NESTED {
        let says = branch.get(name).is_some_and(|value| {
            !matches!(value, Value::Null | Value::Bool(false)) && value.as_str() != Some("") && *value != json!([])
        });
        if says {
            causes.push(Cause::forbidden(&child(path, name), detail));
        }
    }
    let get = |name: &str| outside.and_then(|outside| outside.get(name)).and_then(Value::as_object);
    if let Some(properties) = branch.get("properties").and_then(Value::as_object) {
        for (name, property) in properties {
            let path = format!("{}[{name}]", child(path, "properties"));
            if name == "metadata" {
                causes.push(Cause::forbidden(&path, "must not be specified in a nested context"));
            }
            let outside = get("properties").and_then(|properties| properties.get(name)).and_then(Value::as_object);
            if outside.is_none() && name != "metadata" {
                causes.push(Cause::required(&said_outside(&path), &format!("because it is defined in {path}")));
            }
            if let Some(property) = property.as_object() {
                check_branch(outside, property, false, &path, causes, depth + 1);
            }
        }
    }
    if let Some(items) = branch.get("items").and_then(Value::as_object) {
        let path = child(path, "items");
        let outside = get("items");
        if outside.is_none() {
            causes.push(Cause::required(&said_outside(&path), &format!("because it is defined in {path}")));
        }
        check_branch(outside, items, false, &path, causes, depth + 1);
    }
    check_branches(outside, branch, int_or_string, path, causes, depth);
}

/// Returns the path without branches, where a branch's field must be declared.
fn said_outside(path: &str) -> String {
    let is_branch =
        |part: &&str| !["allOf[", "anyOf[", "oneOf["].iter().any(|keyword| part.starts_with(keyword)) && *part != "not";
    path.split('.').filter(is_branch).collect::<Vec<_>>().join(".")
}

fn wrong_type(field: &str, found: &str, detail: &str) -> Cause {
    if found.is_empty() { Cause::required(field, detail) } else { Cause::invalid(field, &Value::from(found), detail) }
}

fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
