//! How a value is owned: as a whole, field by field, or item by item.

use serde_json::Value;

use super::path::Element;
use crate::schema::node::{ListKind, Node, Type};

/// How a value is owned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// As a whole.
    Leaf,
    /// Field by field.
    Map,
    /// Item by item.
    List,
}

impl Shape {
    /// How a value at a node is owned; none where null may be any.
    pub(super) fn of(node: &Node, value: &Value) -> Option<Shape> {
        let shape = match (node.resolve().kind, value) {
            (Type::Object, Value::Object(_) | Value::Null) => Shape::Map,
            (Type::Array, Value::Array(_) | Value::Null) => Shape::List,
            (Type::Any, Value::Object(_)) => Shape::Map,
            (Type::Any, Value::Array(_)) => Shape::List,
            (Type::Any, Value::Null) => return None,
            _ => Shape::Leaf,
        };
        Some(match shape {
            Shape::Map if node.is_atomic_map() => Shape::Leaf,
            Shape::List if *node.list() == ListKind::Atomic => Shape::Leaf,
            shape => shape,
        })
    }
}

/// The step to an item of a list that is owned item by item.
pub(super) fn element(node: &Node, item: &Value, builtin: bool) -> Result<Element, String> {
    match node.list() {
        ListKind::Map(keys) => {
            let Value::Object(fields) = item else {
                return Err("associative list with keys may not have non-map elements".to_owned());
            };
            let key = |key: &String| {
                let value = fields.get(key).cloned().or_else(|| node.item().key_default(key, builtin))?;
                Some((key.clone(), value))
            };
            let found: Vec<_> = keys.iter().filter_map(key).collect();
            if found.is_empty() {
                return Err(format!(
                    "associative list with keys has an element that omits all key fields {keys:?} (and doesn't have default \
                     values for any key fields)"
                ));
            }
            Ok(Element::key(found))
        }
        _ => match item {
            Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
            scalar => Ok(Element::Value(super::path::Atom::new(scalar.clone()))),
        },
    }
}

/// The steps to all items; none if one of them has none, and the list can only be taken as a whole.
pub(super) fn elements(node: &Node, items: &[Value], builtin: bool) -> Option<Vec<Element>> {
    items.iter().map(|item| element(node, item, builtin).ok()).collect()
}

/// What of an applied object contradicts the schema so that it cannot be merged, with its path.
pub(super) fn check(node: &Node, value: &Value, builtin: bool, path: &mut String, wrong: &mut Vec<String>) {
    let mut complain = |what: String| wrong.push(format!("{path}: {what}"));
    let resolved = node.resolve();
    match (resolved.kind, value) {
        (_, Value::Null) => {}
        (Type::Object | Type::Any, Value::Object(fields)) if resolved.kind == Type::Object || resolved.preserve => {
            for (name, value) in fields {
                let length = path.len();
                path.push('.');
                path.push_str(name);
                match node.field(name) {
                    Some(field) => check(field, value, builtin, path, wrong),
                    None => wrong.push(format!("{path}: field not declared in schema")),
                }
                path.truncate(length);
            }
        }
        (Type::Array | Type::Any, Value::Array(items)) if resolved.kind == Type::Array || resolved.preserve => {
            let mut seen = std::collections::BTreeSet::new();
            for (index, item) in items.iter().enumerate() {
                let step = match node.list() {
                    ListKind::Atomic => Element::Index(i64::try_from(index).unwrap_or(i64::MAX)),
                    _ => match element(node, item, builtin) {
                        Ok(step) => step,
                        Err(why) => {
                            wrong.push(format!("{path}: element {index}: {why}"));
                            return;
                        }
                    },
                };
                if !seen.insert(step.clone()) {
                    wrong.push(format!("{path}: duplicate entries for key {step}"));
                }
                let length = path.len();
                path.push_str(&step.to_string());
                check(node.item(), item, builtin, path, wrong);
                path.truncate(length);
            }
        }
        (Type::Object, other) => complain(format!("expected map, got {other}")),
        (Type::Array, other) => complain(format!("expected list, got {other}")),
        (Type::String, Value::String(_))
        | (Type::Boolean, Value::Bool(_))
        | (Type::Integer | Type::Number, Value::Number(_)) => {}
        (Type::String, other) => complain(format!("expected string, got {other}")),
        (Type::Boolean, other) => complain(format!("expected boolean, got {other}")),
        (Type::Integer | Type::Number, other) => complain(format!("expected numeric (int or float), got {other}")),
        (Type::Any, Value::Object(_) | Value::Array(_)) => complain(format!("expected any scalar, got {value}")),
        (Type::Any, _) => {}
    }
}
