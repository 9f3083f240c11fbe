//! The rules of single built-in kinds beyond their schema: defaults, immutable fields and deletion.
//!
//! Kinds without a rule here are plain documents.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Map, Value, json};

use crate::{
    admission, crd,
    object::{array, name, set_at, set_meta},
    resources::{GroupResource, Resource},
    rest::Part,
    schema::{Cause, Reason},
    server::Server,
    status::{Result, Status},
};

/// Namespaces that exist from the start. All but the last cannot be deleted.
pub(crate) const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// A label of every namespace with its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The default grace period of a scheduled pod, in seconds.
const POD_GRACE: i64 = 30;

/// Returns group and plural of a built-in kind, and empty texts for custom resources.
fn id(resource: &Resource) -> (&str, &str) {
    if resource.custom { ("", "") } else { (resource.group.as_str(), resource.plural.as_str()) }
}

/// Fills in the server's fields of a new object.
pub(crate) fn prepare_create(server: &Server, resource: &Resource, object: &mut Value) {
    match id(resource) {
        ("", "namespaces") => {
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
            let name = name(object).to_owned();
            set_at(object, &["metadata", "labels", NAME_LABEL], name.into());
        }
        ("", "pods") => object["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"}),
        ("", "persistentvolumeclaims" | "persistentvolumes") => object["status"] = json!({"phase": "Pending"}),
        ("", "services") => object["status"] = json!({"loadBalancer": {}}),
        ("apps" | "batch", _) if resource.status => object["status"] = json!({}),
        ("", "events") => {
            for field in ["reportingComponent", "reportingInstance"] {
                absent(object, field, || "".into());
            }
            absent(object, "source", || json!({}));
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            crd::default(object);
            crd::accept(object, None, &server.registry());
        }
        _ => {}
    }
    prepare(resource, object);
}

/// Fills in the server's fields of an updated object, and restores fields that it may not change.
pub(crate) fn prepare_update(server: &Server, resource: &Resource, part: Part, old: &Value, object: &mut Value) {
    match id(resource) {
        ("", "namespaces") if part == Part::Object => {
            let name = name(object).to_owned();
            set_at(object, &["metadata", "labels", NAME_LABEL], name.into());
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") if part == Part::Object => {
            crd::default(object);
            crd::accept(object, Some(old), &server.registry());
        }
        _ => {}
    }
    prepare(resource, object);
}

/// Fills in defaults of new and updated objects.
fn prepare(resource: &Resource, object: &mut Value) {
    match id(resource) {
        ("admissionregistration.k8s.io", _) => admission::default(object),
        ("", "secrets") => {
            absent(object, "type", || "Opaque".into());
            if let Some(Value::Object(texts)) = object.as_object_mut().and_then(|secret| secret.remove("stringData")) {
                for (key, text) in texts {
                    let text = BASE64.encode(text.as_str().unwrap_or_default());
                    set_at(object, &["data", &key], text.into());
                }
            }
        }
        ("apps", "deployments" | "replicasets" | "statefulsets") | ("", "replicationcontrollers") => {
            absent(&mut object["spec"], "replicas", || 1.into());
            pull_policies(object.pointer_mut("/spec/template/spec"));
        }
        ("apps", "daemonsets") | ("batch", "jobs") => pull_policies(object.pointer_mut("/spec/template/spec")),
        ("", "configmaps") => drop_empty(object, &["data", "binaryData"]),
        ("", "pods") => {
            absent(&mut object["spec"], "enableServiceLinks", || true.into());
            pull_policies(object.pointer_mut("/spec"));
        }
        ("", "services") => {
            absent(&mut object["spec"], "type", || "ClusterIP".into());
            absent(&mut object["spec"], "sessionAffinity", || "None".into());
            for port in object.pointer_mut("/spec/ports").and_then(Value::as_array_mut).into_iter().flatten() {
                absent(port, "protocol", || "TCP".into());
                if let Some(number) = port.get("port").cloned() {
                    absent(port, "targetPort", || number);
                }
            }
        }
        _ => {}
    }
}

