//! Makes objects of a cluster fit to be created elsewhere, and keeps secrets out of them.

use std::collections::{BTreeSet, HashMap, HashSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// The members of `metadata` that stay. The server sets the others, or refuses them.
const METADATA: [&str; 7] =
    ["name", "generateName", "namespace", "labels", "annotations", "ownerReferences", "finalizers"];

/// The annotation in which `kubectl apply` keeps the whole object, with the values of a Secret.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Namespaces that every cluster has.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The ConfigMap that every cluster puts into every namespace.
const ROOT_CERTIFICATES: &str = "kube-root-ca.crt";

/// Objects that can be created, owners first.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Cleaned {
    pub(super) objects: Vec<Value>,
    /// The namespaces that they need, and that are not among them.
    pub(super) namespaces: BTreeSet<String>,
    /// What is not as in the cluster, for people.
    pub(super) notes: Vec<String>,
}

/// Cleans objects. A reference to an owner among them loses its uid, and one to another owner is left out.
pub(super) fn clean(objects: Vec<Value>) -> Cleaned {
    let uids: HashSet<String> = objects.iter().filter_map(uid).collect();
    let mut secrets = Redacted::default();
    let (mut notes, mut left_out) = (Vec::new(), 0);
    let mut cleaned = Vec::new();
    for mut object in in_order(objects) {
        if object["kind"] == "ConfigMap" && text(&object, "name") == Some(ROOT_CERTIFICATES) {
            continue;
        }
        if object["metadata"]["deletionTimestamp"].is_string() {
            notes.push(format!("{} is being deleted in the cluster, and is not here.", name(&object)));
        }
        match (object["apiVersion"].as_str(), object["kind"].as_str()) {
            (Some("v1"), Some("Secret")) => secrets.redact(&mut object),
            (_, Some("CustomResourceDefinition")) => definition(&mut object, &mut notes),
            _ => {}
        }
        let Some(metadata) = object["metadata"].as_object_mut() else { continue };
        metadata.retain(|member, _| METADATA.contains(&member.as_str()));
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
        if let Some(owners) = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut) {
            let before = owners.len();
            owners.retain(|owner| owner["uid"].as_str().is_some_and(|uid| uids.contains(uid)));
            left_out += before - owners.len();
            for owner in owners.iter_mut().filter_map(Value::as_object_mut) {
                owner.remove("uid");
            }
        }
        let is_empty = |value: &Value| {
            value.as_object().is_some_and(serde_json::Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
        };
        metadata.retain(|_, value| !is_empty(value));
        cleaned.push(object);
    }
    if left_out > 0 {
        let references = if left_out == 1 { "reference to an owner is" } else { "references to owners are" };
        notes.push(format!("{left_out} {references} left out, because the plugin does not need the owners."));
    }
    let collected: HashSet<&str> = cleaned
        .iter()
        .filter(|object| object["kind"] == "Namespace")
        .filter_map(|object| text(object, "name"))
        .collect();
    let namespaces = cleaned.iter().filter_map(|object| text(object, "namespace"));
    let namespaces = namespaces.filter(|name| !NAMESPACES.contains(name) && !collected.contains(name));
    let namespaces = namespaces.map(str::to_owned).collect();
    Cleaned { objects: cleaned, namespaces, notes }
}

fn text<'a>(object: &'a Value, member: &str) -> Option<&'a str> {
    object["metadata"][member].as_str()
}

fn uid(object: &Value) -> Option<String> {
    text(object, "uid").map(str::to_owned)
}

/// `v1 Pod shop/web`.
fn name(object: &Value) -> String {
    let of = |member: &str| object[member].as_str().unwrap_or_default();
    let namespace = text(object, "namespace").map(|namespace| format!("{namespace}/")).unwrap_or_default();
    format!("{} {} {namespace}{}", of("apiVersion"), of("kind"), text(object, "name").unwrap_or_default())
}

/// Sorts definitions first, and owners before what they own. A circle of owners keeps its order.
fn in_order(mut objects: Vec<Value>) -> Vec<Value> {
    let rank = |object: &Value| match object["kind"].as_str() {
        Some("Namespace") => 0,
        Some("CustomResourceDefinition") => 1,
        _ => 2,
    };
    objects.sort_by_key(|object| (rank(object), name(object)));
    let places: HashMap<String, usize> =
        objects.iter().enumerate().filter_map(|(place, object)| Some((uid(object)?, place))).collect();
    let owners: Vec<Vec<usize>> = objects
        .iter()
        .map(|object| {
            let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            owners.filter_map(|owner| places.get(owner["uid"].as_str()?).copied()).collect()
        })
        .collect();
    let (mut order, mut is_seen) = (Vec::new(), vec![false; objects.len()]);
    for first in 0..objects.len() {
        // Without recursion, because chains of owners may be long.
        let mut stack = vec![(first, false)];
        while let Some((place, are_owners_done)) = stack.pop() {
            if are_owners_done {
                order.push(place);
            } else if !std::mem::replace(&mut is_seen[place], true) {
                stack.push((place, true));
                stack.extend(owners[place].iter().map(|owner| (*owner, false)));
            }
        }
    }
    let mut objects: Vec<Option<Value>> = objects.into_iter().map(Some).collect();
    order.into_iter().filter_map(|place| objects[place].take()).collect()
}

/// Takes away what only the server of the cluster can do.
fn definition(object: &mut Value, notes: &mut Vec<String>) {
    object.as_object_mut().map(|members| members.remove("status"));
    if object["spec"]["conversion"]["strategy"] == "Webhook" {
        object["spec"]["conversion"] = json!({ "strategy": "None" });
        notes.push(format!("{} converts by a webhook in the cluster, and does not here.", name(object)));
    }
}

/// The values that were replaced. Equal ones have equal replacements.
#[derive(Default)]
struct Redacted(HashMap<String, usize>);

impl Redacted {
    fn redact(&mut self, secret: &mut Value) {
        for member in ["data", "stringData"] {
            let Some(values) = secret.get_mut(member).and_then(Value::as_object_mut) else { continue };
            for (key, value) in values {
                let count = self.0.len() + 1;
                let number = *self.0.entry(value.as_str().unwrap_or_default().to_owned()).or_insert(count);
                // The API server checks that these are JSON.
                let text = match key.as_str() {
                    ".dockerconfigjson" => r#"{"auths":{}}"#.to_owned(),
                    ".dockercfg" => "{}".to_owned(),
                    _ => format!("redacted-{number}"),
                };
                *value = if member == "data" { STANDARD.encode(text) } else { text }.into();
            }
        }
    }
}
