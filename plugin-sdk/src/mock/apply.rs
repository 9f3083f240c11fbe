//! Server-side apply for one field manager. Fields that are set are written, fields that it set before and not now are
//! removed, and all others stay. Lists are replaced as a whole.

use serde_json::{Map, Value};

/// Returns `live` after a manager that last applied `before` applies `desired`.
pub(super) fn apply(live: Value, before: &Value, desired: &Value) -> Value {
    match (live, desired) {
        (Value::Object(mut live), Value::Object(desired)) => {
            let nothing = Map::new();
            let before = before.as_object().unwrap_or(&nothing);
            live.retain(|name, _| !before.contains_key(name) || desired.contains_key(name));
            for (name, value) in desired {
                let old = live.remove(name).unwrap_or(Value::Null);
                let applied = before.get(name).unwrap_or(&Value::Null);
                live.insert(name.clone(), apply(old, applied, value));
            }
            Value::Object(live)
        }
        (_, desired) => desired.clone(),
    }
}

/// Applies a JSON merge patch (RFC 7396).
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let members = target.as_object_mut().expect("it was made an object just now");
    for (name, value) in patch {
        if value.is_null() {
            members.remove(name);
        } else {
            merge(members.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{apply, merge};

    #[test]
    fn a_field_that_is_no_longer_applied_goes_and_others_stay() {
        let live = json!({"data": {"mine": "1", "old": "2", "theirs": "3"}, "list": [1, 2]});
        let before = json!({"data": {"mine": "1", "old": "2"}, "list": [1, 2]});
        let desired = json!({"data": {"mine": "4"}, "list": [5]});
        assert_eq!(apply(live, &before, &desired), json!({"data": {"mine": "4", "theirs": "3"}, "list": [5]}));
    }

    #[test]
    fn applying_to_nothing_gives_what_is_applied() {
        let desired = json!({"data": {"a": "b"}});
        assert_eq!(apply(Value::Null, &Value::Null, &desired), desired);
    }

    #[test]
    fn a_merge_patch_removes_by_null() {
        let mut target = json!({"a": {"b": 1, "c": 2}});
        merge(&mut target, &json!({"a": {"b": null, "d": {"e": 3}}}));
        assert_eq!(target, json!({"a": {"c": 2, "d": {"e": 3}}}));
    }
}
