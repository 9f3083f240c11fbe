//! What `--update` writes into a `then` that is empty: what has happened in the step.

use serde_json::{Map, Value};

use super::{
    case::{Empty, Reference},
    check::{event, last_reconciles, writes, written},
    compare::Update,
    record::Seen,
    world::{Happened, World},
};

/// The beginning of the host's field managers.
const MANAGERS: &str = "pilothouse.";

/// Members of `metadata` that tell something about a plugin.
const METADATA: [&str; 3] = ["labels", "annotations", "finalizers"];

/// Returns the expectations that a step meets: the plugin's writes, the fields that it wrote, its Events, and when it
/// wants to be called again.
pub(super) async fn fill(empty: &Empty, happened: &Happened, world: &World<'_>) -> Update {
    let mut then = Map::new();
    let (mut objects, mut absent) = (Vec::new(), Vec::new());
    for of in written_objects(happened) {
        match world.get(&of).await {
            Ok(Some(object)) => objects.push(expectation(&object)),
            Ok(None) => absent.push(Value::from(of.to_string())),
            // Its definition is gone.
            Err(_) => {}
        }
    }
    let events: Vec<Value> = happened.events.iter().map(expected_event).collect();
    for (name, list) in [("absent", absent), ("events", events), ("objects", objects)] {
        if !list.is_empty() {
            then.insert(name.to_owned(), list.into());
        }
    }
    let mut times = last_reconciles(happened).into_values();
    let first = times.next().flatten();
    if let Some(time) = first.filter(|first| times.all(|time| time == Some(*first))) {
        then.insert("requeueAfter".to_owned(), written(time).into());
    }
    then.insert("writes".to_owned(), writes(happened).into());
    Update { place: empty.place.clone(), value: then.into(), member: Some(empty.member) }
}

/// Returns each object that the plugin wrote, in the order of the first writes.
fn written_objects(happened: &Happened) -> Vec<Reference> {
    let mut all: Vec<Reference> = Vec::new();
    for seen in &happened.seen {
        let Seen::Wrote { api_version, kind, object, error: None, .. } = seen else { continue };
        let (namespace, name) = object.split_once('/').unwrap_or(("", object));
        let kind = kind.split('/').next().unwrap_or_default();
        let [api_version, kind, namespace, name] = [api_version, kind, namespace, name].map(str::to_owned);
        let of = Reference { api_version, kind, namespace, name };
        if !of.name.is_empty() && !all.contains(&of) {
            all.push(of);
        }
    }
    all
}

fn expected_event(of: &Value) -> Value {
    let mut event = event(of);
    if let Some(members) = event.as_object_mut() {
        members.retain(|name, value| !value.is_null() && (name != "count" || *value != 1));
    }
    event
}

/// Returns an object with the fields that the host's field managers have.
fn expectation(object: &Value) -> Value {
    let mut fields = Map::new();
    for entry in object["metadata"]["managedFields"].as_array().into_iter().flatten() {
        let is_ours = entry["manager"].as_str().is_some_and(|manager| manager.starts_with(MANAGERS));
        if let Some(of_entry) = entry["fieldsV1"].as_object().filter(|_| is_ours) {
            merge(&mut fields, of_entry);
        }
    }
    let mut expected = project(object, &fields);
    let Some(members) = expected.as_object_mut() else { return expected };
    for name in ["apiVersion", "kind"] {
        members.insert(name.to_owned(), object[name].clone());
    }
    let mut metadata =
        members.remove("metadata").and_then(|metadata| metadata.as_object().cloned()).unwrap_or_default();
    metadata.retain(|name, _| METADATA.contains(&name.as_str()));
    for name in ["name", "namespace"] {
        if object["metadata"][name].is_string() {
            metadata.insert(name.to_owned(), object["metadata"][name].clone());
        }
    }
    members.insert("metadata".to_owned(), metadata.into());
    expected
}

fn merge(into: &mut Map<String, Value>, other: &Map<String, Value>) {
    for (name, value) in other {
        match (into.get_mut(name).and_then(Value::as_object_mut), value.as_object()) {
            (Some(into), Some(other)) => merge(into, other),
            _ => drop(into.insert(name.clone(), value.clone())),
        }
    }
}

/// Returns the part of a value that has these fields, in the form of `fieldsV1`.
fn project(value: &Value, fields: &Map<String, Value>) -> Value {
    let none = Map::new();
    let of = |name: &str| fields.get(name).and_then(Value::as_object).unwrap_or(&none);
    match value {
        Value::Object(members) if fields.keys().any(|name| name.starts_with("f:")) => {
            let owned = members.iter().filter_map(|(name, value)| {
                let field = format!("f:{name}");
                fields.contains_key(&field).then(|| (name.clone(), project(value, of(&field))))
            });
            owned.collect::<Map<_, _>>().into()
        }
        Value::Array(items) if fields.keys().any(|name| name.starts_with("k:")) => {
            let keys = fields.keys().filter_map(|name| {
                let key: Map<String, Value> = serde_json::from_str(name.strip_prefix("k:")?).ok()?;
                Some((name, key))
            });
            let owned = keys.filter_map(|(name, key)| {
                let has = |item: &&Value| key.iter().all(|(member, value)| item[member] == *value);
                let mut part = project(items.iter().find(has)?, of(name));
                // The item is found by its key.
                part.as_object_mut()?.extend(key);
                Some(part)
            });
            owned.collect()
        }
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_expected_with_the_fields_that_the_plugin_wrote() {
        let entry = |manager: &str, fields: Value| json!({ "manager": manager, "fieldsV1": fields });
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "1", "labels": {"a": "b", "other": "c"},
                "ownerReferences": [{"uid": "2"}],
                "managedFields": [
                    entry("pilothouse.site", json!({
                        "f:metadata": {"f:labels": {"f:a": {}}, "f:ownerReferences": {"k:{\"uid\":\"2\"}": {}}},
                        "f:spec": {"f:template": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}}}}, "f:args": {}},
                    })),
                    entry("pilothouse.site", json!({"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {".": {}, "f:status": {}}}}})),
                    entry("kubectl", json!({"f:spec": {"f:replicas": {}}})),
                ],
            },
            "spec": {
                "replicas": 3, "args": ["x", "y"],
                "template": {"containers": [{"name": "side", "image": "s"}, {"name": "c", "image": "i", "tty": true}], "more": 1},
            },
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Other"}, {"type": "Other"}]},
        });
        assert_eq!(
            expectation(&object),
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "web", "namespace": "shop", "labels": {"a": "b"}},
                "spec": {"args": ["x", "y"], "template": {"containers": [{"name": "c", "image": "i"}]}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            })
        );
    }
}
