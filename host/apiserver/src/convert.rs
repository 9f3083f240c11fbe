//! Converts objects between versions.
//!
//! Versions of a custom resource differ only in `apiVersion` (conversion strategy `None`). Events exist in two groups
//! with different field names, and are stored in the core group's form.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::{resources::Resource, server::Server, status::Result};

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

/// Converts a stored object to the version of `resource`.
pub(crate) fn to_requested<'a>(resource: &Resource, object: &'a Value) -> Cow<'a, Value> {
    let wanted = resource.api_version();
    if object["apiVersion"].as_str() == Some(&wanted) {
        return Cow::Borrowed(object);
    }
    let mut object = object.clone();
    object["apiVersion"] = wanted.into();
    if resource.group == "events.k8s.io" {
        rename(&mut object, |(core, events)| (core, events));
    }
    Cow::Owned(object)
}

/// Converts an object in the version of `resource` to its stored version.
pub(crate) fn to_stored(resource: &Resource, mut object: Value) -> Value {
    if object["apiVersion"].as_str() == Some(&resource.stored_as) {
        return object;
    }
    object["apiVersion"] = resource.stored_as.as_str().into();
    if resource.group == "events.k8s.io" {
        rename(&mut object, |(core, events)| (events, core));
    }
    object
}

/// Converts an object from one version to another.
pub(crate) async fn between(_server: &Server, from: &Resource, to: &Resource, object: Value) -> Result<Value> {
    let stored = to_stored(from, object);
    Ok(to_requested(to, &stored).into_owned())
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
