//! The walks over objects for ownership. They return the paths of an object, the differences between two objects, the
//! result of an apply, and an object without some paths.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    path::Element,
    set::Set,
    shape::{Shape, elements},
};
use crate::schema::{
    Schema,
    node::{FREE, Node},
};

/// Returns the paths of an applied object: leaves, items of lists, keys of maps and empty objects.
pub(super) fn paths(schema: &Schema, object: &Value) -> Set {
    let mut set = Set::default();
    add_paths(&schema.root, object, schema.builtin, &mut Vec::new(), &mut set);
    set
}

fn add_paths(node: &Node, value: &Value, builtin: bool, path: &mut Vec<Element>, set: &mut Set) {
    match (Shape::of(node, value), value) {
        (Some(Shape::Map), Value::Object(fields)) => {
            for (name, value) in fields {
                let is_struct_field = node.resolve().properties.contains_key(name);
                let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                path.push(Element::Field(name.clone()));
                add_paths(node.field(name).unwrap_or(&FREE), value, builtin, path, set);
                if is_empty || !is_struct_field {
                    set.insert(path);
                }
                path.pop();
            }
        }
        (Some(Shape::List), Value::Array(items)) => match elements(node, items, builtin) {
            None => set.insert(path),
            Some(steps) => {
                for (step, item) in steps.into_iter().zip(items) {
                    path.push(step);
                    add_paths(node.item(), item, builtin, path, set);
                    set.insert(path);
                    path.pop();
                }
            }
        },
        _ => set.insert(path),
    }
}

/// The differences between two objects. The sets are disjoint.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) removed: Set,
    pub(super) modified: Set,
    pub(super) added: Set,
}

impl Comparison {
    pub(super) fn of(schema: &Schema, old: &Value, new: &Value) -> Comparison {
        let mut comparison = Comparison::default();
        comparison.compare(&schema.root, Some(old), Some(new), schema.builtin, &mut Vec::new());
        comparison
    }

    /// Returns the differences that are not at or beneath these paths.
    pub(super) fn outside(&self, ignored: &Set) -> Comparison {
        Comparison {
            removed: self.removed.outside(ignored),
            modified: self.modified.outside(ignored),
            added: self.added.outside(ignored),
        }
    }

    fn compare(
        &mut self,
        node: &Node,
        old: Option<&Value>,
        new: Option<&Value>,
        builtin: bool,
        path: &mut Vec<Element>,
    ) {
        let shape = |value: Option<&Value>| value.and_then(|value| Shape::of(node, value));
        let is_leaf = match (shape(old), shape(new)) {
            (Some(a), Some(b)) if a != b => {
                // The shape differs, so the whole old value is removed and the whole new value is added.
                self.descend(node, a, old, None, builtin, path);
                self.descend(node, b, None, new, builtin, path);
                self.modified.insert(path);
                return;
            }
            (Some(shape), _) | (None, Some(shape)) => self.descend(node, shape, old, new, builtin, path),
            (None, None) => true,
        };
        match (old, new) {
            (None, _) => self.added.insert(path),
            (_, None) => self.removed.insert(path),
            (Some(old), Some(new)) if is_leaf && !equal(old, new) => self.modified.insert(path),
            _ => {}
        }
    }

    /// Compares what is beneath two values of the same shape. Returns `true` if they are to be compared as a whole
    /// instead.
    fn descend(
        &mut self,
        node: &Node,
        shape: Shape,
        old: Option<&Value>,
        new: Option<&Value>,
        builtin: bool,
        path: &mut Vec<Element>,
    ) -> bool {
        match shape {
            Shape::Leaf => true,
            Shape::Map => {
                let fields =
                    |value: Option<&'_ Value>| value.and_then(Value::as_object).filter(|map| !map.is_empty()).cloned();
                let (old, new) = (fields(old), fields(new));
                let (None, None) = (&old, &new) else {
                    let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
                    let added = new.keys().filter(|name| !old.contains_key(*name));
                    for name in old.keys().chain(added) {
                        path.push(Element::Field(name.clone()));
                        let field = node.field(name).unwrap_or(&FREE);
                        self.compare(field, old.get(name), new.get(name), builtin, path);
                        path.pop();
                    }
                    return false;
                };
                true
            }
            Shape::List => {
                let items = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
                let (old, new) = (items(old), items(new));
                if old.is_empty() && new.is_empty() {
                    return true;
                }
                let (Some(old_steps), Some(new_steps)) = (elements(node, &old, builtin), elements(node, &new, builtin))
                else {
                    return true;
                };
                let mut both: BTreeMap<&Element, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
                for (step, item) in old_steps.iter().zip(&old) {
                    both.entry(step).or_default().0.push(item);
                }
                for (step, item) in new_steps.iter().zip(&new) {
                    both.entry(step).or_default().1.push(item);
                }
                for (step, (old, new)) in both {
                    path.push(step.clone());
                    self.compare_items(node.item(), &old, &new, builtin, path);
                    path.pop();
                }
                false
            }
        }
    }

