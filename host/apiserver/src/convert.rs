//! Converts objects between versions.
//!
//! With the conversion strategy `None`, versions of a custom resource differ only in `apiVersion`. With `Webhook`, the
//! definition's webhook converts them, and only labels and annotations of the metadata may change. Events exist in two
//! groups with different field names, and are stored in the core group's form.
//!
//! ```text
//!  stored object ─► `to_requested` ─► selectors, patch, answer          written object ─► `to_stored` ─► commit
//! ```

use std::{borrow::Cow, sync::Arc, time::Duration};

use serde_json::{Map, Value, json};

use crate::{
    names,
    object::{Object, array, copy_meta, meta_str, new_uid},
    resources::Resource,
    server::Server,
    status::{Result, Status},
    webhook::Endpoint,
};

/// Fields of an event, in the core group and in `events.k8s.io`.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

/// The time for a conversion, as in kube-apiserver.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The webhook that converts the objects of a definition.
#[derive(Debug)]
pub(crate) struct Conversion {
    pub(crate) endpoint: Endpoint,
}

/// Converts a stored object to the version of `resource`.
pub(crate) async fn to_requested<'a>(
    server: &Server,
    resource: &Resource,
    object: &'a Value,
) -> Result<Cow<'a, Value>> {
    let wanted = resource.api_version();
    if object["apiVersion"].as_str() == Some(&wanted) {
        return Ok(Cow::Borrowed(object));
    }
    if let Some(conversion) = &resource.conversion {
        let mut converted = conversion.convert(server, resource, &[object], &wanted).await?;
        return Ok(Cow::Owned(converted.swap_remove(0)));
    }
    let mut object = object.clone();
    object["apiVersion"] = wanted.into();
    if resource.group == "events.k8s.io" {
        rename(&mut object, |(core, events)| (core, events));
    }
    Ok(Cow::Owned(object))
}

/// Converts stored objects to the version of `resource`. A webhook converts all of them in one call.
pub(crate) async fn all_to_requested<'a>(
    server: &Server,
    resource: &Resource,
    objects: &'a [Arc<Object>],
) -> Result<Vec<Cow<'a, Value>>> {
    let mut all = Vec::with_capacity(objects.len());
    let Some(conversion) = &resource.conversion else {
        for object in objects {
            all.push(to_requested(server, resource, &object.value).await?);
        }
        return Ok(all);
    };
    let wanted = resource.api_version();
    let mut others = Vec::new();
    let mut given = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        if object.value["apiVersion"] != *wanted {
            others.push(index);
            given.push(&object.value);
        }
        all.push(Cow::Borrowed(&object.value));
    }
    if given.is_empty() {
        return Ok(all);
    }
    let converted = conversion.convert(server, resource, &given, &wanted).await?;
    for (index, object) in others.into_iter().zip(converted) {
        all[index] = Cow::Owned(object);
    }
    Ok(all)
}

/// Converts an object in the version of `resource` to its stored version.
pub(crate) async fn to_stored(server: &Server, resource: &Resource, mut object: Value) -> Result<Value> {
    if object["apiVersion"].as_str() == Some(&resource.stored_as) {
        return Ok(object);
    }
    if let Some(conversion) = &resource.conversion {
        let mut converted = conversion.convert(server, resource, &[&object], &resource.stored_as).await?;
        return Ok(converted.swap_remove(0));
    }
    object["apiVersion"] = resource.stored_as.as_str().into();
    if resource.group == "events.k8s.io" {
        rename(&mut object, |(core, events)| (events, core));
    }
    Ok(object)
}

/// Converts an object from one version to another.
pub(crate) async fn between(server: &Server, from: &Resource, to: &Resource, object: Value) -> Result<Value> {
    // A webhook converts directly.
    let object = if to.conversion.is_some() { object } else { to_stored(server, from, object).await? };
    Ok(to_requested(server, to, &object).await?.into_owned())
}

