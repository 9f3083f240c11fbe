//! Keys of Secrets and ConfigMaps that an administrator's file refers to.
//!
//! In a configuration, an object with the single member `valueFrom` stands for a text, spelled as in a container's
//! environment:
//!
//! ```
//! use pilothouse_core::references::{Reference, find, resolve};
//! use serde_json::json;
//!
//! let config = json!({"token": {"valueFrom": {"secretKeyRef": {"namespace": "ops", "name": "slack", "key": "token"}}}});
//! let found = find(&config).unwrap();
//! assert_eq!(found.iter().next().unwrap().to_string(), "key token of Secret ops/slack");
//! assert_eq!(resolve(&config, &|_| Some("s3cret".to_owned())), json!({"token": "s3cret"}));
//! ```
//!
//! The host watches the objects and supplies the values.

use std::{collections::BTreeSet, fmt};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::key::{Key, TypeMeta};

/// References in one file.
pub const MAX_REFERENCES: usize = 64;

/// The only member of an object that stands for a value.
const VALUE_FROM: &str = "valueFrom";

/// One key of a Secret or a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// The kind.
    pub of: Kind,
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The member of its `data`.
    pub key: String,
    /// `true` if the value may be missing.
    pub optional: bool,
}

/// The kind of object that has the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `secretKeyRef`.
    Secret,
    /// `configMapKeyRef`.
    ConfigMap,
}

impl Kind {
    /// Returns the kind as objects spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }
}

impl Reference {
    /// Returns the object's kind and key.
    pub fn object(&self) -> (TypeMeta, Key) {
        (TypeMeta::new("v1", self.of.as_str()), Key::new(Some(&self.namespace), &self.name))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {} of {} {}/{}", self.key, self.of.as_str(), self.namespace, self.name)
    }
}

/// The members of a reference in a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySelector {
    namespace: String,
    name: String,
    key: String,
    #[serde(default)]
    optional: bool,
}

impl KeySelector {
    /// Returns the reference to a key of this kind.
    ///
    /// # Errors
    /// If a member is empty, or cannot be a part of a name.
    pub fn of(self, kind: Kind) -> Result<Reference, String> {
        let Self { namespace, name, key, optional } = self;
        for (member, text) in [("namespace", &namespace), ("name", &name), ("key", &key)] {
            let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
            if !(1..=253).contains(&text.len()) || !text.bytes().all(fits) || text.starts_with("..") || text == "." {
                return Err(format!(
                    "{member} {text:?} is not a name: it has 1 to 253 letters, digits, `-`, `.` and `_`"
                ));
            }
        }
        Ok(Reference { of: kind, namespace, name, key, optional })
    }
}

#[derive(Deserialize)]
enum Source {
    #[serde(rename = "secretKeyRef")]
    Secret(KeySelector),
    #[serde(rename = "configMapKeyRef")]
    ConfigMap(KeySelector),
}

/// Returns all references in a configuration.
///
/// # Errors
/// Says where a reference is not valid. No message quotes another value.
pub fn find(config: &Value) -> Result<BTreeSet<Reference>, String> {
    let mut found = BTreeSet::new();
    collect(config, &mut "config".to_owned(), &mut found)?;
    if found.len() > MAX_REFERENCES {
        return Err(format!("config: refers to {} keys; at most {MAX_REFERENCES} are taken", found.len()));
    }
    Ok(found)
}

