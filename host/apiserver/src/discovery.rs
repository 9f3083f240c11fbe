//! Discovery of groups, versions and resources, as one aggregated document or as one document per group version.

use http::{HeaderMap, header};
use serde_json::{Value, json};

use crate::{
    request::text_header,
    resources::{Purpose, Registry, Resource, Version},
};

/// The requested form of `/api` and `/apis`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// One document with everything, of version `v2` or `v2beta1`.
    Aggregated(&'static str),
    Plain,
}

impl Form {
    /// Returns the first supported form in the Accept header, or the plain form without one.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        for range in text_header(headers, header::ACCEPT).split(',') {
            let has = |parameter: &str| range.split(';').any(|part| part.trim() == parameter);
            if has("as=APIGroupDiscoveryList") && has("g=apidiscovery.k8s.io") {
                match ["v2", "v2beta1"].into_iter().find(|version| has(&format!("v={version}"))) {
                    Some(version) => return Form::Aggregated(version),
                    None => continue,
                }
            }
            if has("application/json") || has("*/*") {
                return Form::Plain;
            }
        }
        Form::Plain
    }

    /// Returns the content type. Clients recognize an aggregated document only if its type repeats the parameters.
    pub(crate) fn content_type(self) -> String {
        match self {
            Form::Plain => "application/json".to_owned(),
            Form::Aggregated(version) => {
                format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList")
            }
        }
    }
}

/// Returns the aggregated document of `/api` (the core group) or `/apis` (all others).
pub(crate) fn aggregated(registry: &Registry, core: bool, version: &str) -> Value {
    let groups = registry.groups().filter(|(name, _)| name.is_empty() == core);
    let items: Vec<Value> = groups
        .map(|(name, versions)| {
            let mut metadata = json!({"creationTimestamp": null});
            if !core {
                metadata["name"] = name.into();
            }
            json!({
                "metadata": metadata,
                "versions": versions.iter().map(aggregated_version).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"), "metadata": {}, "items": items,
    })
}

fn aggregated_version(version: &Version) -> Value {
    let resources: Vec<Value> = version
        .resources
        .iter()
        .map(|resource| {
            let kind =
                |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
            let own = kind(&resource.group, &resource.version, &resource.kind);
            let subresources: Vec<Value> = resource
                .subresources()
                .into_iter()
                .map(|(name, verbs)| {
                    let of = if name == "scale" { kind("autoscaling", "v1", "Scale") } else { own.clone() };
                    json!({"subresource": name, "responseKind": of, "verbs": verbs})
                })
                .collect();
            let mut entry = json!({
                "resource": resource.plural, "responseKind": own, "singularResource": resource.singular,
                "scope": if resource.namespaced { "Namespaced" } else { "Cluster" }, "verbs": resource.verbs(),
            });
            for (field, list) in [("shortNames", &resource.short_names), ("categories", &resource.categories)] {
                if !list.is_empty() {
                    entry[field] = list.clone().into();
                }
            }
            if !subresources.is_empty() {
                entry["subresources"] = subresources.into();
            }
            entry
        })
        .collect();
    json!({"version": version.name, "freshness": "Current", "resources": resources})
}

/// Returns `/api` in the plain form.
pub(crate) fn core_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// Returns `/apis` in the plain form.
pub(crate) fn groups(registry: &Registry) -> Value {
    let named = registry.groups().filter(|(name, _)| !name.is_empty());
    let groups: Vec<Value> = named.map(|(name, versions)| group_value(name, versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub(crate) fn group(registry: &Registry, name: &str) -> Option<Value> {
    let mut group = group_value(name, registry.versions(name).filter(|_| !name.is_empty())?);
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

fn group_value(name: &str, versions: &[Version]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{name}/{}", version.name), "version": version.name}))
        .collect();
    json!({"name": name, "preferredVersion": versions.first(), "versions": versions})
}

/// `/api/v1`, `/apis/GROUP/VERSION`.
pub(crate) fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let found = registry.version(group, version)?;
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let resources: Vec<Value> = found.resources.iter().flat_map(|resource| entries(resource)).collect();
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}))
}

fn entries(resource: &Resource) -> Vec<Value> {
    let mut own = json!({
        "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
        "kind": resource.kind, "verbs": resource.verbs(),
    });
    for (field, list) in [("shortNames", &resource.short_names), ("categories", &resource.categories)] {
        if !list.is_empty() {
            own[field] = list.clone().into();
        }
    }
    if resource.purpose == Purpose::Store {
        // Clients compare the hash to find out whether two versions store the same objects.
        own["storageVersionHash"] = crate::openapi::hash(resource.stored_as.as_bytes())[..12].into();
    }
    let mut entries = vec![own];
    for (name, verbs) in resource.subresources() {
        let mut entry = json!({
            "name": format!("{}/{name}", resource.plural), "singularName": "", "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": verbs,
        });
        if name == "scale" {
            entry["group"] = "autoscaling".into();
            entry["version"] = "v1".into();
            entry["kind"] = "Scale".into();
        }
        entries.push(entry);
    }
    entries
}
