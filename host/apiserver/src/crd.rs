//! Checks CustomResourceDefinitions, sets their conditions and turns them into served resources.
//!
//! A definition takes effect at its commit: its names are accepted and it is established in the same revision. Names of
//! another definition of the group are not accepted, and are not served until the other definition is deleted.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::{
    convert,
    names::{is_label, is_subdomain},
    object::{array, is_deleting, name, now, set_at},
    resources::{Column, Defined, GroupResource, Registry, Resource, ScalePaths, priority},
    schema::{Cause, Reason, Schema},
    webhook,
};

/// The finalizer that keeps a definition until its objects are gone.
pub(crate) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Fills in default names and the conversion strategy.
pub(crate) fn default(crd: &mut Value) {
    let Some(spec) = crd["spec"].as_object_mut() else { return };
    if let Some(Value::Object(names)) = spec.get_mut("names") {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let empty = |names: &Map<String, Value>, field: &str| {
            names.get(field).and_then(Value::as_str).unwrap_or_default().is_empty()
        };
        if empty(names, "singular") {
            names.insert("singular".to_owned(), kind.to_lowercase().into());
        }
        if empty(names, "listKind") {
            names.insert("listKind".to_owned(), format!("{kind}List").into());
        }
    }
    let conversion = spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    if let Some(service) = conversion.pointer_mut("/webhook/clientConfig/service").and_then(Value::as_object_mut) {
        service.entry("port").or_insert_with(|| 443.into());
    }
}

/// Decides whether the definition's names are available, and sets its status.
pub(crate) fn accept(crd: &mut Value, old: Option<&Value>, registry: &Registry) {
    let conflict = conflict(crd, registry);
    let before = old.map(|old| old["status"].clone()).unwrap_or_default();
    let mut status = before.clone();
    if !status.is_object() {
        status = json!({"conditions": []});
    }
    let accepted = match &conflict {
        None => ("NamesAccepted", "True", "NoConflicts", "no conflicts found".to_owned()),
        Some((reason, message)) => ("NamesAccepted", "False", reason.as_str(), message.clone()),
    };
    let established = match &conflict {
        None => ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted".to_owned()),
        Some(_) if condition(&before, "Established") => {
            ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted".to_owned())
        }
        Some(_) => ("Established", "False", "NotAccepted", "not all names are accepted".to_owned()),
    };
    set_condition(&mut status, accepted);
    set_condition(&mut status, established);
    if conflict.is_none() {
        status["acceptedNames"] = crd["spec"]["names"].clone();
    } else if status["acceptedNames"].is_null() {
        status["acceptedNames"] = json!({"plural": "", "kind": ""});
    }
    let storage = array(&crd["spec"]["versions"]).iter().find(|version| version["storage"] == json!(true));
    let storage = storage.map(|version| version["name"].clone()).unwrap_or_default();
    let mut stored: Vec<Value> = array(&status["storedVersions"]).to_vec();
    if storage.is_string() && !stored.contains(&storage) {
        stored.push(storage);
    }
    status["storedVersions"] = stored.into();
    crd["status"] = status;
}

/// Marks the definition as being deleted.
pub(crate) fn mark_terminating(crd: &mut Value) {
    let message = "CustomResource deletion is in progress".to_owned();
    set_condition(&mut crd["status"], ("Terminating", "True", "InstanceDeletionInProgress", message));
}

