//! An object at one revision, and access to its metadata.
//!
//! Objects are `serde_json::Value`s behind an `Arc`. Writes replace them, and readers share them. The JSON text is
//! created once, at its first use, for all lists and watches.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::{Map, Value};

/// A committed object.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) value: Value,
    json: OnceLock<Bytes>,
}

impl Object {
    /// Creates the object `value` at `revision`, and sets its `metadata.resourceVersion`.
    pub(crate) fn committed(mut value: Value, revision: u64) -> Arc<Self> {
        set_meta(&mut value, "resourceVersion", revision.to_string().into());
        Arc::new(Object { value, json: OnceLock::new() })
    }

    pub(crate) fn json(&self) -> &Bytes {
        self.json.get_or_init(|| to_json(&self.value))
    }

    pub(crate) fn key(&self) -> Key {
        Key::of(&self.value)
    }
}

/// Returns the JSON text of a value.
pub(crate) fn to_json(value: &Value) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("a value has string keys and finite numbers"))
}

/// Identifies an object of a resource. Cluster-scoped objects have an empty namespace. The order is that of lists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Key { namespace: namespace.into(), name: name.into() }
    }

    pub(crate) fn of(object: &Value) -> Self {
        Key::new(namespace(object), name(object))
    }
}

/// Returns `metadata.<field>`. Empty if it is absent or not a string.
pub(crate) fn meta_str<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

pub(crate) fn name(object: &Value) -> &str {
    meta_str(object, "name")
}

pub(crate) fn namespace(object: &Value) -> &str {
    meta_str(object, "namespace")
}

pub(crate) fn uid(object: &Value) -> &str {
    meta_str(object, "uid")
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    array(&object["metadata"]["finalizers"]).iter().filter_map(Value::as_str).collect()
}

pub(crate) fn set_finalizers(object: &mut Value, finalizers: &[&str]) {
    if finalizers.is_empty() {
        remove_meta(object, "finalizers");
    } else {
        set_meta(object, "finalizers", finalizers.into());
    }
}

/// Returns the elements of an array, and none for any other value.
pub(crate) fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns `metadata`, and creates it if it is missing. Returns `None` if the object or its metadata is not a JSON
/// object.
pub(crate) fn meta_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.as_object_mut()?.entry("metadata").or_insert_with(|| Value::Object(Map::new())).as_object_mut()
}

pub(crate) fn set_meta(object: &mut Value, field: &str, value: Value) {
    if let Some(meta) = meta_mut(object) {
        meta.insert(field.to_owned(), value);
    }
}

pub(crate) fn remove_meta(object: &mut Value, field: &str) {
    if let Some(meta) = meta_mut(object) {
        meta.remove(field);
    }
}

/// Copies a metadata field from `from`, or removes it if `from` has none.
pub(crate) fn copy_meta(object: &mut Value, from: &Value, field: &str) {
    match from["metadata"].get(field) {
        Some(value) => set_meta(object, field, value.clone()),
        None => remove_meta(object, field),
    }
}

/// Copies a top-level field from `from`, or removes it if `from` has none.
pub(crate) fn copy_field(object: &mut Value, from: &Value, field: &str) {
    let Some(fields) = object.as_object_mut() else { return };
    match from.get(field) {
        Some(value) => fields.insert(field.to_owned(), value.clone()),
        None => fields.remove(field),
    };
}

/// Sets the value at a path. Creates objects on the way, and replaces other values on the way by objects.
pub(crate) fn set_at(object: &mut Value, path: &[&str], value: Value) {
    let mut place = object;
    for step in path {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        place = &mut place[*step];
    }
    *place = value;
}

/// An owner of an object: an entry of `metadata.ownerReferences`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnerRef<'a> {
    pub(crate) api_version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
    pub(crate) blocks: bool,
}

pub(crate) fn owners(object: &Value) -> impl Iterator<Item = OwnerRef<'_>> {
    array(&object["metadata"]["ownerReferences"]).iter().map(|owner| OwnerRef {
        api_version: owner["apiVersion"].as_str().unwrap_or_default(),
        kind: owner["kind"].as_str().unwrap_or_default(),
        name: owner["name"].as_str().unwrap_or_default(),
        uid: owner["uid"].as_str().unwrap_or_default(),
        blocks: owner["blockOwnerDeletion"].as_bool().unwrap_or_default(),
    })
}

/// Returns a time as Kubernetes writes it: UTC, whole seconds.
pub(crate) fn timestamp(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the current time of this machine, as Kubernetes writes it.
pub(crate) fn now() -> String {
    timestamp(jiff::Timestamp::now())
}

/// Returns a new uid, a random UUID.
pub(crate) fn new_uid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Returns five random characters of the alphabet of [`suffix`].
pub(crate) fn name_suffix() -> String {
    let [a, b, c, d, e, ..] = *uuid::Uuid::new_v4().as_bytes();
    suffix([a, b, c, d, e])
}

/// Returns five characters from Kubernetes' alphabet, which has no vowels and so makes no words.
pub(crate) fn suffix(places: [u8; 5]) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    places.iter().map(|place| char::from(LETTERS[usize::from(*place) % LETTERS.len()])).collect()
}