impl Conversion {
    /// Converts objects that are in other versions than `wanted`.
    async fn convert(
        &self,
        server: &Server,
        resource: &Resource,
        objects: &[&Value],
        wanted: &str,
    ) -> Result<Vec<Value>> {
        let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let first = objects.first().copied().unwrap_or(&Value::Null);
        let of = format!("conversion webhook for {}, Kind={}", text(first, "apiVersion"), text(first, "kind"));
        let failed = |why: &str| Status::unknown(format!("{of} failed: {why}"));
        let uid = new_uid();
        let review = json!({
            "kind": KIND, "apiVersion": API_VERSION,
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects},
        });
        let late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
        let answer =
            server.caller.post(server, &self.endpoint, &review, TIMEOUT, late).await.map_err(|why| failed(&why))?;
        let converted = verify(answer, &uid).map_err(|why| failed(&why))?;
        if converted.len() != objects.len() {
            let (found, expected) = (converted.len(), objects.len());
            return Err(Status::unknown(format!("{of} returned {found} objects, expected {expected}")));
        }
        let single = objects.len() == 1;
        let mut results = Vec::with_capacity(converted.len());
        for (index, (before, mut after)) in objects.iter().zip(converted).enumerate() {
            let returned = |what: &str, why: &str| match single {
                true => Status::unknown(format!("{of} returned invalid {what}: {why}")),
                false if what == "metadata" => {
                    Status::unknown(format!("{of} returned invalid metadata in object at index {index}: {why}"))
                }
                false => Status::unknown(format!("{of} returned invalid converted object at index {index}: {why}")),
            };
            for (field, what, expected) in
                [("apiVersion", "groupVersion", wanted), ("kind", "kind", &text(before, "kind"))]
            {
                let found = text(&after, field);
                if found != expected {
                    let why = format!("invalid {what} (expected {expected}, received {found})");
                    return Err(returned("object at index 0", &why));
                }
            }
            for (field, what) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
                let (before, after) = (meta_str(before, field), meta_str(&after, field));
                if before != after {
                    return Err(returned("object", &format!("must have the same {what}: {before} != {after}")));
                }
            }
            restore_metadata(resource, before, &mut after).map_err(|why| returned("metadata", &why))?;
            if wanted == resource.api_version() {
                resource.schema().prune(&mut after);
            }
            results.push(after);
        }
        Ok(results)
    }
}

/// Returns the converted objects of an answer.
fn verify(mut review: Value, uid: &str) -> std::result::Result<Vec<Value>, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, version) = (text(&review["kind"]), text(&review["apiVersion"]));
    if kind != KIND || version != API_VERSION {
        let found = if version.contains('/') { version } else { format!("/{version}") };
        return Err(format!("expected webhook response of {API_VERSION}, Kind={KIND}, got {found}, Kind={kind}"));
    }
    let response = &mut review["response"];
    if !response.is_object() {
        return Err("no response provided".to_owned());
    }
    let found = text(&response["uid"]);
    if found != uid {
        return Err(format!("expected response.uid=\"{uid}\", got \"{found}\""));
    }
    let (status, message) = (text(&response["result"]["status"]), text(&response["result"]["message"]));
    if status != "Success" {
        let unsaid = || format!("response.result.status was '{status}', not 'Success'");
        return Err(if message.is_empty() { unsaid() } else { message });
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// Gives a converted object its metadata back. Only labels and annotations may change.
fn restore_metadata(resource: &Resource, before: &Value, after: &mut Value) -> std::result::Result<(), String> {
    let Some(found) = after.get("metadata") else { return Err("missing metadata in converted object".to_owned()) };
    if !found.is_object() {
        return Err("invalid metadata in converted object".to_owned());
    }
    names::check_types(after, true)?;
    let mut restored = json!({"metadata": before["metadata"]});
    for field in ["labels", "annotations"] {
        match &after["metadata"][field] {
            Value::Null => crate::object::remove_meta(&mut restored, field),
            _ => copy_meta(&mut restored, after, field),
        }
    }
    if restored["metadata"] != before["metadata"] {
        let of_maps = ["metadata.labels", "metadata.annotations"];
        let wrong =
            names::validate(resource, &restored).into_iter().find(|cause| of_maps.contains(&cause.field.as_str()));
        if let Some(cause) = wrong {
            return Err(cause.to_string());
        }
    }
    after["metadata"] = restored["metadata"].take();
    Ok(())
}

/// Reads the conversion of a definition. `None` for the strategy `None`.
pub(crate) fn conversion(crd: &Value) -> Option<Conversion> {
    let conversion = &crd["spec"]["conversion"];
    let webhook = (conversion["strategy"] == "Webhook").then_some(&conversion["webhook"])?;
    let speaks = array(&webhook["conversionReviewVersions"]).iter().any(|version| version == "v1");
    Endpoint::parse(&webhook["clientConfig"]).filter(|_| speaks).map(|endpoint| Conversion { endpoint })
}

fn rename(object: &mut Value, direction: fn((&'static str, &'static str)) -> (&'static str, &'static str)) {
    for pair in EVENT_FIELDS {
        let (from, to) = direction(pair);
        move_field(object, from, to);
    }
}

fn move_field(object: &mut Value, from: &str, to: &str) {
    let Some(members): Option<&mut Map<String, Value>> = object.as_object_mut() else { return };
    if let Some(value) = members.remove(from) {
        members.insert(to.to_owned(), value);
    }
}
