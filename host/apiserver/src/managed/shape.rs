//! How a value is owned: as a whole, field by field, or item by item.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::path::Element;
use crate::schema::{
    go,
    node::{ListKind, Node, Type},
};

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
    /// Returns how a value at a node is owned, or `None` if a null may be of any shape.
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

/// Returns the step to an item of a list that is owned item by item.
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

/// Returns the steps to all items, or `None` if an item has no step, so that the list counts as a whole.
pub(super) fn elements(node: &Node, items: &[Value], builtin: bool) -> Option<Vec<Element>> {
    items.iter().map(|item| element(node, item, builtin).ok()).collect()
}

/// Finds contradictions between an applied object and the schema that prevent a merge.
pub(super) struct Check<'a> {
    pub(super) builtin: bool,
    /// The errors, with their paths.
    pub(super) wrong: &'a mut Vec<String>,
}

impl Check<'_> {
    /// Checks a value. `keeps_unknown` is `true` if unknown fields are kept above, and therefore also beneath.
    pub(super) fn check(&mut self, node: &Node, value: &Value, keeps_unknown: bool, path: &mut String) {
        let resolved = node.resolve();
        let keeps_unknown = keeps_unknown || resolved.preserve;
        match (resolved.kind, value) {
            (_, Value::Null) => {}
            (Type::Object, Value::Object(fields)) => self.check_fields(node, fields, keeps_unknown, path),
            (Type::Any, Value::Object(fields)) if resolved.preserve => {
                self.check_fields(node, fields, keeps_unknown, path);
            }
            (Type::Array, Value::Array(items)) => self.check_items(node, items, keeps_unknown, path),
            (Type::Any, Value::Array(items)) if resolved.preserve => {
                self.check_items(node, items, keeps_unknown, path);
            }
            (Type::Object, other) => self.complain(path, &format!("expected map, got &{{{}}}", go::plain(other))),
            (Type::Array, other) => self.complain(path, &format!("expected list, got &{{{}}}", go::plain(other))),
            (kind, value) => self.check_scalar(resolved, kind, value, path),
        }
    }

    fn check_fields(&mut self, node: &Node, fields: &Map<String, Value>, keeps_unknown: bool, path: &mut String) {
        for (name, value) in fields {
            let length = path.len();
            path.push('.');
            path.push_str(name);
            match node.field(name) {
                Some(field) => self.check(field, value, keeps_unknown, path),
                None if keeps_unknown => {}
                None => self.complain(path, "field not declared in schema"),
            }
            path.truncate(length);
        }
    }

    fn check_items(&mut self, node: &Node, items: &[Value], keeps_unknown: bool, path: &mut String) {
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let step = match node.list() {
                ListKind::Atomic => Ok(Element::Index(i64::try_from(index).unwrap_or(i64::MAX))),
                _ => element(node, item, self.builtin),
            };
            let step = match step {
                Ok(step) => step,
                Err(why) => return self.complain(path, &format!("element {index}: {why}")),
            };
            let length = path.len();
            if !seen.insert(step.clone()) {
                self.complain(path, &format!("duplicate entries for key {step}"));
            }
            path.push_str(&step.to_string());
            self.check(node.item(), item, keeps_unknown, path);
            path.truncate(length);
        }
    }

    fn check_scalar(&mut self, node: &Node, kind: Type, value: &Value, path: &str) {
        let format = node.rules.as_ref().and_then(|rules| rules.format.as_deref()).unwrap_or_default();
        let is_scalar = !value.is_object() && !value.is_array();
        let expected = match kind {
            // A string with a format may have other types.
            Type::String if matches!(format, "" | "byte") => (value.is_string(), "string"),
            Type::Boolean => (value.is_boolean(), "boolean"),
            Type::Integer | Type::Number => (value.is_number(), "numeric (int or float)"),
            // Custom resources do not declare an int-or-string as a scalar.
            _ => (is_scalar || (node.int_or_string && !self.builtin), "any scalar"),
        };
        let (false, expected) = expected else { return };
        let found = match expected {
            "string" => format!("&value.valueUnstructured{{Value:{}}}", go::syntax(value)),
            "numeric (int or float)" => go::type_name(value).to_owned(),
            _ => format!("&{{{}}}", go::plain(value)),
        };
        self.complain(path, &format!("expected {expected}, got {found}"));
    }

    fn complain(&mut self, path: &str, what: &str) {
        self.wrong.push(format!("{path}: {what}"));
    }
}
