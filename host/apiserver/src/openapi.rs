//! OpenAPI v3: an index of group versions, and a document for each with the schemas of its kinds.
//!
//! Clients read two things: the schemas (`kubectl explain`), and whether a kind's PATCH has `fieldValidation` (every
//! writer). Paths therefore have only that parameter.

use std::hash::{DefaultHasher, Hasher};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::{
    VERSION,
    object::to_json,
    resources::{Purpose, Registry, Resource, Version},
};

/// A group version's document.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    pub(crate) json: Bytes,
}

/// Returns a hash of a content that is the same in every run. It is not cryptographic.
pub(crate) fn hash(content: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    format!("{:016X}", hasher.finish())
}

/// Returns `/openapi/v3`, the addresses of all documents. An address changes with its document, so that clients may
/// cache it.
pub(crate) fn index(registry: &Registry) -> Value {
    let mut paths = Map::new();
    for (group, versions) in registry.groups() {
        for version in versions {
            let path = path(group, &version.name);
            // Built-in kinds change with the program, and custom ones at any time.
            let hash = if version.resources.iter().any(|resource| resource.custom) {
                hash(&version.openapi(group).json)
            } else {
                hash(format!("{VERSION} {path}").as_bytes())
            };
            let url = format!("/openapi/v3/{path}?hash={hash}");
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// Returns the document of a path such as `api/v1` or `apis/apps/v1`.
pub(crate) fn document(registry: &Registry, path: &str) -> Option<Bytes> {
    let (group, version) = match path.split('/').collect::<Vec<_>>().as_slice() {
        ["api", version] => (String::new(), (*version).to_owned()),
        ["apis", group, version] => ((*group).to_owned(), (*version).to_owned()),
        _ => return None,
    };
    Some(registry.version(&group, &version)?.openapi(&group).json.clone())
}

fn path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// Writes the document of a group version.
pub(crate) fn write(group: &str, version: &Version) -> Document {
    let mut schemas = Map::new();
    let mut paths = Map::new();
    for resource in &version.resources {
        let schema = resource.schema();
        schemas.extend(schema.openapi_definitions());
        let name = definition_name(resource);
        let mut own = schema.openapi();
        // A built-in kind's schema may be only a reference.
        let reference = own["$ref"].as_str().and_then(|at| at.rsplit('/').next()).map(ToOwned::to_owned);
        let name = match reference {
            Some(referred) => {
                own = schemas.get(&referred).cloned().unwrap_or_default();
                referred
            }
            None => name,
        };
        own["x-kubernetes-group-version-kind"] = json!([kind(resource)]);
        schemas.insert(name.clone(), own);
        add_paths(&mut paths, &path(group, &version.name), resource, &name);
    }
    let document = json!({
        "openapi": "3.0.0",
        "info": {"title": "Pilothouse", "version": VERSION},
        "paths": paths,
        "components": {"schemas": schemas},
    });
    Document { json: to_json(&document) }
}

fn kind(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": resource.kind})
}

/// `com.example.stable.v1.MyApple`
fn definition_name(resource: &Resource) -> String {
    let mut parts: Vec<&str> = resource.group.split('.').filter(|part| !part.is_empty()).collect();
    parts.reverse();
    parts.extend([resource.version.as_str(), resource.kind.as_str()]);
    parts.join(".")
}

fn add_paths(paths: &mut Map<String, Value>, base: &str, resource: &Resource, definition: &str) {
    let namespace = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("/{base}{namespace}/{}", resource.plural);
    let reference = json!({"$ref": format!("#/components/schemas/{definition}")});
    let operation = |action: &str, parameters: &[&str]| {
        let parameters: Vec<Value> = parameters
            .iter()
            .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}))
            .collect();
        json!({
            "x-kubernetes-action": action, "x-kubernetes-group-version-kind": kind(resource), "parameters": parameters,
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
        })
    };
    let write = ["dryRun", "fieldManager", "fieldValidation"];
    let apply = ["dryRun", "fieldManager", "fieldValidation", "force"];
    if resource.purpose == Purpose::Review {
        paths.insert(collection, json!({"post": operation("post", &write)}));
        return;
    }
    let selectors = ["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "watch"];
    let delete = ["dryRun", "gracePeriodSeconds", "propagationPolicy"];
    paths.insert(
        format!("{collection}/{{name}}"),
        json!({
            "get": operation("get", &[]), "put": operation("put", &write), "patch": operation("patch", &apply),
            "delete": operation("delete", &delete),
        }),
    );
    for (subresource, _) in resource.subresources() {
        paths.insert(
            format!("{collection}/{{name}}/{subresource}"),
            json!({"get": operation("get", &[]), "put": operation("put", &write), "patch": operation("patch", &apply)}),
        );
    }
    paths.insert(
        collection,
        json!({
            "get": operation("list", &selectors), "post": operation("post", &write),
            "delete": operation("deletecollection", &selectors),
        }),
    );
}
