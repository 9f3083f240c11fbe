//! Merges and orders lists in a strategic merge patch.

use serde_json::Value;

use super::{
    Error,
    strategic::{DIRECTIVE, cleaned, cleaned_items, internal, merge_objects},
};
use crate::schema::{go, node::Node};

/// Merges lists of objects by the field's merge key, and lists of primitives as sets.
pub(super) fn merge(current: Vec<Value>, change: Vec<Value>, field: &Node, name: &str) -> Result<Vec<Value>, Error> {
    let mut every = current.iter().chain(&change);
    let objects = every.clone().filter(|item| item.is_object()).count();
    if every.any(|item| item.is_array() || item.is_null()) {
        return internal(format!("lists of lists are not supported: {name}"));
    }
    if objects == 0 {
        let mut merged = current.clone();
        for item in &change {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        return order(merged, &change, &current, None);
    }
    if objects < current.len() + change.len() {
        return internal(format!("list element types are not identical: {name}"));
    }
    let Some(key) = field.patch.merge_key.as_deref() else {
        return internal(format!("cannot merge lists without merge key for {name}"));
    };
    let (kept, change) = obey_directives(current, change, key)?;
    let mut merged = kept.clone();
    for item in change.clone() {
        let value = key_of(&item, key)?.clone();
        match merged.iter().position(|other| other.get(key) == Some(&value)) {
            Some(index) => {
                if let (Value::Object(current), Value::Object(item)) = (merged[index].take(), item) {
                    merged[index] = Value::Object(merge_objects(current, item, field.item())?);
                }
            }
            None => merged.extend(cleaned(item)),
        }
    }
    order(merged, &change, &kept, Some(key))
}

/// Removes directives from the patch's items, and applies them.
fn obey_directives(mut current: Vec<Value>, change: Vec<Value>, key: &str) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let mut replaces = false;
    let mut left = Vec::with_capacity(change.len());
    for item in change {
        match item.get(DIRECTIVE).map(|directive| directive.as_str().unwrap_or_default()) {
            None => left.push(item),
            Some("delete") => {
                let value = key_of(&item, key)?;
                current.retain(|other| other.get(key) != Some(value));
            }
            Some("replace") => replaces = true,
            Some("merge") => return internal("merging lists cannot yet be specified in the patch"),
            Some(other) => return internal(format!("unknown patch type: {other} in map")),
        }
    }
    Ok(if replaces { (cleaned_items(left), Vec::new()) } else { (current, left) })
}

fn key_of<'a>(item: &'a Value, key: &str) -> Result<&'a Value, Error> {
    item.get(key).ok_or_else(|| Error::Internal(format!("map: {item} does not contain declared merge key: {key}")))
}

/// `true` if two items have equal merge keys, or are equal primitives.
fn same(a: &Value, b: &Value, key: Option<&str>) -> bool {
    match key {
        Some(key) => a.get(key).is_some() && a.get(key) == b.get(key),
        None => a == b,
    }
}

/// Checks that the items of a patch have the order of `$setElementOrder`.
pub(super) fn check_order(change: &[Value], order: &[Value], key: Option<&str>) -> Result<(), Error> {
    if order.is_empty() {
        return Ok(());
    }
    let mut rest = order.iter();
    for item in change.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        if let Some(key) = key {
            key_of(item, key)?;
        }
        if !rest.any(|other| same(item, other, key)) {
            let shown = |items: &[Value]| go::plain(&Value::from(items));
            return internal(format!(
                "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                shown(change),
                shown(order)
            ));
        }
    }
    Ok(())
}

/// Orders items. Items in `first` take its order. Each other item keeps its place in `before`, in front of the first
/// named item that it preceded there.
pub(super) fn order(
    items: Vec<Value>,
    first: &[Value],
    before: &[Value],
    key: Option<&str>,
) -> Result<Vec<Value>, Error> {
    if let Some(key) = key {
        items.iter().try_for_each(|item| key_of(item, key).map(|_| ()))?;
    }
    let place = |list: &[Value], item: &Value| list.iter().position(|other| same(item, other, key));
    let (mut named, mut others): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| place(first, item).is_some());
    named.sort_by_key(|item| place(first, item));
    others.sort_by_key(|item| place(before, item).unwrap_or(usize::MAX));

    let mut ordered = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for item in named {
        while let Some(other) = others.next_if(
            |other| matches!((place(before, other), place(before, &item)), (Some(other), Some(item)) if other < item),
        ) {
            ordered.push(other);
        }
        ordered.push(item);
    }
    ordered.extend(others);
    Ok(ordered)
}
