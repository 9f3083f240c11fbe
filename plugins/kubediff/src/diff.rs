//! The differences between two states of an object.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::path::{Path, Step};

/// Stands for a value that must not be reported.
const HIDDEN: &str = "(hidden)";

/// Members of a list's items that distinguish them, if each item has one of its own.
const NAMES: [&str; 2] = ["name", "type"];

/// One field that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Where it is, such as `spec.containers[web].image`.
    #[serde(serialize_with = "as_text")]
    pub path: Path,
    /// The value before. `None` if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    /// The value now. `None` if it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
}

fn as_text<S: serde::Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(path)
}

impl Difference {
    /// Replaces the values, and leaves the members of objects visible: which keys of a Secret changed, but not to what.
    pub fn hide(&mut self) {
        for value in [&mut self.old, &mut self.new].into_iter().flatten() {
            hide(value);
        }
    }
}

/// Replaces each value in `value`.
pub(crate) fn hide(value: &mut Value) {
    match value {
        Value::Object(members) => members.values_mut().for_each(hide),
        value => *value = HIDDEN.into(),
    }
}

/// Returns the differences, those in the old state first. `ignored` and what lies below is left out.
pub(crate) fn differences(old: &Value, new: &Value, ignored: &[Path]) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(&Path::default(), Some(old), Some(new), ignored, &mut found);
    found
}

fn compare(path: &Path, old: Option<&Value>, new: Option<&Value>, ignored: &[Path], found: &mut Vec<Difference>) {
    if old == new || ignored.iter().any(|ignored| path.is_within(ignored)) {
        return;
    }
    match (old.and_then(children), new.and_then(children)) {
        (Some(old), Some(new)) if old.of_list == new.of_list && old.named == new.named => {
            let steps = old.by_name.keys().chain(new.by_name.keys().filter(|name| !old.by_name.contains_key(*name)));
            for name in steps {
                let below = path.to(if old.of_list { Step::Item(name.clone()) } else { Step::Member(name.clone()) });
                compare(&below, old.by_name.get(name).copied(), new.by_name.get(name).copied(), ignored, found);
            }
        }
        _ => {
            let without = |value: Option<&Value>| value.and_then(|value| without(path, value, ignored));
            let (old, new) = (without(old), without(new));
            if old != new {
                found.push(Difference { path: path.clone(), old, new });
            }
        }
    }
}

/// Copies the value at `path` without what is ignored in it. Returns `None` if nothing else is in it.
fn without(path: &Path, value: &Value, ignored: &[Path]) -> Option<Value> {
    let below = |step: Step, value: &Value| {
        let path = path.to(step);
        (!ignored.iter().any(|ignored| path.is_within(ignored))).then(|| without(&path, value, ignored)).flatten()
    };
    match value {
        Value::Object(members) if !members.is_empty() => {
            let left = members.iter().filter_map(|(name, value)| {
                let value = below(Step::Member(name.clone()), value)?;
                Some((name.clone(), value))
            });
            Some(left.collect::<serde_json::Map<_, _>>()).filter(|left| !left.is_empty()).map(Value::Object)
        }
        Value::Array(items) if !items.is_empty() => {
            let named = named(items);
            let name = |(place, item): (usize, &Value)| {
                named.and_then(|by| name(item, by)).unwrap_or_else(|| place.to_string())
            };
            let left = items.iter().enumerate().filter_map(|at| below(Step::Item(name(at)), at.1));
            Some(left.collect::<Vec<_>>()).filter(|left| !left.is_empty()).map(Value::Array)
        }
        value => Some(value.clone()),
    }
}

/// The values in an object or a list.
struct Children<'a> {
    of_list: bool,
    /// The member that names the items, or `None` if their positions do.
    named: Option<&'static str>,
    by_name: BTreeMap<String, &'a Value>,
}

fn children(value: &Value) -> Option<Children<'_>> {
    match value {
        Value::Object(members) => {
            let by_name = members.iter().map(|(name, value)| (name.clone(), value)).collect();
            Some(Children { of_list: false, named: None, by_name })
        }
        Value::Array(items) => {
            let named = named(items);
            let names = items
                .iter()
                .enumerate()
                .map(|(place, item)| (named.and_then(|by| name(item, by)).unwrap_or_else(|| place.to_string()), item));
            Some(Children { of_list: true, named, by_name: names.collect() })
        }
        _ => None,
    }
}

