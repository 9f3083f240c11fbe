//! Negotiates the form of an answer by the Accept header: whole objects, only metadata, or a Table.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, header};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use crate::{
    object::{Object, to_json},
    request::{Params, text_header},
    resources::Resource,
    status::{Result, Status},
    table::{self, Include},
};

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    /// `PartialObjectMetadata`
    Metadata,
    Table(Include),
}

/// The `metadata` of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListMeta {
    pub(crate) revision: u64,
    pub(crate) continue_token: Option<String>,
    pub(crate) remaining: Option<usize>,
}

impl Form {
    /// Returns the first supported form in the Accept header.
    pub(crate) fn negotiate(headers: &HeaderMap, params: &Params) -> Result<Self> {
        let accept = text_header(headers, header::ACCEPT);
        if accept.trim().is_empty() {
            return Ok(Form::Whole);
        }
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            if !matches!(media, "application/json" | "*/*" | "application/*") {
                continue;
            }
            let parameter = |key: &str| {
                let mut rest = range.split(';').skip(1).filter_map(|part| part.trim().split_once('='));
                rest.find(|(found, _)| *found == key).map_or("", |(_, value)| value)
            };
            match (parameter("as"), parameter("g"), parameter("v")) {
                ("", ..) => return Ok(Form::Whole),
                ("Table", "meta.k8s.io", "v1" | "v1beta1") => return Ok(Form::Table(Include::parse(params)?)),
                ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1" | "v1beta1") => {
                    return Ok(Form::Metadata);
                }
                _ => {}
            }
        }
        Err(Status::not_acceptable())
    }

    /// Presents a stored object that is in the version of the resource already, if its text is there.
    pub(crate) fn as_stored(self, resource: &Resource, object: &Object) -> Option<Bytes> {
        let same = self == Form::Whole && object.value["apiVersion"] == resource.api_version();
        same.then(|| object.json().clone())
    }

    /// Presents an object in the version of the resource.
    pub(crate) fn object(self, resource: &Resource, object: &Value) -> Bytes {
        match self {
            Form::Whole => to_json(object),
            Form::Metadata => to_json(&metadata(object)),
            Form::Table(include) => {
                let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                to_json(&table::table(resource, &[object], include, &meta, true))
            }
        }
    }

    /// Presents the object of a watch event. Only the first Table has columns.
    pub(crate) fn watched(self, resource: &Resource, object: &Value, first: bool) -> Bytes {
        match self {
            Form::Table(include) => {
                let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                to_json(&table::table(resource, &[object], include, &meta, first))
            }
            other => other.object(resource, object),
        }
    }

    /// Presents a list of objects in the version of the resource.
    pub(crate) fn list(self, resource: &Resource, objects: &[Cow<'_, Value>], meta: &ListMeta) -> Bytes {
        let mut list_meta = json!({"resourceVersion": meta.revision.to_string()});
        if let Some(token) = &meta.continue_token {
            list_meta["continue"] = token.as_str().into();
        } else if resource.custom && self == Form::Whole {
            list_meta["continue"] = "".into();
        }
        if let Some(remaining) = meta.remaining {
            list_meta["remainingItemCount"] = remaining.into();
        }
        match self {
            Form::Table(include) => {
                let objects: Vec<&Value> = objects.iter().map(AsRef::as_ref).collect();
                to_json(&table::table(resource, &objects, include, &list_meta, true))
            }
            Form::Metadata => to_json(&json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": list_meta,
                "items": objects.iter().map(|object| metadata(object)).collect::<Vec<_>>(),
            })),
            Form::Whole => {
                let (kind, version) = (json!(resource.list_kind), json!(resource.api_version()));
                let mut text =
                    format!("{{\"kind\":{kind},\"apiVersion\":{version},\"metadata\":{list_meta},\"items\":[")
                        .into_bytes();
                for (index, object) in objects.iter().enumerate() {
                    if index > 0 {
                        text.push(b',');
                    }
                    // Items of custom lists have apiVersion and kind, and those of built-in lists do not.
                    let item = Item { object, typed: resource.custom };
                    serde_json::to_writer(&mut text, &item).expect("a value has string keys and finite numbers");
                }
                text.extend_from_slice(b"]}");
                text.into()
            }
        }
    }
}

fn metadata(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

/// An item of a list.
struct Item<'a> {
    object: &'a Value,
    typed: bool,
}

impl Serialize for Item<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (field, value) in self.object.as_object().into_iter().flatten() {
            if self.typed || !["apiVersion", "kind"].contains(&field.as_str()) {
                map.serialize_entry(field, value)?;
            }
        }
        map.end()
    }
}
