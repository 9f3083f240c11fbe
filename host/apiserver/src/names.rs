//! Validates metadata: names, labels, annotations, finalizers and owner references.

use serde_json::Value;

use crate::{
    graph::{FOREGROUND, ORPHAN},
    object::array,
    resources::{NameRule, Resource},
    schema::{Cause, Reason},
    selector::{is_label_value, is_qualified_name},
};

/// Upper bound for the bytes of all keys and values of annotations.
const ANNOTATIONS_BYTES: usize = 256 << 10;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
    must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
    and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

/// `true` for an RFC 1123 label: at most 63 of `a-z`, `0-9`, `-`, with alphanumeric ends.
pub(crate) fn is_label(name: &str) -> bool {
    let end = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = name.as_bytes();
    bytes.len() <= 63
        && end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

/// `true` for an RFC 1123 subdomain as Kubernetes checks it: labels joined by dots, at most 253 characters.
pub(crate) fn is_subdomain(name: &str) -> bool {
    let end = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let label = |part: &str| {
        let bytes = part.as_bytes();
        end(bytes.first())
            && end(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// Returns why a name is rejected, if it is.
fn name_errors(rule: NameRule, name: &str) -> Option<String> {
    let (valid, limit, text) = match rule {
        NameRule::Subdomain => (is_subdomain(name), 253, SUBDOMAIN),
        NameRule::Label => (is_label(name), 63, LABEL),
        NameRule::PathSegment => {
            return match name {
                "." | ".." => Some(format!("may not be '{name}'")),
                _ => ['/', '%'].into_iter().find(|c| name.contains(*c)).map(|c| format!("may not contain '{c}'")),
            };
        }
    };
    if valid {
        None
    } else if name.len() > limit {
        Some(format!("must be no more than {limit} bytes"))
    } else {
        Some(text.to_owned())
    }
}

/// Returns the name of a value's type in Go's JSON decoder.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Null | Value::Object(_) => "object",
    }
}

/// Checks the types in metadata. All other checks rely on them.
///
/// # Errors
/// A type is wrong. The text is that of Go's JSON decoder.
pub(crate) fn check_types(object: &Value, custom: bool) -> Result<(), String> {
    let meta = &object["metadata"];
    let wrong = |value: &Value, field: &str, wanted: &str| {
        let found = json_type(value);
        Err(format!("json: cannot unmarshal {found} into Go struct field ObjectMeta.{field} of type {wanted}"))
    };
    if !meta.is_object() && !meta.is_null() {
        return wrong(meta, "metadata", "v1.ObjectMeta");
    }
    for (field, value) in meta.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        let at = if custom { field.clone() } else { format!("metadata.{field}") };
        match field.as_str() {
            "labels" | "annotations" => {
                let Some(members) = value.as_object() else { return wrong(value, &at, "map[string]string") };
                if let Some(member) = members.values().find(|member| !member.is_string() && !member.is_null()) {
                    return wrong(member, &at, "string");
                }
            }
            "finalizers" => {
                let Some(elements) = value.as_array() else { return wrong(value, &at, "[]string") };
                if let Some(element) = elements.iter().find(|element| !element.is_string()) {
                    return wrong(element, &at, "string");
                }
            }
            "ownerReferences" | "managedFields" => {
                let Some(elements) = value.as_array() else { return wrong(value, &at, "[]v1.OwnerReference") };
                if let Some(element) = elements.iter().find(|element| !element.is_object()) {
                    return wrong(element, &at, "v1.OwnerReference");
                }
                for owner in elements {
                    for (field, value) in owner.as_object().into_iter().flatten() {
                        let flag = ["controller", "blockOwnerDeletion"].contains(&field.as_str());
                        let named =
                            ["apiVersion", "kind", "name", "uid", "manager", "operation"].contains(&field.as_str());
                        if flag && !value.is_boolean() && !value.is_null() {
                            return wrong(value, &format!("{at}.{field}"), "bool");
                        }
                        if named && !value.is_string() && !value.is_null() {
                            return wrong(value, &format!("{at}.{field}"), "string");
                        }
                    }
                }
            }
            "generation" | "deletionGracePeriodSeconds" if value.as_i64().is_none() => {
                return wrong(value, &at, "int64");
            }
            "creationTimestamp" | "deletionTimestamp" => match value.as_str() {
                Some(time) if time.parse::<jiff::Timestamp>().is_ok() => {}
                Some(time) => {
                    return Err(format!("parsing time \"{time}\" as \"2006-01-02T15:04:05Z07:00\": cannot parse"));
                }
                None => return wrong(value, &at, "string"),
            },
            "name" | "generateName" | "namespace" | "uid" | "resourceVersion" | "selfLink" if !value.is_string() => {
                return wrong(value, &at, "string");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns all violations of the rules that metadata of every kind must follow.
pub(crate) fn validate(of: &Resource, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let meta = &object["metadata"];
    let mut refuse = |reason: Reason, field: &str, message: String| {
        causes.push(Cause { reason, field: field.to_owned(), message });
    };
    match meta["name"].as_str() {
        None | Some("") => {
            refuse(Reason::Required, "metadata.name", "Required value: name or generateName is required".to_owned());
        }
        Some(name) => {
            if let Some(why) = name_errors(of.names, name) {
                refuse(Reason::Invalid, "metadata.name", format!("Invalid value: \"{name}\": {why}"));
            }
        }
    }
    if let Some(labels) = meta["labels"].as_object() {
        for (key, value) in labels {
            if !is_qualified_name(key) {
                refuse(Reason::Invalid, "metadata.labels", qualified_name(key));
            }
            let value = value.as_str().unwrap_or_default();
            if !is_label_value(value) {
                let why = if value.len() > 63 {
                    "must be no more than 63 bytes"
                } else {
                    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                     must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', \
                     regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                };
                refuse(Reason::Invalid, "metadata.labels", format!("Invalid value: \"{value}\": {why}"));
            }
        }
    }
    if let Some(annotations) = meta["annotations"].as_object() {
        for key in annotations.keys().filter(|key| !is_qualified_name(&key.to_lowercase())) {
            refuse(Reason::Invalid, "metadata.annotations", qualified_name(key));
        }
        let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
        if bytes > ANNOTATIONS_BYTES {
            let message = format!("Too long: may not be more than {ANNOTATIONS_BYTES} bytes");
            refuse(Reason::TooLong, "metadata.annotations", message);
        }
    }
    for (index, finalizer) in array(&meta["finalizers"]).iter().filter_map(Value::as_str).enumerate() {
        if !is_qualified_name(finalizer) {
            refuse(Reason::Invalid, "metadata.finalizers", qualified_name(finalizer));
        }
        if !of.custom && !is_known_finalizer(finalizer) {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            let message = format!("Invalid value: \"{finalizer}\": {why}");
            refuse(Reason::Invalid, &format!("metadata.finalizers[{index}]"), message);
        }
    }
    owner_references(array(&meta["ownerReferences"]), &mut refuse);
    causes
}

/// `true` if a finalizer's name is unambiguous.
pub(crate) fn is_known_finalizer(finalizer: &str) -> bool {
    finalizer.contains('/') || [FOREGROUND, ORPHAN, "kubernetes"].contains(&finalizer)
}

fn owner_references(owners: &[Value], refuse: &mut impl FnMut(Reason, &str, String)) {
    let mut controller: Option<&str> = None;
    for owner in owners {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                let what = if field == "apiVersion" { "version " } else { "" };
                refuse(
                    Reason::Invalid,
                    &format!("metadata.ownerReferences.{field}"),
                    format!("Invalid value: \"\": {what}must not be empty"),
                );
            }
        }
        if owner["controller"].as_bool() == Some(true) {
            let this = owner["name"].as_str().unwrap_or_default();
            if let Some(other) = controller {
                let message = format!(
                    "Invalid value: \"{this}\": Only one reference can have Controller set to true. Found \"true\" in \
                     references for {other} and {this}"
                );
                refuse(Reason::Invalid, "metadata.ownerReferences", message);
            }
            controller = Some(this);
        }
    }
}

fn qualified_name(key: &str) -> String {
    format!(
        "Invalid value: \"{key}\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and \
         end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
         '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
    )
}