fn collect(value: &Value, at: &mut String, found: &mut BTreeSet<Reference>) -> Result<(), String> {
    let here = at.len();
    match value {
        Value::Object(members) => match reference(members) {
            Some(reference) => drop(found.insert(reference.map_err(|why| format!("{at}.{VALUE_FROM}: {why}"))?)),
            None => {
                for (name, member) in members {
                    at.push('.');
                    at.push_str(name);
                    collect(member, at, found)?;
                    at.truncate(here);
                }
            }
        },
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                at.push_str(&format!("[{place}]"));
                collect(item, at, found)?;
                at.truncate(here);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns the reference that an object stands for. `None` if it is an ordinary object.
fn reference(members: &Map<String, Value>) -> Option<Result<Reference, String>> {
    let source = members.get(VALUE_FROM).filter(|_| members.len() == 1)?;
    let parsed = Source::deserialize(source).map_err(|error| error.to_string());
    Some(parsed.and_then(|source| match source {
        Source::Secret(selector) => selector.of(Kind::Secret),
        Source::ConfigMap(selector) => selector.of(Kind::ConfigMap),
    }))
}

/// Replaces each reference in a configuration by its value. One without a value is left out, with the member or the
/// item that it is.
#[must_use]
pub fn resolve(config: &Value, value: &dyn Fn(&Reference) -> Option<String>) -> Value {
    resolved(config, value).unwrap_or(Value::Null)
}

fn resolved(config: &Value, value: &dyn Fn(&Reference) -> Option<String>) -> Option<Value> {
    Some(match config {
        Value::Object(members) => match reference(members) {
            Some(reference) => Value::String(value(&reference.ok()?)?),
            None => {
                let members =
                    members.iter().filter_map(|(name, member)| Some((name.clone(), resolved(member, value)?)));
                Value::Object(members.collect())
            }
        },
        Value::Array(items) => Value::Array(items.iter().filter_map(|item| resolved(item, value)).collect()),
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_found_anywhere_and_replaced() {
        let secret =
            |key: &str| json!({"valueFrom": {"secretKeyRef": {"namespace": "ops", "name": "slack", "key": key}}});
        let map = json!({"valueFrom": {"configMapKeyRef": {"namespace": "ops", "name": "urls", "key": "a.b", "optional": true}}});
        let config = json!({"a": [secret("x"), 1, {"b": secret("y")}], "c": map, "d": secret("x"), "e": [map, 2], "f": {"valueFrom": 1, "g": 2}});
        let found: Vec<String> = find(&config).expect("they are valid").iter().map(Reference::to_string).collect();
        assert_eq!(found, ["key x of Secret ops/slack", "key y of Secret ops/slack", "key a.b of ConfigMap ops/urls"]);
        let values = |reference: &Reference| (!reference.optional).then(|| format!("<{}>", reference.key));
        assert_eq!(
            resolve(&config, &values),
            json!({"a": ["<x>", 1, {"b": "<y>"}], "d": "<x>", "e": [2], "f": {"valueFrom": 1, "g": 2}})
        );
    }

    #[test]
    fn a_reference_that_is_not_valid_is_rejected_by_its_place() {
        let wrong = |from: Value| find(&json!({"a": [{"b": {"valueFrom": from}}]})).expect_err("it is not valid");
        let at = "config.a[0].b.valueFrom: ";
        for (from, why) in [
            (json!({}), "expected"),
            (json!(null), ""),
            (json!({"fieldRef": {}}), "unknown variant `fieldRef`"),
            (json!({"secretKeyRef": {"name": "a", "key": "b"}}), "missing field `namespace`"),
            (json!({"secretKeyRef": {"namespace": "", "name": "a", "key": "b"}}), "namespace \"\" is not a name"),
            (json!({"secretKeyRef": {"namespace": "n", "name": "a/b", "key": "b"}}), "name \"a/b\" is not a name"),
            (json!({"secretKeyRef": {"namespace": "n", "name": "a", "key": "b", "x": 1}}), "unknown field `x`"),
            (json!({"secretKeyRef": {"namespace": "n", "name": "a", "key": "b", "optional": null}}), "null"),
        ] {
            let error = wrong(from);
            assert!(error.starts_with(at) && error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_number_of_references_is_bounded() {
        let many = |count: usize| {
            let one =
                |n| json!({"valueFrom": {"secretKeyRef": {"namespace": "n", "name": "a", "key": format!("k{n}")}}});
            find(&Value::Array((0..count).map(one).collect()))
        };
        assert!(many(MAX_REFERENCES).is_ok());
        assert_eq!(many(65), Err("config: refers to 65 keys; at most 64 are taken".to_owned()));
    }
}
