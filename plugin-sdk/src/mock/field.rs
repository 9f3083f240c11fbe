//! Field paths: `spec.nodeName`, `spec.volumes[*].configMap.name`, `metadata.annotations["example.com/team"]`.

use std::{collections::BTreeSet, fmt};

use serde_json::{Map, Value, json};

/// The host's limits for the bytes and the steps of a path.
const LENGTH: usize = 1024;
const STEPS: usize = 32;

/// The place of a value in an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Member(String),
    /// Every item of a list.
    Each,
}

impl Path {
    /// # Errors
    /// Fails if `text` is not a field path. Says why.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let none = |why: &str| format!("{text:?} is no field path: {why}");
        if text.len() > LENGTH {
            return Err(format!("a field path is longer than {LENGTH} bytes"));
        }
        let (mut steps, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            if steps.len() == STEPS {
                return Err(none(&format!("the path has more than {STEPS} steps")));
            }
            if let Some(after) = rest.strip_prefix("[*]") {
                steps.push(Step::Each);
                rest = after;
            } else if let Some((name, after)) = quoted(rest) {
                steps.push(Step::Member(name.to_owned()));
                rest = after;
            } else {
                let member = match (rest.strip_prefix('.'), steps.is_empty()) {
                    (Some(member), false) => member,
                    (None, true) => rest,
                    _ => return Err(none("names are parted by one `.`")),
                };
                let end = member.find(['.', '[']).unwrap_or(member.len());
                let (name, after) = member.split_at(end);
                if !is_word(name) {
                    return Err(none("a name is empty, or has to be written as `[\"...\"]`"));
                }
                steps.push(Step::Member(name.to_owned()));
                rest = after;
            }
        }
        if matches!(steps.first(), Some(Step::Member(_))) {
            Ok(Self(steps))
        } else {
            Err(none("it begins with no name"))
        }
    }

    /// Returns `true` if `other` is this path or lies within it.
    pub(super) fn covers(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }

    /// Returns the path of a member of the value at this path.
    pub(super) fn member(&self, name: &str) -> Self {
        Self(self.0.iter().cloned().chain([Step::Member(name.to_owned())]).collect())
    }

    /// Returns the strings, numbers and booleans at this path, as text.
    pub(super) fn values(&self, object: &Value) -> BTreeSet<String> {
        fn walk(value: &Value, steps: &[Step], found: &mut BTreeSet<String>) {
            match (steps.split_first(), value) {
                (None, Value::String(text)) => drop(found.insert(text.clone())),
                (None, Value::Bool(_) | Value::Number(_)) => drop(found.insert(value.to_string())),
                (Some((Step::Member(name), rest)), Value::Object(members)) => {
                    if let Some(member) = members.get(name) {
                        walk(member, rest, found);
                    }
                }
                (Some((Step::Each, rest)), Value::Array(items)) => {
                    items.iter().for_each(|item| walk(item, rest, found));
                }
                _ => {}
            }
        }
        let mut found = BTreeSet::new();
        walk(object, &self.0, &mut found);
        found
    }

    /// Removes the value at this path.
    pub(super) fn cut(&self, object: &mut Value) {
        fn walk(value: &mut Value, steps: &[Step]) {
            match (steps, value) {
                ([Step::Member(name)], Value::Object(members)) => drop(members.remove(name)),
                ([Step::Each], Value::Array(items)) => items.clear(),
                ([Step::Member(name), rest @ ..], Value::Object(members)) => {
                    if let Some(member) = members.get_mut(name) {
                        walk(member, rest);
                    }
                }
                ([Step::Each, rest @ ..], Value::Array(items)) => items.iter_mut().for_each(|item| walk(item, rest)),
                _ => {}
            }
        }
        walk(object, &self.0);
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, step) in self.0.iter().enumerate() {
            match step {
                Step::Each => f.write_str("[*]")?,
                Step::Member(name) if is_word(name) => write!(f, "{}{name}", if place == 0 { "" } else { "." })?,
                Step::Member(name) => write!(f, "[{}]", Value::from(name.as_str()))?,
            }
        }
        Ok(())
    }
}

/// Returns `true` if a name needs no quotes.
fn is_word(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-$".contains(c))
}

/// Splits a path that begins with `["name"]` or `['name']` into that name and the rest.
fn quoted(path: &str) -> Option<(&str, &str)> {
    let double = path.strip_prefix("[\"").and_then(|path| path.split_once("\"]"));
    double.or_else(|| path.strip_prefix("['").and_then(|path| path.split_once("']")))
}