    /// Compares the items of one key. Several items with one key, which are invalid, count as one value.
    fn compare_items(&mut self, node: &Node, old: &[&Value], new: &[&Value], builtin: bool, path: &mut Vec<Element>) {
        match (old, new) {
            ([] | [_], [] | [_]) => self.compare(node, old.first().copied(), new.first().copied(), builtin, path),
            ([_, _, ..], [_, _, ..]) => {
                if old != new {
                    self.modified.insert(path);
                }
            }
            ([_, _, ..], _) => {
                if let Some(new) = new.first() {
                    self.compare(node, None, Some(new), builtin, path);
                }
                self.removed.insert(path);
            }
            (_, _) => {
                if let Some(old) = old.first() {
                    self.compare(node, Some(old), None, builtin, path);
                }
                self.added.insert(path);
            }
        }
    }
}

/// Compares JSON values. 1 and 1.0 are equal.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || (a.is_f64() != b.is_f64() && a.as_f64() == b.as_f64()),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

/// Returns the result of applying one object to another.
pub(super) fn merge(schema: &Schema, live: &Value, applied: &Value) -> Value {
    merge_at(&schema.root, live, applied, schema.builtin)
}

fn merge_at(node: &Node, live: &Value, applied: &Value, builtin: bool) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    let shape = Shape::of(node, live).or(Shape::of(node, applied));
    if is_empty(live) && is_empty(applied) {
        return applied.clone();
    }
    match (shape, live, applied) {
        // Applying null to a map or list that is owned in parts names no part.
        (Some(Shape::Map | Shape::List), live, Value::Null) => live.clone(),
        (Some(Shape::Map), Value::Object(live), Value::Object(applied)) => {
            let mut merged = live.clone();
            for (name, value) in applied {
                let field = node.field(name).unwrap_or(&FREE);
                let value = live.get(name).map_or_else(|| value.clone(), |live| merge_at(field, live, value, builtin));
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Some(Shape::List), Value::Array(live), Value::Array(applied)) => {
            match (elements(node, live, builtin), elements(node, applied, builtin)) {
                (Some(live_steps), Some(applied_steps)) => {
                    let live: Vec<_> = live_steps.iter().zip(live).collect();
                    let applied: Vec<_> = applied_steps.iter().zip(applied).collect();
                    Value::Array(merge_lists(node, &live, &applied, builtin))
                }
                _ => Value::from(applied.clone()),
            }
        }
        _ => applied.clone(),
    }
}

/// Merges lists. Applied items keep their order. Each other live item keeps its place among the items that both lists
/// have.
fn merge_lists(node: &Node, live: &[(&Element, &Value)], applied: &[(&Element, &Value)], builtin: bool) -> Vec<Value> {
    let find = |list: &[(&Element, &Value)], step: &Element| {
        let mut same = list.iter().filter(|(other, _)| *other == step).map(|(_, value)| (*value).clone());
        same.next().map(|first| (first, same.next().is_none()))
    };
    let merged = |step: &Element, value: &Value| match find(live, step) {
        // With several live items of one key, none of them is merged.
        Some((live, true)) => merge_at(node.item(), &live, value, builtin),
        _ => value.clone(),
    };
    let mut out = Vec::with_capacity(live.len().max(applied.len()));
    let mut live_left = live.iter();
    let mut applied_left = applied.iter();
    for (shared, _) in applied.iter().filter(|(step, _)| find(live, step).is_some()) {
        for (step, value) in live_left.by_ref().take_while(|(step, _)| step != shared) {
            if find(applied, step).is_none() {
                out.push((*value).clone());
            }
        }
        for (step, value) in applied_left.by_ref() {
            out.push(merged(step, value));
            if step == shared {
                break;
            }
        }
    }
    out.extend(live_left.filter(|(step, _)| find(applied, step).is_none()).map(|(_, value)| (*value).clone()));
    out.extend(applied_left.map(|(step, value)| merged(step, value)));
    out
}

/// Returns an object without these paths. A field that becomes empty is removed too.
pub(super) fn without(schema: &Schema, object: &Value, gone: &Set) -> Value {
    let nothing = || Value::Object(Map::new());
    without_at(&schema.root, object, gone, schema.builtin).unwrap_or_else(nothing)
}

fn without_at(node: &Node, value: &Value, gone: &Set, builtin: bool) -> Option<Value> {
    match (Shape::of(node, value), value) {
        (Some(Shape::Map), Value::Object(fields)) => {
            let left = fields.iter().filter_map(|(name, value)| {
                let step = Element::Field(name.clone());
                if gone.has(&step) {
                    return None;
                }
                let field = node.field(name).unwrap_or(&FREE);
                let value = match gone.beneath(&step) {
                    Some(gone) => without_at(field, value, gone, builtin)?,
                    None => value.clone(),
                };
                Some((name.clone(), value))
            });
            let left: Map<_, _> = left.collect();
            (!left.is_empty()).then_some(Value::Object(left))
        }
        (Some(Shape::List), Value::Array(items)) => {
            let steps = elements(node, items, builtin)?;
            let left = steps.iter().zip(items).filter_map(|(step, item)| {
                if gone.has(step) {
                    return None;
                }
                match gone.beneath(step) {
                    Some(gone) => without_at(node.item(), item, gone, builtin),
                    None => Some(item.clone()),
                }
            });
            let left: Vec<_> = left.collect();
            (!left.is_empty()).then_some(Value::Array(left))
        }
        // A value that is owned as a whole has no parts.
        (Some(Shape::Leaf), Value::Object(_) | Value::Array(_)) => None,
        _ => Some(value.clone()),
    }
}
