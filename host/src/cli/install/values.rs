//! The values of an installation: those of the chart, changed by files and single settings.

use anyhow::{Context, bail, ensure};
use pilothouse_apiserver::yaml;
use serde_json::{Map, Value};

/// Settings with a default whose members Kubernetes defines.
const OPEN: [&str; 1] = ["resources"];

/// Changes `values`, whose members are those of the chart, by `changes`. Within a setting whose members the chart does not define, `null` removes a
/// member.
///
/// # Errors
/// If there is no such setting, or it has another type.
pub(super) fn change(values: &mut Value, changes: Value) -> anyhow::Result<()> {
    change_at(values, changes, "")
}

fn change_at(value: &mut Value, change: Value, path: &str) -> anyhow::Result<()> {
    let (wanted, given) = (type_of(value), type_of(&change));
    let at = if path.is_empty() { "the file of values" } else { path };
    ensure!(wanted == given, "{at} must be {wanted}, and is {given}");
    match (value, change) {
        (Value::Object(members), Value::Object(changes)) if members.is_empty() || OPEN.contains(&path) => {
            merge(members, changes);
        }
        (Value::Object(members), Value::Object(changes)) => {
            for (name, change) in changes {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let Some(member) = members.get_mut(&name) else {
                    let known: Vec<_> = members.keys().map(String::as_str).collect();
                    bail!("there is no setting {path}; known here are {}", known.join(", "));
                };
                change_at(member, change, &path)?;
            }
        }
        (value, change) => *value = change,
    }
    Ok(())
}

fn merge(members: &mut Map<String, Value>, changes: Map<String, Value>) {
    for (name, change) in changes {
        match (members.get_mut(&name), change) {
            (_, Value::Null) => {
                members.remove(&name);
            }
            (Some(Value::Object(members)), Value::Object(changes)) => merge(members, changes),
            (_, change) => {
                members.insert(name, change);
            }
        }
    }
}

/// Reads `PATH=VALUE`, with a value in YAML, as changes.
///
/// # Errors
/// If it has no `=`, or the value is not valid YAML.
pub(super) fn setting(text: &str) -> anyhow::Result<Value> {
    let (path, value) = text.split_once('=').with_context(|| format!("{text} has no `=`: write PATH=VALUE"))?;
    let value = yaml::first(value).with_context(|| format!("the value of {path} is not valid YAML"))?.value;
    Ok(path.split('.').rev().fold(value, |value, name| Value::Object(Map::from_iter([(name.to_owned(), value)]))))
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use serde_json::json;

    use super::*;

    fn defaults() -> Value {
        json!({
            "replicas": 2, "image": "a", "args": [], "plugins": {"volume": {}, "copyFrom": {"image": ""}},
            "resources": {"limits": {"memory": "1Gi"}},
        })
    }

    #[test]
    fn later_changes_win_and_open_settings_take_any_member() {
        let mut values = defaults();
        for text in [
            "replicas=3",
            "plugins.volume={image: {reference: a}}",
            "plugins.volume.image.reference=b",
            "resources.limits={cpu: 1, memory: null}",
            "args=[--log, debug]",
        ] {
            change(&mut values, setting(text).unwrap()).unwrap();
        }
        let wanted = json!({
            "replicas": 3, "image": "a", "args": ["--log", "debug"],
            "plugins": {"volume": {"image": {"reference": "b"}}, "copyFrom": {"image": ""}},
            "resources": {"limits": {"cpu": 1}},
        });
        assert_eq!(values, wanted);
    }

    #[test]
    fn a_setting_that_is_not_there_or_has_another_type_is_named() {
        for (text, error) in [
            ("replicas=two", "replicas must be a number, and is a text"),
            ("plugins=x", "plugins must be a mapping, and is a text"),
            ("plugins.copyFrom.img=x", "there is no setting plugins.copyFrom.img; known here are image"),
            ("replica=2", "there is no setting replica; known here are args, image, plugins, replicas, resources"),
            ("replicas", "replicas has no `=`: write PATH=VALUE"),
            ("image=", "image must be a text, and is null"),
            ("image={", "the value of image is not valid YAML"),
        ] {
            let result = setting(text).and_then(|changes| change(&mut defaults(), changes));
            assert_eq!(result.unwrap_err().to_string(), error, "{text}");
        }
    }
}