/// Drops empty maps, like Go's `omitempty`.
fn drop_empty(object: &mut Value, fields: &[&str]) {
    let Some(members) = object.as_object_mut() else { return };
    for field in fields {
        if members.get(*field).and_then(Value::as_object).is_some_and(Map::is_empty) {
            members.remove(*field);
        }
    }
}

/// Sets the pull policy of images. Images whose tag may change are always pulled.
fn pull_policies(pod: Option<&mut Value>) {
    let Some(pod) = pod else { return };
    for field in ["initContainers", "containers"] {
        for container in pod.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            let image = container["image"].as_str().unwrap_or_default();
            let tag = image.rsplit('/').next().unwrap_or_default().split_once([':', '@']).map(|(_, tag)| tag);
            let policy = if tag.is_none_or(|tag| tag == "latest") { "Always" } else { "IfNotPresent" };
            absent(container, "imagePullPolicy", || policy.into());
        }
    }
}

/// Sets a field if it has no value.
fn absent(object: &mut Value, field: &str, value: impl FnOnce() -> Value) {
    if object.is_null() {
        *object = Value::Object(Map::new());
    }
    if let Some(members) = object.as_object_mut()
        && members.get(field).is_none_or(Value::is_null)
    {
        members.insert(field.to_owned(), value());
    }
}

/// Returns all violations of a kind's own rules.
pub(crate) fn validate(server: &Server, resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut refuse = |reason: Reason, field: &str, message: &str| {
        causes.push(Cause { reason, field: field.to_owned(), message: message.to_owned() });
    };
    match id(resource) {
        ("", plural @ ("configmaps" | "secrets")) => {
            data_keys(object, &mut refuse);
            if let Some(old) = old {
                if old["immutable"].as_bool() == Some(true) {
                    let message = "Forbidden: field is immutable when `immutable` is set";
                    for field in ["data", "binaryData"] {
                        if old[field] != object[field] {
                            refuse(Reason::Forbidden, field, message);
                        }
                    }
                    if object["immutable"].as_bool() != Some(true) {
                        refuse(Reason::Forbidden, "immutable", message);
                    }
                }
                if plural == "secrets" && old["type"] != object["type"] {
                    let message = format!("Invalid value: {}: field is immutable", object["type"]);
                    refuse(Reason::Invalid, "type", &message);
                }
            }
        }
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets") => {
            workload(object, old, &mut refuse);
        }
        ("coordination.k8s.io", "leases") => {
            for (field, least) in [("leaseDurationSeconds", 1), ("leaseTransitions", 0)] {
                let value = &object["spec"][field];
                if value.as_i64().is_some_and(|number| number < least) {
                    let bound = if least == 1 { "greater than 0" } else { "greater than or equal to 0" };
                    refuse(
                        Reason::Invalid,
                        &format!("spec.{field}"),
                        &format!("Invalid value: {value}: must be {bound}"),
                    );
                }
            }
        }
        ("admissionregistration.k8s.io", _) => return admission::validate_configuration(object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            return crd::validate(object, old, &server.registry());
        }
        _ => {}
    }
    causes
}