fn condition(status: &Value, kind: &str) -> bool {
    array(&status["conditions"]).iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

fn set_condition(status: &mut Value, (kind, value, reason, message): (&str, &str, &str, String)) {
    if !status["conditions"].is_array() {
        set_at(status, &["conditions"], json!([]));
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    let mut next = json!({
        "type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": now(),
    });
    match conditions.iter_mut().find(|condition| condition["type"] == kind) {
        Some(condition) => {
            if condition["status"] == value {
                next["lastTransitionTime"] = condition["lastTransitionTime"].clone();
            }
            *condition = next;
        }
        None => conditions.push(next),
    }
}

/// Returns the first name that another definition of the group has.
fn conflict(crd: &Value, registry: &Registry) -> Option<(String, String)> {
    let names = &crd["spec"]["names"];
    let group = text(&crd["spec"], "group");
    let taken = |fields: &[&str], wanted: &str| {
        registry.definitions(group, name(crd)).any(|other| {
            fields.iter().any(|field| match &other.names[*field] {
                Value::String(found) => found == wanted,
                Value::Array(found) => found.iter().any(|found| found == wanted),
                _ => false,
            })
        })
    };
    let resources = ["plural", "singular", "shortNames"];
    let in_use = |reason: &str, name: &str| Some((reason.to_owned(), format!("\"{name}\" is already in use")));
    let short_names = array(&names["shortNames"]).iter().filter_map(Value::as_str);
    let checks = [("PluralConflict", text(names, "plural")), ("SingularConflict", text(names, "singular"))];
    let checks = checks.into_iter().chain(short_names.map(|short| ("ShortNamesConflict", short)));
    for (reason, name) in checks {
        if taken(&resources, name) {
            return in_use(reason, name);
        }
    }
    for (reason, name) in [("KindConflict", text(names, "kind")), ("ListKindConflict", text(names, "listKind"))] {
        if taken(&["kind", "listKind"], name) {
            return in_use(reason, name);
        }
    }
    None
}

/// Returns the resources that a committed definition serves.
pub(crate) fn define(crd: &Value) -> Defined {
    let spec = &crd["spec"];
    let group = text(spec, "group").to_owned();
    if !condition(&crd["status"], "Established") {
        return Defined { resources: Vec::new(), names: Value::Null, group };
    }
    let storage = array(&spec["versions"]).iter().find(|version| version["storage"] == json!(true));
    let stored_as = format!("{group}/{}", storage.map_or("", |version| text(version, "name")));
    let conversion = convert::conversion(crd).map(Arc::new);
    let mut served: Vec<Arc<Resource>> = array(&spec["versions"])
        .iter()
        .filter(|version| version["served"] == json!(true))
        .map(|version| {
            let mut resource = resource(crd, version, &stored_as);
            resource.conversion = conversion.clone();
            Arc::new(resource)
        })
        .collect();
    served.sort_by_key(|resource| std::cmp::Reverse(priority(&resource.version)));
    Defined { resources: served, names: crd["status"]["acceptedNames"].clone(), group }
}

/// Returns the collection with a definition's objects.
pub(crate) fn storage(crd: &Value) -> GroupResource {
    GroupResource::new(text(&crd["spec"], "group"), text(&crd["spec"]["names"], "plural"))
}

fn resource(crd: &Value, version: &Value, stored_as: &str) -> Resource {
    let spec = &crd["spec"];
    let names = &crd["status"]["acceptedNames"];
    let list = |field: &str| -> Vec<String> {
        array(&names[field]).iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
    };
    let kind = text(names, "kind");
    let mut resource = Resource::new(text(spec, "group"), text(version, "name"), text(names, "plural"), kind);
    resource.singular = text(names, "singular").to_owned();
    resource.list_kind = text(names, "listKind").to_owned();
    resource.namespaced = text(spec, "scope") == "Namespaced";
    resource.short_names = list("shortNames");
    resource.categories = list("categories");
    resource.stored_as = stored_as.to_owned();
    resource.custom = true;
    resource.generation = true;
    let subresources = &version["subresources"];
    resource.status = subresources["status"].is_object();
    resource.scale = subresources["scale"].is_object().then(|| {
        let scale = &subresources["scale"];
        ScalePaths {
            spec: text(scale, "specReplicasPath").to_owned(),
            status: text(scale, "statusReplicasPath").to_owned(),
            selector: scale["labelSelectorPath"].as_str().map(ToOwned::to_owned),
        }
    });
    resource.columns = array(&version["additionalPrinterColumns"]).iter().map(column).collect();
    resource.selectable = array(&version["selectableFields"])
        .iter()
        .map(|field| text(field, "jsonPath").trim_start_matches('.').to_owned())
        .collect();
    if version["deprecated"] == json!(true) {
        let better = array(&spec["versions"])
            .iter()
            .filter(|version| version["served"] == json!(true) && version["deprecated"] != json!(true))
            .map(|version| text(version, "name"))
            .max_by_key(|name| priority(name))
            .filter(|name| priority(name) > priority(&resource.version));
        let instead = better.map(|name| format!("; use {}/{name} {kind}", resource.group)).unwrap_or_default();
        let default = format!("{} {kind} is deprecated{instead}", resource.api_version());
        resource.deprecated = Some(version["deprecationWarning"].as_str().map_or(default, ToOwned::to_owned));
    }
    // Definitions are validated. If an invalid one is stored anyway, it must not crash the server.
    let schema = Schema::from_crd(&version["schema"]["openAPIV3Schema"]).unwrap_or_else(|_| Schema::preserve_all());
    resource.with_schema(Arc::new(schema))
}

fn column(column: &Value) -> Column {
    Column {
        name: text(column, "name").to_owned(),
        kind: text(column, "type").to_owned(),
        format: text(column, "format").to_owned(),
        description: text(column, "description").to_owned(),
        priority: column["priority"].as_i64().unwrap_or(0),
        path: text(column, "jsonPath").to_owned(),
    }
}

/// Returns all violations of a definition.
pub(crate) fn validate(crd: &Value, old: Option<&Value>, registry: &Registry) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut refuse = |reason: Reason, field: &str, message: String| {
        causes.push(Cause { reason, field: field.to_owned(), message });
    };
    let spec = &crd["spec"];
    let (group, names) = (text(spec, "group"), &spec["names"]);
    let plural = text(names, "plural");
    if name(crd) != format!("{plural}.{group}") {
        let message = format!("Invalid value: \"{}\": must be spec.names.plural+\".\"+spec.group", name(crd));
        refuse(Reason::Invalid, "metadata.name", message);
    }
    if group.is_empty() {
        refuse(Reason::Required, "spec.group", "Required value".to_owned());
    } else if !is_subdomain(group) || !group.contains('.') {
        let message = format!("Invalid value: \"{group}\": should be a domain with at least one dot");
        refuse(Reason::Invalid, "spec.group", message);
    } else if registry.is_builtin(group) {
        let message = format!("Invalid value: \"{group}\": is a group of built-in kinds");
        refuse(Reason::Invalid, "spec.group", message);
    }
    let protected = [".k8s.io", ".kubernetes.io"].iter().any(|suffix| group.ends_with(suffix));
    if protected && crd["metadata"]["annotations"]["api-approved.kubernetes.io"].is_null() {
        let message = "Required value: protected groups must have approval annotation \"api-approved.kubernetes.io\", see \
                       https://github.com/kubernetes/enhancements/pull/1111";
        refuse(Reason::Required, "metadata.annotations[api-approved.kubernetes.io]", message.to_owned());
    }
    let scope = text(spec, "scope");
    if !["Cluster", "Namespaced"].contains(&scope) {
        let message = format!("Unsupported value: \"{scope}\": supported values: \"Cluster\", \"Namespaced\"");
        refuse(Reason::NotSupported, "spec.scope", message);
    }
    for field in ["plural", "singular", "kind", "listKind"] {
        let value = text(names, field);
        let at = format!("spec.names.{field}");
        if value.is_empty() {
            refuse(Reason::Required, &at, "Required value".to_owned());
        } else if !is_label(&value.to_lowercase()) {
            refuse(Reason::Invalid, &at, format!("Invalid value: \"{value}\": must be a DNS-1035 label"));
        }
    }
    if let Some(old) = old.filter(|old| condition(&old["status"], "Established") && !is_deleting(old)) {
        for (at, before, after) in [
            ("spec.scope", &old["spec"]["scope"], &spec["scope"]),
            ("spec.group", &old["spec"]["group"], &spec["group"]),
            ("spec.names.kind", &old["spec"]["names"]["kind"], &names["kind"]),
            ("spec.names.plural", &old["spec"]["names"]["plural"], &names["plural"]),
        ] {
            if before != after {
                refuse(Reason::Invalid, at, format!("Invalid value: {after}: field is immutable"));
            }
        }
    }
    for (index, stored) in array(&crd["status"]["storedVersions"]).iter().enumerate() {
        if !array(&spec["versions"]).iter().any(|version| version["name"] == *stored) {
            let message = format!("Invalid value: {stored}: must appear in spec.versions");
            refuse(Reason::Invalid, &format!("status.storedVersions[{index}]"), message);
        }
    }
    versions(array(&spec["versions"]), &mut causes);
    conversion(spec, old, &mut causes);
    causes
}

fn conversion(spec: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
    // The names of Kubernetes' internal type, which its messages have.
    const CLIENT: &str = "spec.conversion.webhookClientConfig";
    const VERSIONS: &str = "spec.conversion.conversionReviewVersions";
    let conversion = &spec["conversion"];
    let (client, reviews) =
        (&conversion["webhook"]["clientConfig"], &conversion["webhook"]["conversionReviewVersions"]);
    let unused = "should not be set when strategy is not set to Webhook";
    match text(conversion, "strategy") {
        "Webhook" => {}
        strategy => {
            if strategy != "None" {
                let supported = ["None", "Webhook"];
                causes.push(Cause::not_supported("spec.conversion.strategy", &strategy.into(), &supported));
            }
            if !client.is_null() {
                causes.push(Cause::forbidden(CLIENT, unused));
            }
            if !array(reviews).is_empty() {
                causes.push(Cause::forbidden(VERSIONS, unused));
            }
            return;
        }
    }
    if client.is_null() {
        causes.push(Cause::required(CLIENT, "required when strategy is set to Webhook"));
    } else {
        causes.extend(webhook::validate(client, CLIENT));
        // A definition often gets its CA bundle later.
        let before = old.map(|old| &old["spec"]["conversion"]["webhook"]["clientConfig"]);
        let known = before.is_some_and(|before| webhook::validate_ca(before, CLIENT).is_some());
        causes.extend(webhook::validate_ca(client, CLIENT).filter(|_| !known));
    }
    if array(reviews).is_empty() {
        causes.push(Cause::required(VERSIONS, ""));
    } else if !array(reviews).iter().any(|version| version == "v1") {
        // Unlike kube-apiserver, this server does not speak v1beta1.
        causes.push(Cause::invalid(VERSIONS, reviews, "must include at least one of v1"));
    }
}

fn versions(versions: &[Value], causes: &mut Vec<Cause>) {
    let mut refuse = |reason: Reason, field: String, message: String| causes.push(Cause { reason, field, message });
    if versions.iter().filter(|version| version["storage"] == json!(true)).count() != 1 {
        let names = Value::from(versions.iter().map(|version| version["name"].clone()).collect::<Vec<_>>());
        let message = format!("Invalid value: {names}: must have exactly one version marked as storage version");
        refuse(Reason::Invalid, "spec.versions".to_owned(), message);
    }
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        let name = text(version, "name");
        if !is_label(name) {
            refuse(
                Reason::Invalid,
                format!("{at}.name"),
                format!("Invalid value: \"{name}\": must be a DNS-1035 label"),
            );
        }
        if versions[..index].iter().any(|other| other["name"] == version["name"]) {
            refuse(Reason::Duplicate, format!("{at}.name"), format!("Duplicate value: \"{name}\""));
        }
        let schema = &version["schema"]["openAPIV3Schema"];
        if schema.is_null() {
            let message = "Required value: schemas are required".to_owned();
            refuse(Reason::Required, format!("{at}.schema.openAPIV3Schema"), message);
            continue;
        }
        for cause in Schema::from_crd(schema).err().into_iter().flatten() {
            let field = match cause.field.as_str() {
                "" => format!("{at}.schema.openAPIV3Schema"),
                below => format!("{at}.schema.openAPIV3Schema.{below}"),
            };
            refuse(cause.reason, field, cause.message);
        }
        for (column, value) in array(&version["additionalPrinterColumns"]).iter().enumerate() {
            for field in ["name", "type", "jsonPath"] {
                if text(value, field).is_empty() {
                    let at = format!("{at}.additionalPrinterColumns[{column}].{field}");
                    refuse(Reason::Required, at, "Required value".to_owned());
                }
            }
        }
        let scale = &version["subresources"]["scale"];
        if scale.is_object() {
            for (field, prefix) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
                let path = text(scale, field);
                if !path.starts_with(prefix) {
                    let message = format!("Invalid value: \"{path}\": should be a json path under {prefix}");
                    refuse(Reason::Invalid, format!("{at}.subresources.scale.{field}"), message);
                }
            }
        }
    }
}
