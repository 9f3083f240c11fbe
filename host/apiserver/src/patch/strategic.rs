//! Strategic merge patch: a merge patch that merges lists and may contain directives.
//!
//! | directive | where | means |
//! |---|---|---|
//! | `$patch: replace` | object | keeps only the patch's fields |
//! | `$patch: replace` | item of a list | keeps only the patch's items |
//! | `$patch: delete` | object | empties it |
//! | `$patch: delete` | item of a list | removes the item with its merge key |
//! | `$retainKeys: [...]` | object | drops the fields that it does not name |
//! | `$deleteFromPrimitiveList/<field>: [...]` | beside a list | removes these values |
//! | `$setElementOrder/<field>: [...]` | beside a list | the order of items |
//!
//! Kubernetes' documents `strategic-merge-patch` and `preserve-order-in-strategic-merge-patch` describe them. Where
//! they leave something open, this follows kube-apiserver.

use serde_json::{Map, Value};

use super::{Error, check_object, list};
use crate::schema::{
    Schema,
    node::{FREE, Node},
};

pub(super) const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch, for built-in kinds.
///
/// # Errors
/// [`Error::Malformed`] if the patch or a directive is malformed. [`Error::Internal`] if it contradicts the object or
/// the schema, such as an item without its merge key or an order that does not fit.
pub fn strategic(current: &Value, patch: &Value, schema: &Schema) -> Result<Value, Error> {
    check_object(patch)?;
    let (Value::Object(current), Value::Object(patch)) = (current, patch) else {
        return Err(Error::Internal("the object is no object".to_owned()));
    };
    // A stored object may be deeper than a patch may be.
    if crate::schema::node::too_deep(&Value::Object(current.clone())) {
        return Err(Error::Internal("the object is nested too deeply".to_owned()));
    }
    merge_objects(current.clone(), patch.clone(), &schema.root).map(Value::Object)
}

pub(super) fn internal<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::Internal(why.into()))
}

fn malformed<T>(what: &str) -> Result<T, Error> {
    Err(Error::Malformed(format!("invalid patch format of {what}")))
}

/// Merges a patch into an object.
pub(super) fn merge_objects(
    mut object: Map<String, Value>,
    mut patch: Map<String, Value>,
    node: &Node,
) -> Result<Map<String, Value>, Error> {
    if let Some(directive) = patch.remove(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => Ok(without_directives(patch)),
            Some("delete") => Ok(Map::new()),
            _ => internal(format!("unknown patch type: {directive} in map")),
        };
    }
    retain_keys(&mut object, &mut patch)?;
    let orders: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
    for key in orders {
        let order = patch.remove(&key).unwrap_or_default();
        let field = &key[SET_ORDER.len()..];
        set_order(&mut object, &mut patch, field, &order, node)?;
    }
    for (key, change) in patch {
        if let Some(field) = key.strip_prefix(DELETE_FROM_LIST) {
            let Value::Array(values) = change else { return malformed("primitive list") };
            if let Some(Value::Array(items)) = object.get_mut(field) {
                items.retain(|item| !values.contains(item));
            }
            continue;
        }
        if change.is_null() {
            object.remove(&key);
            continue;
        }
        let field = node.field(&key).unwrap_or(&FREE);
        let merged = match (object.remove(&key), change) {
            (Some(Value::Object(current)), Value::Object(change)) if !field.patch.replace => {
                Some(Value::Object(merge_objects(current, change, field)?))
            }
            (Some(Value::Array(current)), Value::Array(change)) => {
                Some(Value::Array(merge_lists(current, change, field, &key)?))
            }
            (_, change) => cleaned(change),
        };
        if let Some(merged) = merged {
            object.insert(key, merged);
        }
    }
    Ok(object)
}

/// Merges two lists if their field's strategy is to merge. Otherwise the patch's list replaces the current one.
fn merge_lists(current: Vec<Value>, change: Vec<Value>, field: &Node, name: &str) -> Result<Vec<Value>, Error> {
    if field.patch.merge { list::merge(current, change, field, name) } else { Ok(cleaned_items(change)) }
}

/// Applies `$retainKeys`.
fn retain_keys(object: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), Error> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(keys) = keys else { return malformed("retainKeys") };
    let named = |name: &str| keys.iter().any(|key| key.as_str() == Some(name));
    let is_directive = |name: &str| name.starts_with(DELETE_FROM_LIST) || name.starts_with(SET_ORDER);
    if patch.iter().any(|(name, value)| !value.is_null() && !is_directive(name) && !named(name)) {
        return malformed("retainKeys");
    }
    object.retain(|name, _| named(name));
    Ok(())
}

/// Applies `$setElementOrder/<field>`: merges the field if the patch has it, then orders the items. Removes both from
/// the patch.
fn set_order(
    object: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    name: &str,
    order: &Value,
    node: &Node,
) -> Result<(), Error> {
    let Value::Array(order) = order else { return malformed("setElementOrder list") };
    let Some(field) = node.field(name) else {
        return internal(format!("unable to find api field for the json field \"{name}\""));
    };
    let as_list = |value: Option<Value>| match value {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(other) => internal(format!("expected a list, but received {other}")),
    };
    let key = field.patch.merge_key.as_deref();
    let current = as_list(object.get(name).cloned())?;
    // Null removes the list, which the merge of fields does.
    if patch.get(name).is_some_and(Value::is_null) {
        return Ok(());
    }
    let change = as_list(patch.remove(name))?;
    list::check_order(change.as_deref().unwrap_or_default(), order, key)?;
    let has_items = |list: &Option<Vec<Value>>| list.as_ref().is_some_and(|items| !items.is_empty());
    if (current.is_some() || change.is_some()) && !has_items(&current) && !has_items(&change) {
        return internal("no elements in any of the given slices");
    }
    let merged = match (current.clone(), change) {
        (None, None) => return Ok(()),
        (Some(current), None) => current,
        (None, Some(change)) => cleaned_items(change),
        (Some(current), Some(change)) => merge_lists(current, change, field, name)?,
    };
    let ordered = list::order(merged, order, current.as_deref().unwrap_or_default(), key)?;
    object.insert(name.to_owned(), Value::Array(ordered));
    Ok(())
}

/// Returns a new value from a patch without nulls and directives.
pub(super) fn cleaned(value: Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.contains_key(DIRECTIVE) => None,
        Value::Object(fields) => Some(Value::Object(without_directives(fields))),
        Value::Array(items) => Some(Value::Array(cleaned_items(items))),
        other => Some(other),
    }
}

pub(super) fn cleaned_items(items: Vec<Value>) -> Vec<Value> {
    items.into_iter().filter_map(cleaned).collect()
}

fn without_directives(fields: Map<String, Value>) -> Map<String, Value> {
    let is_directive = |name: &str| {
        [RETAIN_KEYS, DIRECTIVE].contains(&name) || name.starts_with(DELETE_FROM_LIST) || name.starts_with(SET_ORDER)
    };
    fields
        .into_iter()
        .filter(|(name, value)| !value.is_null() && !is_directive(name))
        .filter_map(|(name, value)| Some((name, cleaned(value)?)))
        .collect()
}
