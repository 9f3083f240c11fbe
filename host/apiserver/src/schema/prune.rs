//! The two walks that change an object: one removes unknown fields, the other sets defaults.

use serde_json::Value;

use super::node::{Additional, FREE, MAX_DEPTH, Node};

/// Removes unknown fields, and returns their paths in order.
pub(super) fn prune(root: &Node, object: &mut Value) -> Vec<String> {
    let mut gone = Vec::new();
    prune_at(Some(root), object, &mut String::new(), &mut gone, 0);
    gone.sort();
    gone
}

/// Prunes a value. `node` is `None` beneath `additionalProperties: true`, where no field is known. As in
/// kube-apiserver, only scalars and lists of scalars are kept there.
fn prune_at(node: Option<&Node>, value: &mut Value, path: &mut String, gone: &mut Vec<String>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    let node = node.map(Node::resolve);
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let length = path.len();
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(name);
            let (known, child) = match node {
                None => (false, None),
                Some(node) => match (node.properties.get(name), &node.additional) {
                    (Some(field), _) => (true, Some(field)),
                    (None, Some(Additional::Each(each))) => (true, Some(each.as_ref())),
                    (None, Some(Additional::Any)) => (true, None),
                    (None, None) => (node.preserve, Some(&FREE)),
                },
            };
            if known {
                prune_at(child, value, path, gone, depth + 1);
            } else {
                gone.push(path.clone());
            }
            path.truncate(length);
            known
        }),
        Value::Array(items) => {
            let child = match node {
                Some(node) if node.items.is_none() && node.preserve => Some(&FREE),
                Some(node) => node.items.as_deref(),
                None => None,
            };
            for (index, item) in items.iter_mut().enumerate() {
                let length = path.len();
                path.push_str(&format!("[{index}]"));
                prune_at(child, item, path, gone, depth + 1);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

/// Sets absent fields to their defaults, drops nulls where null is not a value, and writes whole floats as integers.
/// `builtin` objects are Go structs in kube-apiserver, where null leaves the zero value.
pub(super) fn default(root: &Node, object: &mut Value, builtin: bool) {
    default_at(root, object, builtin, 0);
}

fn default_at(node: &Node, value: &mut Value, builtin: bool, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    let node = node.resolve();
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| match node.field(name) {
                Some(field) if value.is_null() && !field.nullable => {
                    let is_key = !node.properties.contains_key(name);
                    match (&field.default, field.resolve().kind) {
                        (Some(default), _) => *value = default.clone(),
                        (None, super::node::Type::String) if builtin && is_key => *value = Value::from(""),
                        _ => return false,
                    }
                    true
                }
                _ => true,
            });
            for (name, field) in &node.properties {
                if let Some(default) = &field.default
                    && !fields.contains_key(name)
                {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields {
                if let Some(field) = node.field(name) {
                    default_at(field, value, builtin, depth + 1);
                }
            }
        }
        Value::Array(items) => {
            let item = node.item();
            for value in items {
                if let Some(default) = item.default.as_ref().filter(|_| value.is_null() && !item.nullable) {
                    *value = default.clone();
                }
                default_at(item, value, builtin, depth + 1);
            }
        }
        // kube-apiserver stores 2.0 as 2. Beyond 2⁵³, not every integer is a float.
        Value::Number(number) if number.is_f64() => {
            if let Some(float) = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15) {
                *number = (float as i64).into();
            }
        }
        _ => {}
    }
}