/// Returns the member that distinguishes the items of a list.
fn named(items: &[Value]) -> Option<&'static str> {
    let distinguishes = |by: &&str| {
        let names: Option<BTreeSet<&str>> = items.iter().map(|item| item.get(*by)?.as_str()).collect();
        names.is_some_and(|names| names.len() == items.len())
    };
    NAMES.into_iter().find(distinguishes)
}

fn name(item: &Value, by: &str) -> Option<String> {
    Some(item.get(by)?.as_str()?.to_owned())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(old: &Value, new: &Value, ignored: &[&str]) -> Value {
        let ignored: Vec<Path> = ignored.iter().map(|path| path.parse().unwrap()).collect();
        serde_json::to_value(differences(old, new, &ignored)).unwrap()
    }

    #[test]
    fn each_field_that_differs_is_reported_once_with_both_values() {
        let old = json!({"spec": {"replicas": 1, "paused": true, "same": [1, {"a": 2}]}, "labels": {"a.b/c": "x"}});
        let new = json!({"spec": {"replicas": 3, "extra": {"x": []}, "same": [1, {"a": 2}]}, "labels": {"a.b/c": "y"}});
        let expected = json!([
            {"path": r#"labels["a.b/c"]"#, "old": "x", "new": "y"},
            {"path": "spec.paused", "old": true},
            {"path": "spec.replicas", "old": 1, "new": 3},
            {"path": "spec.extra", "new": {"x": []}},
        ]);
        assert_eq!(found(&old, &new, &[]), expected);
        assert_eq!(found(&old, &old, &[]), json!([]));
    }

    #[test]
    fn items_are_distinguished_by_their_names_or_their_positions() {
        let old = json!({"c": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}], "list": [1, 2]});
        let new = json!({"c": [{"name": "b", "image": "3"}, {"name": "a", "image": "1"}], "list": [1, 5, 6]});
        let expected = json!([
            {"path": "c[b].image", "old": "2", "new": "3"},
            {"path": "list[1]", "old": 2, "new": 5},
            {"path": "list[2]", "new": 6},
        ]);
        assert_eq!(found(&old, &new, &[]), expected);
        // Names that are not unique name nothing.
        let twice = json!({"c": [{"name": "a"}, {"name": "a"}]});
        assert_eq!(found(&twice, &json!({"c": [{"name": "a"}]}), &[])[0]["path"], "c");
        assert_eq!(found(&json!({"a": {}}), &json!({"a": []}), &[]), json!([{"path": "a", "old": {}, "new": []}]));
    }

    #[test]
    fn what_is_ignored_is_left_out_with_what_lies_below() {
        let old = json!({"status": {"phase": "A"}, "c": [{"name": "a", "time": 1, "on": 1}]});
        let new = json!({"status": {"phase": "B"}, "c": [{"name": "a", "time": 2, "on": 2}]});
        let expected = json!([{"path": "c[a].on", "old": 1, "new": 2}]);
        assert_eq!(found(&old, &new, &["status", "c[*].time"]), expected);
    }

    #[test]
    fn what_is_ignored_is_left_out_of_a_value_that_comes_or_goes() {
        let ignored = ["metadata.annotations.revision", "c[*].time"];
        let bare = json!({"metadata": {"name": "a"}});
        let revised = json!({"metadata": {"name": "a", "annotations": {"revision": "1"}}});
        assert_eq!(found(&bare, &revised, &ignored), json!([]));
        assert_eq!(found(&revised, &bare, &ignored), json!([]));
        let more = json!({"metadata": {"name": "a", "annotations": {"revision": "1", "team": "b"}}});
        let expected = json!([{"path": "metadata.annotations", "new": {"team": "b"}}]);
        assert_eq!(found(&bare, &more, &ignored), expected);
        let items = json!({"c": [{"name": "a", "time": 1}, {"name": "b"}], "empty": {}});
        let expected = json!([{"path": "c", "new": [{"name": "a"}, {"name": "b"}]}, {"path": "empty", "new": {}}]);
        assert_eq!(found(&json!({}), &items, &ignored), expected);
    }

    #[test]
    fn a_hidden_value_shows_its_members_only() {
        let mut difference =
            Difference { path: Path::default(), old: None, new: Some(json!({"a": "s3cret", "b": [1]})) };
        difference.hide();
        assert_eq!(difference.new, Some(json!({"a": "(hidden)", "b": "(hidden)"})));
    }
}
