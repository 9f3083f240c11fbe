//! Objects written by people: manifests and API descriptions from Kubernetes' Go modules. They measure what depends on
//! how much objects differ.
//!
//! `make real-assets` downloads these modules. `PILOTHOUSE_MANIFESTS` names another folder of YAML and JSON files, such
//! as a dump of a cluster by `kubectl get -o yaml`.

use std::{
    collections::HashSet,
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use crate::objects::uid;

/// Minimum number of objects. Fewer are not representative.
const FEWEST: usize = 1_000;

/// Maximum size of a file. Longer ones are lists of test cases. The API's own description is exempt.
const LONGEST: u64 = 1 << 20;

/// The description of the whole API. It is split into its thousand definitions and paths.
const DESCRIPTION: &str = "swagger.json";

/// Returns different objects of many kinds as texts, with the metadata that a server adds.
pub(crate) fn collect() -> Result<Vec<String>> {
    let folder = folder()?;
    let mut found = Found::default();
    found.walk(&folder);
    let count = found.texts.len();
    ensure!(
        count >= FEWEST,
        "{} has {count} objects in it, and {FEWEST} are needed: run `make real-assets`, or name a folder of manifests in \
         PILOTHOUSE_MANIFESTS",
        folder.display()
    );
    Ok(found.texts)
}

fn folder() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = set("PILOTHOUSE_MANIFESTS") {
        return Ok(folder);
    }
    let modules = set("GOMODCACHE")
        .or_else(|| Some(set("GOPATH")?.join("pkg/mod")))
        .or_else(|| Some(set("HOME")?.join("go/pkg/mod")))
        .context("there is no HOME; name a folder of manifests in PILOTHOUSE_MANIFESTS")?;
    Ok(modules.join("k8s.io"))
}

#[derive(Default)]
struct Found {
    texts: Vec<String>,
    seen: HashSet<String>,
}

impl Found {
    /// Reads files in the order of their names, so that each run sees the same. Skips files that are not manifests.
    fn walk(&mut self, folder: &Path) {
        let mut entries: Vec<_> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                self.walk(&path);
            } else {
                self.read(&path);
            }
        }
    }

    fn read(&mut self, path: &Path) {
        let is = |extensions: &[&str]| path.extension().is_some_and(|found| extensions.iter().any(|one| *one == found));
        let description = path.file_name().is_some_and(|name| name == DESCRIPTION);
        if !is(&["yaml", "yml", "json"]) || !description && fs::metadata(path).is_ok_and(|file| file.len() > LONGEST) {
            return;
        }
        let Ok(text) = fs::read_to_string(path) else { return };
        if description {
            self.describe(&text);
        } else if is(&["json"]) {
            serde_json::from_str(&text).into_iter().for_each(|value| self.take(value));
        } else if text.contains("apiVersion") {
            let values: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap_or_default();
            values.into_iter().for_each(|value| self.take(value));
        }
    }

    fn describe(&mut self, text: &str) {
        let Ok(mut description) = serde_json::from_str::<Value>(text) else { return };
        for (member, kind) in [("definitions", "Definition"), ("paths", "Path")] {
            let Value::Object(parts) = description[member].take() else { continue };
            for (name, spec) in parts {
                let name = name.trim_matches('/').replace(['/', '{', '}'], ".").to_lowercase();
                self.take(json!({
                    "apiVersion": "schemas.example.com/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
                }));
            }
        }
    }

    /// Takes an object, or each object of a list.
    fn take(&mut self, value: Value) {
        let Value::Object(mut object) = value else { return };
        if let Some(Value::Array(items)) = object.get_mut("items") {
            return std::mem::take(items).into_iter().for_each(|item| self.take(item));
        }
        let named = |member: &str| object.get(member).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
        if !named("apiVersion") || !named("kind") || !self.seen.insert(Value::from(object.clone()).to_string()) {
            return;
        }
        let number = self.texts.len() as u64;
        let metadata = object.remove("metadata").and_then(|metadata| match metadata {
            Value::Object(metadata) => Some(metadata),
            _ => None,
        });
        object.insert("metadata".into(), served(metadata.unwrap_or_default(), number).into());
        self.texts.push(Value::from(object).to_string());
    }
}

/// Adds the metadata that a server sets.
fn served(mut metadata: Map<String, Value>, number: u64) -> Map<String, Value> {
    // Many examples share a name.
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or("object");
    let name = format!("{name}-{number}");
    metadata.retain(|member, value| match member.as_str() {
        "namespace" => value.is_string(),
        "labels" => value.as_object().is_some_and(|labels| labels.values().all(Value::is_string)),
        "annotations" => true,
        _ => false,
    });
    metadata.insert("name".into(), name.into());
    metadata.insert("uid".into(), uid(number).into());
    metadata.insert("resourceVersion".into(), (1_000_000 + 17 * number).to_string().into());
    metadata.insert("generation".into(), 1.into());
    metadata.insert(
        "creationTimestamp".into(),
        format!("2026-01-{:02}T{:02}:{:02}:00Z", number % 28 + 1, number % 24, number % 60).into(),
    );
    metadata
}

#[cfg(test)]
mod tests {
    use pilothouse_core::{key::TypeMeta, object::Object};

    use super::*;

    #[test]
    fn manifests_become_objects_each_once() {
        let mut found = Found::default();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 7, "labels": {"a": 1}}, "spec": {}});
        found.take(json!({"apiVersion": "v1", "kind": "List", "items": [pod, pod, {"kind": "Pod"}, 3]}));
        found.describe(r#"{"paths": {"/api/{name}": {"get": {}}}, "definitions": {"io.k8s.Pod": {"type": "object"}}}"#);
        let keys = found.texts.iter().map(|text| {
            let object = Object::parse(text.as_bytes(), &TypeMeta::new("", "")).expect("an object");
            format!("{} {}", object.type_meta().kind, object.key())
        });
        assert_eq!(keys.collect::<Vec<_>>(), ["Pod object-0", "Definition io.k8s.pod-1", "Path api..name.-2"]);
    }
}
