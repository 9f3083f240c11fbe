//! Compares what a case expects with what there is, field by field.
//!
//! An expectation is partial: what it does not name may be anything. `null` expects that nothing is there. A list of
//! maps that all have one of [`KEYS`] is matched by that key, and more items may be there. Other lists are as long as
//! expected.

use pilothouse_apiserver::yaml::located::{Content, Located};
use serde_json::{Map, Value};

/// Members by which items of a list are matched, as Kubernetes merges lists. The first that all expected items have
/// counts.
const KEYS: [&str; 6] = ["type", "name", "key", "mountPath", "containerPort", "port"];

/// Bytes of a value in a message.
const SHOWN: usize = 300;

/// One difference.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Difference {
    /// The line of the case file.
    pub(super) line: usize,
    /// What differs, and how.
    pub(super) message: String,
    /// The expectation that `--update` writes instead.
    pub(super) update: Option<Update>,
}

/// A new text for a part of a case file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Update {
    /// What is replaced.
    pub(super) place: Located,
    pub(super) value: Value,
    /// For an empty map that gets members: the byte at which the map around it begins, and the one at which its own key
    /// does.
    pub(super) member: Option<(usize, usize)>,
}

impl Update {
    pub(super) fn new(place: &Located, value: Value) -> Self {
        Self { place: place.clone(), value, member: None }
    }
}

/// Adds the differences between what is expected at `path` and what is there.
pub(super) fn compare(expected: &Located, actual: &Value, path: &str, into: &mut Vec<Difference>) {
    let differs = |message| Difference {
        line: expected.line,
        message,
        update: Some(Update::new(expected, project(expected, actual))),
    };
    match (&expected.content, actual) {
        (Content::Map(members), Value::Object(object)) => {
            for member in members {
                let path = if path.is_empty() { member.name.clone() } else { format!("{path}.{}", member.name) };
                match object.get(&member.name) {
                    Some(actual) => compare(&member.value, actual, &path, into),
                    None if is_nothing(&member.value) => {}
                    None => into.push(Difference {
                        line: member.line,
                        ..differs(format!("{path}: expected {}, found nothing", shown(&member.value.value())))
                    }),
                }
            }
        }
        (Content::List(items), Value::Array(actual)) if items.is_empty() || key_of(items).is_none() => {
            if items.len() != actual.len() {
                into.push(differs(format!(
                    "{path}: expected {} items, found {}: {}",
                    items.len(),
                    actual.len(),
                    shown(&Value::Array(actual.clone()))
                )));
                return;
            }
            for (index, (item, actual)) in items.iter().zip(actual).enumerate() {
                compare(item, actual, &format!("{path}[{index}]"), into);
            }
        }
        (Content::List(items), Value::Array(actual)) => {
            let key = key_of(items).expect("it was there a moment ago");
            for item in items {
                let wanted = item.get(key).map(Located::value).unwrap_or_default();
                let path = format!("{path}[{}]", word(&wanted));
                match actual.iter().find(|actual| actual[key] == wanted) {
                    Some(actual) => compare(item, actual, &path, into),
                    None => {
                        let there: Vec<_> = actual.iter().map(|actual| word(&actual[key])).collect();
                        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
                        let message = format!("{path}: expected such an item, found {there}");
                        into.push(Difference { line: item.line, ..differs(message) });
                    }
                }
            }
        }
        (Content::Scalar(wanted), actual) if wanted == actual => {}
        _ => into.push(differs(format!("{path}: expected {}, found {}", shown(&expected.value()), shown(actual)))),
    }
}

/// Returns what is there, as far as the expectation names it.
pub(super) fn project(expected: &Located, actual: &Value) -> Value {
    match (&expected.content, actual) {
        (Content::Map(members), Value::Object(object)) => {
            let there = members.iter().filter_map(|member| match object.get(&member.name) {
                Some(actual) => Some((member.name.clone(), project(&member.value, actual))),
                None => is_nothing(&member.value).then(|| (member.name.clone(), member.value.value())),
            });
            Value::Object(there.collect::<Map<_, _>>())
        }
        (Content::List(items), Value::Array(actual)) => match key_of(items) {
            Some(key) => {
                let found = |item: &Located| {
                    let wanted = item.get(key).map(Located::value)?;
                    Some(project(item, actual.iter().find(|actual| actual[key] == wanted)?))
                };
                items.iter().filter_map(found).collect()
            }
            None => {
                let mut items = items.iter();
                let each = |actual| items.next().map_or_else(|| Value::clone(actual), |item| project(item, actual));
                actual.iter().map(each).collect()
            }
        },
        _ => actual.clone(),
    }
}

/// `true` if nothing is expected: `null`, or an empty list or map.
fn is_nothing(expected: &Located) -> bool {
    match &expected.content {
        Content::Scalar(value) => value.is_null(),
        Content::List(items) => items.is_empty(),
        Content::Map(members) => members.is_empty(),
    }
}

/// Returns the member by which the items are matched.
fn key_of(items: &[Located]) -> Option<&'static str> {
    let has = |key: &&str| {
        items.iter().all(|item| item.get(key).is_some_and(|value| matches!(value.content, Content::Scalar(_))))
    };
    if items.is_empty() { None } else { KEYS.into_iter().find(has) }
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns a value on one line, shortened.
pub(super) fn shown(value: &Value) -> String {
    let mut text = value.to_string();
    if text.len() > SHOWN {
        text.truncate(text.floor_char_boundary(SHOWN));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use pilothouse_apiserver::yaml::located::documents;
    use serde_json::json;

    use super::*;

    fn differences(expected: &str, actual: &Value) -> Vec<String> {
        let expected = documents(expected).expect("it is YAML").pop().expect("a document");
        let mut found = Vec::new();
        compare(&expected, actual, "", &mut found);
        found.iter().map(|difference| format!("{}: {}", difference.line, difference.message)).collect()
    }

    #[test]
    fn only_what_is_named_is_compared() {
        let actual = json!({ "a": 1, "b": { "c": "x", "d": [1, 2] }, "e": null });
        assert_eq!(differences("a: 1\nb: {c: x, d: [1, 2]}\nf: null\ng: []\n", &actual), [""; 0]);
        assert_eq!(
            differences("a: 2\nb:\n  c: w\n  d: [1]\n  z: 1\ne: {}\n", &actual),
            [
                "1: a: expected 2, found 1",
                "3: b.c: expected \"w\", found \"x\"",
                "4: b.d: expected 1 items, found 2: [1,2]",
                "5: b.z: expected 1, found nothing",
                "6: e: expected {}, found null",
            ]
        );
    }

    #[test]
    fn items_with_a_key_are_matched_by_it() {
        let actual = json!([{ "type": "Ready", "status": "True" }, { "type": "Stalled", "status": "False" }]);
        assert_eq!(differences("- {type: Stalled, status: 'False'}\n", &actual), [""; 0]);
        assert_eq!(
            differences("- {type: Ready, status: 'False'}\n- {type: Slow}\n", &actual),
            [
                "1: [Ready].status: expected \"False\", found \"True\"",
                "2: [Slow]: expected such an item, found Ready, Stalled"
            ]
        );
    }
}
