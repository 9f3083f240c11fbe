//! Rejects an apply whose lists have two elements with one key, or one finalizer twice, as the API server does.
//!
//! The API server knows the keys of every list from its schemas. This table has the lists that plugins write most, for
//! kinds that contain a Pod and for Services. Other lists are not checked.

use serde_json::Value;

/// The field of a list, and the members that identify its elements. A missing `protocol` counts as `TCP`.
const LISTS: [(&str, &[&str]); 14] = [
    ("conditions", &["type"]),
    ("containers", &["name"]),
    ("env", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("hostAliases", &["ip"]),
    ("imagePullSecrets", &["name"]),
    ("initContainers", &["name"]),
    ("ownerReferences", &["uid"]),
    ("ports", &["containerPort", "protocol"]),
    ("ports", &["port", "protocol"]),
    ("topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("volumeDevices", &["devicePath"]),
    ("volumeMounts", &["mountPath"]),
    ("volumes", &["name"]),
];

/// Checks the lists of an object that is applied.
///
/// # Errors
/// Fails with the API server's message for the first duplicate.
pub(super) fn check(object: &Value) -> Result<(), String> {
    let text = |member: &str| object[member].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let found = finalizers(&object["metadata"]["finalizers"]).or_else(|| match (api_version, kind) {
        ("apps/v1" | "batch/v1", _) | ("v1", "Pod" | "PodTemplate" | "ReplicationController" | "Service") => {
            within(object, &mut String::new())
        }
        _ => None,
    });
    let Some(problem) = found else { return Ok(()) };
    let metadata = |member: &str| object["metadata"][member].as_str().unwrap_or_default();
    let version = if api_version.contains('/') { api_version.to_owned() } else { format!("/{api_version}") };
    Err(format!(
        "failed to create typed patch object ({}/{}; {version}, Kind={kind}): {problem}",
        metadata("namespace"),
        metadata("name"),
    ))
}

fn finalizers(finalizers: &Value) -> Option<String> {
    let all = finalizers.as_array()?;
    let twice = all.iter().enumerate().find(|(at, name)| all.iter().take(*at).any(|before| before == *name));
    twice.map(|(_, name)| format!(".metadata.finalizers: duplicate entries for key [={name}]"))
}

/// Returns the first problem in a value at `path`.
fn within(value: &Value, path: &mut String) -> Option<String> {
    let length = path.len();
    for (name, value) in value.as_object()? {
        path.push('.');
        path.push_str(name);
        let found = match value {
            // Names chosen by the user, which are not lists of the schema.
            _ if matches!(name.as_str(), "annotations" | "labels" | "matchLabels" | "nodeSelector") => None,
            Value::Array(items) => list(name, items, path),
            value => within(value, path),
        };
        if found.is_some() {
            return found;
        }
        path.truncate(length);
    }
    None
}

fn list(name: &str, items: &[Value], path: &mut String) -> Option<String> {
    let has = |keys: &[&str]| items.iter().all(|item| keys.first().is_some_and(|key| !item[*key].is_null()));
    let keys = LISTS.iter().find(|(list, keys)| *list == name && has(keys)).map(|(_, keys)| *keys)?;
    let length = path.len();
    let mut seen = Vec::new();
    for item in items {
        let step = step(item, keys);
        if seen.contains(&step) {
            return Some(format!("{path}: duplicate entries for key {step}"));
        }
        path.push_str(&step);
        let found = within(item, path);
        if found.is_some() {
            return found;
        }
        path.truncate(length);
        seen.push(step);
    }
    None
}

/// Returns the API server's name of an element: `[name="a"]`.
fn step(item: &Value, keys: &[&str]) -> String {
    let key = |key: &&str| match (&item[*key], *key) {
        (Value::Null, "protocol") => "protocol=\"TCP\"".to_owned(),
        (value, key) => format!("{key}={value}"),
    };
    format!("[{}]", keys.iter().map(key).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(container: &Value) -> Value {
        let template = json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "containers": [container] } });
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d", "namespace": "n" }, "spec": { "template": template } })
    }

    #[test]
    fn two_elements_with_one_key_are_refused_in_the_servers_words() {
        let refused = |container: Value| check(&deployment(&container)).expect_err("it is refused");
        let place = "failed to create typed patch object (n/d; apps/v1, Kind=Deployment): .spec.template.spec.containers[name=\"c\"]";
        assert_eq!(
            refused(json!({ "name": "c", "env": [{ "name": "A", "value": "p" }, { "name": "A", "value": "q" }] })),
            format!("{place}.env: duplicate entries for key [name=\"A\"]"),
        );
        assert_eq!(
            refused(
                json!({ "name": "c", "ports": [{ "containerPort": 80 }, { "containerPort": 80, "protocol": "TCP" }] })
            ),
            format!("{place}.ports: duplicate entries for key [containerPort=80,protocol=\"TCP\"]"),
        );
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "fi", "finalizers": ["a/x", "a/x"] } });
        let words = "failed to create typed patch object (/fi; /v1, Kind=ConfigMap): .metadata.finalizers: duplicate entries for key [=\"a/x\"]";
        assert_eq!(check(&map), Err(words.to_owned()));
    }

    #[test]
    fn elements_that_differ_and_kinds_that_are_not_known_pass() {
        let ports = json!([{ "name": "t", "port": 53 }, { "name": "u", "port": 53, "protocol": "UDP" }]);
        let service =
            json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "dns" }, "spec": { "ports": ports } });
        assert_eq!(check(&service), Ok(()));
        let env = json!([{ "name": "A", "value": "p" }, { "name": "B", "value": "p" }]);
        assert_eq!(check(&deployment(&json!({ "name": "c", "env": env, "args": ["a", "a"] }))), Ok(()));
        let custom = json!({ "apiVersion": "example.org/v1", "kind": "Thing", "metadata": { "name": "t" }, "spec": { "env": [{ "name": "A" }, { "name": "A" }] } });
        assert_eq!(check(&custom), Ok(()));
    }
}