/// Returns the values at these paths, together with apiVersion, kind, name and namespace. Lists keep their length.
pub(super) fn project(object: &Value, paths: &[Path]) -> Value {
    fn pick(value: &Value, paths: &[&[Step]]) -> Option<Value> {
        if paths.iter().any(|path| path.is_empty()) {
            return Some(value.clone());
        }
        match value {
            Value::Object(members) => {
                let mut picked = Map::new();
                for (name, member) in members {
                    let here: Vec<&[Step]> = paths
                        .iter()
                        .filter_map(|path| match path.split_first() {
                            Some((Step::Member(wanted), rest)) if wanted == name => Some(rest),
                            _ => None,
                        })
                        .collect();
                    if let Some(member) = (!here.is_empty()).then(|| pick(member, &here)).flatten() {
                        picked.insert(name.clone(), member);
                    }
                }
                Some(Value::Object(picked))
            }
            Value::Array(items) => {
                let each: Vec<&[Step]> = paths
                    .iter()
                    .filter_map(|path| match path.split_first() {
                        Some((Step::Each, rest)) => Some(rest),
                        _ => None,
                    })
                    .collect();
                let items = items.iter().map(|item| pick(item, &each).unwrap_or_default()).collect();
                (!each.is_empty()).then_some(Value::Array(items))
            }
            _ => None,
        }
    }
    let always = ["apiVersion", "kind", "metadata.name", "metadata.namespace"]
        .map(|path| Path(path.split('.').map(|name| Step::Member(name.to_owned())).collect()));
    let paths: Vec<&[Step]> = always.iter().chain(paths).map(|path| path.0.as_slice()).collect();
    pick(object, &paths).unwrap_or_default()
}

/// Returns only apiVersion, kind and metadata.
pub(super) fn metadata_only(object: &Value) -> Value {
    json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": object["metadata"]})
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Path, project};

    fn path(text: &str) -> Path {
        Path::parse(text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn pod() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "annotations": {"a.b/c": "yes", "d": "no"}},
            "spec": {"nodeName": "n1", "hostNetwork": true, "containers": [{"image": "a", "tty": true}, {"image": "b"}, {}]},
        })
    }

    #[test]
    fn values_are_what_a_path_finds() {
        for (at, expected) in [
            ("spec.nodeName", vec!["n1"]),
            ("spec.hostNetwork", vec!["true"]),
            ("spec.containers[*].image", vec!["a", "b"]),
            ("metadata.annotations[\"a.b/c\"]", vec!["yes"]),
            ("metadata['annotations']['a.b/c']", vec!["yes"]),
            ("spec.containers", vec![]),
            ("spec.nodeName.more", vec![]),
        ] {
            assert_eq!(path(at).values(&pod()).into_iter().collect::<Vec<_>>(), expected, "{at}");
        }
    }

    #[test]
    fn a_projection_keeps_what_is_named_and_who_it_is() {
        let of = |paths: &[&str]| project(&pod(), &paths.iter().map(|text| path(text)).collect::<Vec<_>>());
        let who = json!({"name": "p", "namespace": "default"});
        assert_eq!(of(&["nowhere"]), json!({"apiVersion": "v1", "kind": "Pod", "metadata": who}));
        assert_eq!(
            of(&["spec.containers[*].image", "spec.nodeName"]),
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": who,
                "spec": {"nodeName": "n1", "containers": [{"image": "a"}, {"image": "b"}, {}]},
            })
        );
        assert_eq!(of(&["spec", "spec.nodeName"])["spec"], pod()["spec"]);
    }

    #[test]
    fn a_cut_takes_out_what_is_named() {
        let mut pod = pod();
        path("metadata.annotations[\"a.b/c\"]").cut(&mut pod);
        path("spec.containers[*].image").cut(&mut pod);
        assert_eq!(pod["metadata"]["annotations"], json!({"d": "no"}));
        assert_eq!(pod["spec"]["containers"], json!([{"tty": true}, {}, {}]));
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for text in
            ["", ".spec", "spec.", "spec..a", "[*]", "spec[", "spec[\"a", "spec[0]", "spec.a b", "spec.a/b", "spec[*]a"]
        {
            assert!(Path::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn path_has_the_hosts_bounds() {
        for (fits, too_much) in
            [(vec!["a"; 32].join("."), vec!["a"; 33].join(".")), ("a".repeat(1024), "a".repeat(1025))]
        {
            assert!(Path::parse(&fits).is_ok());
            assert!(Path::parse(&too_much).is_err());
        }
    }
}
