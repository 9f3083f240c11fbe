//! Compares an object with what `kubectl apply` applied: the annotation that it leaves on the object.

use serde_json::Value;

/// The annotation.
pub(crate) const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns the paths of fields that were applied, and are no longer so. Fields that nobody applied do not count: they
/// are defaults, or belong to others.
pub(crate) fn drift(applied: &Value, live: &Value, ignored: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for member in ["spec", "data"] {
        compare(member, applied.get(member), live.get(member), ignored, &mut found);
    }
    compare(
        "metadata.labels",
        applied.pointer("/metadata/labels"),
        live.pointer("/metadata/labels"),
        ignored,
        &mut found,
    );
    found
}

fn compare(path: &str, applied: Option<&Value>, live: Option<&Value>, ignored: &[String], found: &mut Vec<String>) {
    let is_below = |of: &String| {
        path.strip_prefix(of.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    if ignored.iter().any(is_below) {
        return;
    }
    match (applied, live) {
        // What was applied as null was removed.
        (None, _) | (Some(Value::Null), None) => {}
        (Some(Value::Object(applied)), Some(Value::Object(live))) => {
            for (name, value) in applied {
                compare(&format!("{path}.{name}"), Some(value), live.get(name), ignored, found);
            }
        }
        (Some(Value::Array(applied)), Some(Value::Array(live))) => {
            for (i, item) in applied.iter().enumerate() {
                let name = item.get("name").and_then(Value::as_str);
                let (place, same) = match name {
                    Some(name) => (name.to_owned(), live.iter().find(|live| live["name"] == name)),
                    None => (i.to_string(), live.get(i)),
                };
                compare(&format!("{path}[{place}]"), Some(item), same, ignored, found);
            }
        }
        (Some(applied), Some(live)) if applied == live => {}
        _ => found.push(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_fields_that_were_applied_can_drift() {
        let applied = json!({
            "metadata": {"labels": {"app": "web"}},
            "spec": {"replicas": 2, "gone": null, "containers": [{"name": "a", "image": "a:1"}, {"name": "b"}], "args": ["x", "y"]},
        });
        let mut live = json!({
            "metadata": {"labels": {"app": "web", "more": "yes"}},
            "spec": {
                "replicas": 2, "default": true, "args": ["x", "y"],
                "containers": [{"name": "sidecar"}, {"name": "b"}, {"name": "a", "image": "a:1", "port": 1}],
            },
        });
        assert_eq!(drift(&applied, &live, &[]), [""; 0]);
        live["spec"]["replicas"] = json!(3);
        live["spec"]["containers"][2]["image"] = json!("a:2");
        live["spec"]["args"][1] = json!("z");
        live["metadata"]["labels"] = json!({});
        let all = ["spec.args[1]", "spec.containers[a].image", "spec.replicas", "metadata.labels.app"];
        assert_eq!(drift(&applied, &live, &[]), all);
        assert_eq!(
            drift(&applied, &live, &["spec.replicas".to_owned(), "spec.containers".to_owned()]),
            [all[0], all[3]]
        );
    }
}