fn data_keys(object: &Value, refuse: &mut impl FnMut(Reason, &str, &str)) {
    for field in ["data", "binaryData"] {
        for key in object[field].as_object().into_iter().flatten().map(|(key, _)| key) {
            let valid = !key.is_empty()
                && key.len() <= 253
                && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
                && key != "."
                && !key.starts_with("..");
            if !valid {
                let message = format!(
                    "Invalid value: \"{key}\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' \
                     (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                );
                refuse(Reason::Invalid, &format!("{field}[{key}]"), &message);
            }
        }
    }
}

/// Checks that a workload's selector exists, matches its own pods and does not change.
fn workload(object: &Value, old: Option<&Value>, refuse: &mut impl FnMut(Reason, &str, &str)) {
    let spec = &object["spec"];
    if spec["selector"].is_null() {
        refuse(Reason::Required, "spec.selector", "Required value");
    }
    let labels = &spec["template"]["metadata"]["labels"];
    let missed = spec["selector"]["matchLabels"].as_object().into_iter().flatten();
    if missed.into_iter().any(|(key, value)| labels.get(key) != Some(value)) {
        let message = format!("Invalid value: {labels}: `selector` does not match template `labels`");
        refuse(Reason::Invalid, "spec.template.metadata.labels", &message);
    }
    if spec["replicas"].as_i64().is_some_and(|replicas| replicas < 0) {
        let message = format!("Invalid value: {}: must be greater than or equal to 0", spec["replicas"]);
        refuse(Reason::Invalid, "spec.replicas", &message);
    }
    if let Some(old) = old
        && old["spec"]["selector"] != spec["selector"]
    {
        let message = format!("Invalid value: {}: field is immutable", spec["selector"]);
        refuse(Reason::Invalid, "spec.selector", &message);
    }
}

/// `true` if an object without finalizers may be deleted at once.
pub(crate) fn may_vanish(resource: &Resource, object: &Value) -> bool {
    match id(resource) {
        ("", "namespaces") => array(&object["spec"]["finalizers"]).is_empty(),
        ("", "pods") => object["metadata"]["deletionGracePeriodSeconds"].as_i64().is_none_or(|left| left <= 0),
        _ => true,
    }
}

/// Returns the grace period of an object in seconds.
pub(crate) fn grace(resource: &Resource, object: &Value, asked: Option<i64>) -> i64 {
    let scheduled = !object["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    let finished = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if id(resource) != ("", "pods") || !scheduled || finished {
        return 0;
    }
    let own = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(POD_GRACE);
    asked.unwrap_or(own).max(0)
}

/// Sets the fields by which a kind shows that an object is being deleted.
pub(crate) fn mark_deleting(resource: &Resource, object: &mut Value) {
    match id(resource) {
        ("", "namespaces") => set_at(object, &["status", "phase"], "Terminating".into()),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::mark_terminating(object),
        _ => {}
    }
}

/// Returns the finalizer that an object gets when it is deleted, if any.
pub(crate) fn own_finalizer(resource: &Resource) -> Option<&'static str> {
    (resource.storage == GroupResource::crds()).then_some(crd::FINALIZER)
}

/// `true` if a controller finishes deletions of the kind, without a grace period.
pub(crate) fn ends_by_controller(resource: &Resource) -> bool {
    [GroupResource::namespaces(), GroupResource::crds()].contains(&resource.storage)
}

pub(crate) fn is_pod(resource: &Resource) -> bool {
    id(resource) == ("", "pods")
}

/// Checks whether the object may be deleted.
pub(crate) fn check_delete(resource: &Resource, object: &Value) -> Result<()> {
    let name = name(object);
    if id(resource) == ("", "namespaces") && NAMESPACES[..3].contains(&name) {
        return Err(Status::forbidden(&GroupResource::namespaces(), name, "this namespace may not be deleted"));
    }
    Ok(())
}

/// `true` if the answer to a deletion is the object instead of a `Status`.
pub(crate) fn returns_deleted(resource: &Resource) -> bool {
    let kinds = [
        "persistentvolumeclaims",
        "persistentvolumes",
        "pods",
        "podtemplates",
        "resourcequotas",
        "serviceaccounts",
        "services",
    ];
    let (group, plural) = id(resource);
    group.is_empty() && kinds.contains(&plural)
}

/// Returns the objects of every new namespace: a service account, and the CA bundle for pods. The bundle is empty,
/// because this server uses plain HTTP.
pub(crate) fn namespace_content(namespace: &str) -> [(&'static str, Value); 2] {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace},
    });
    let description =
        "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints.";
    let mut bundle = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": ""},
        "metadata": {"name": "kube-root-ca.crt", "namespace": namespace},
    });
    set_meta(&mut bundle, "annotations", json!({"kubernetes.io/description": description}));
    [("serviceaccounts", account), ("configmaps", bundle)]
}
