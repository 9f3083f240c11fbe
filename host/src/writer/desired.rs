//! From what a plugin returned as a child to what is sent: checked, in its place, and owned.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use pilothouse_core::key::{Key, TypeMeta};
use serde_json::{Map, Value, json};

use super::{Error, Owner, Writer, mark};
use crate::{
    informer::{InformerKey, View},
    wasm::Child,
};

/// Members of `metadata` that belong to the API server.
const SERVERS_OWN: [&str; 8] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
];

/// Kinds that are named to who returned a child of another one.
const TOLD_KINDS: usize = 10;

/// A child as it should be.
pub(super) struct Desired {
    pub(super) of: TypeMeta,
    pub(super) key: Key,
    /// The whole body of the apply.
    pub(super) value: Value,
    pub(super) adopt: bool,
    /// Of the text that the plugin returned.
    pub(super) bytes: usize,
    /// Of all that it comes from.
    pub(super) digest: u64,
}

/// Why a returned child is none: the plugin's mistake.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("child {at} is no JSON object: {why}")]
    Json { at: usize, why: String },
    #[error("child {at} has no {member}")]
    Without { at: usize, member: &'static str },
    #[error("child {at} is of kind {of}, which the controller does not own; it owns {owned}")]
    NotOwned { at: usize, of: TypeMeta, owned: String },
    #[error("child {of} {name} is meant for {asked}, but a child must be in its owner's namespace {namespace}")]
    OtherNamespace { of: TypeMeta, name: String, asked: String, namespace: String },
    #[error("child {of} {name} has no namespace, and its owner has none to lend")]
    NoNamespace { of: TypeMeta, name: String },
    #[error("child {of} {name} is cluster-scoped: an owner in a namespace cannot hold it")]
    ClusterScoped { of: TypeMeta, name: String },
    #[error("child {of} {key} is named twice")]
    Twice { of: TypeMeta, key: Key },
    #[error("child {of} {key} names another controlling owner")]
    OtherController { of: TypeMeta, key: Key },
    #[error("child {of} {key} would not be seen: what the controller owns there is watched where {watched}")]
    Unwatched { of: TypeMeta, key: Key, watched: String },
}

impl Writer {
    /// Checks the child at position `at`, and puts it in its place. Asks the server only for a kind it never met.
    pub(super) async fn desire(
        &self,
        owner: &Owner<'_>,
        view: &View,
        at: usize,
        child: &Child,
        digest: u64,
    ) -> Result<Desired, Error> {
        let value: Value =
            serde_json::from_str(&child.object).map_err(|error| ChildError::Json { at, why: error.to_string() })?;
        let Value::Object(mut object) = value else {
            return Err(ChildError::Json { at, why: "it is another JSON value".into() }.into());
        };
        let text = |object: &Map<String, Value>, member: &str| {
            object.get(member).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let api_version = text(&object, "apiVersion").ok_or(ChildError::Without { at, member: "apiVersion" })?;
        let kind = text(&object, "kind").ok_or(ChildError::Without { at, member: "kind" })?;
        let of = TypeMeta::new(&api_version, &kind);
        if !owner.owns.contains(&of) {
            let mut owned: Vec<String> = owner.owns.iter().take(TOLD_KINDS).map(ToString::to_string).collect();
            match owner.owns.len().saturating_sub(TOLD_KINDS) {
                _ if owned.is_empty() => owned.push("none".into()),
                0 => {}
                more => owned.push(format!("{more} more")),
            }
            let owned = owned.join(", ");
            return Err(ChildError::NotOwned { at, of, owned }.into());
        }
        let Some(Value::Object(metadata)) = object.get_mut("metadata") else {
            return Err(ChildError::Without { at, member: "metadata" }.into());
        };
        let name = text(metadata, "name").ok_or(ChildError::Without { at, member: "metadata.name" })?;
        for member in SERVERS_OWN {
            metadata.remove(member);
        }
        mark::strip(metadata);
        let asked = text(metadata, "namespace");
        let namespace = self.place(owner, &of, &name, asked).await?;
        match &namespace {
            Some(namespace) => metadata.insert("namespace".into(), namespace.as_str().into()),
            None => metadata.remove("namespace"),
        };
        let key = Key::new(namespace.as_deref(), &name);
        own(metadata, owner).map_err(|()| ChildError::OtherController { of: of.clone(), key: key.clone() })?;
        seen(view, &of, &key, metadata)?;
        // A child's status is for whoever runs the child; apply would ignore it, and the diff must not wait for it.
        object.remove("status");
        if api_version == "v1" && kind == "Secret" {
            encode_texts(&mut object);
        }
        Ok(Desired { of, key, value: object.into(), adopt: child.adopt, bytes: child.object.len(), digest })
    }

    /// The namespace that a child goes to.
    async fn place(
        &self,
        owner: &Owner<'_>,
        of: &TypeMeta,
        name: &str,
        asked: Option<String>,
    ) -> Result<Option<String>, Error> {
        let endpoint = self.cluster.endpoint(of).await.map_err(|source| Error::Request {
            verb: "find",
            of: of.clone(),
            key: Key::new(asked.as_deref(), name),
            source,
        })?;
        let (of, name) = (of.clone(), name.to_owned());
        match (endpoint.namespaced, owner.object.key().namespace.as_deref(), asked) {
            (false, None, _) => Ok(None),
            (false, Some(_), _) => Err(ChildError::ClusterScoped { of, name }.into()),
            (true, None, None) => Err(ChildError::NoNamespace { of, name }.into()),
            (true, None, asked) => Ok(asked),
            (true, Some(namespace), Some(asked)) if asked != namespace => {
                Err(ChildError::OtherNamespace { of, name, asked, namespace: namespace.into() }.into())
            }
            (true, Some(namespace), _) => Ok(Some(namespace.into())),
        }
    }
}

/// Replaces a Secret's `stringData` by the `data` that the server makes of it.
///
/// The server stores no `stringData`, and its field set still names it: nobody's change of such a key could be seen there. A key that is in both
/// has the text of `stringData`, as on the server. What is not a map of texts is left to the server to refuse.
fn encode_texts(secret: &mut Map<String, Value>) {
    let is_map = |value: &Value| value.is_object() || value.is_null();
    let texts = match secret.get("stringData") {
        None => return,
        Some(Value::Null) => Map::new(),
        Some(Value::Object(texts)) if texts.values().all(Value::is_string) => texts.clone(),
        Some(_) => return,
    };
    if !secret.get("data").is_none_or(is_map) {
        return;
    }
    secret.remove("stringData");
    if texts.is_empty() {
        return;
    }
    let data = secret.entry("data").or_insert(Value::Null);
    if data.is_null() {
        *data = Map::new().into();
    }
    for (key, text) in texts {
        data[key.as_str()] = BASE64.encode(text.as_str().unwrap_or_default()).into();
    }
}

/// Adds the controlling owner reference.
fn own(metadata: &mut Map<String, Value>, owner: &Owner<'_>) -> Result<(), ()> {
    let (of, uid) = (owner.object.type_meta(), owner.object.uid().to_string());
    let mut references = match metadata.remove("ownerReferences") {
        Some(Value::Array(references)) => references,
        None | Some(Value::Null) => Vec::new(),
        Some(_) => return Err(()),
    };
    references.retain(|reference| reference.get("uid").and_then(Value::as_str) != Some(&uid));
    if references.iter().any(|reference| reference.get("controller") == Some(&Value::Bool(true))) {
        return Err(());
    }
    references.push(json!({
        "apiVersion": *of.api_version,
        "kind": *of.kind,
        "name": *owner.object.key().name,
        "uid": uid,
        "controller": true,
        "blockOwnerDeletion": true,
    }));
    metadata.insert("ownerReferences".into(), references.into());
    Ok(())
}

/// A child that no lease would show again, whole, would be applied for ever.
fn seen(view: &View, of: &TypeMeta, key: &Key, metadata: &Map<String, Value>) -> Result<(), ChildError> {
    let labels = || {
        let labels = metadata.get("labels").and_then(Value::as_object);
        labels.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    };
    let watched: Vec<String> = view
        .of(of)
        .map(|lease| {
            let InformerKey { labels: selector, keep, .. } = lease.key();
            let matches = lease.covers(key.namespace.as_deref()) && selector.matches(labels()) && keep.is_whole();
            if matches { String::new() } else { lease.key().to_string() }
        })
        .collect();
    if watched.iter().any(String::is_empty) {
        return Ok(());
    }
    Err(ChildError::Unwatched { of: of.clone(), key: key.clone(), watched: watched.join(" or ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_secret_become_data() {
        for (secret, expected) in [
            (json!({"stringData": {"a": "b", "é": ""}}), json!({"data": {"a": "Yg==", "é": ""}})),
            (
                json!({"stringData": {"a": "b"}, "data": {"a": "", "c": "Yg=="}}),
                json!({"data": {"a": "Yg==", "c": "Yg=="}}),
            ),
            (json!({"stringData": {"a": "b"}, "data": null}), json!({"data": {"a": "Yg=="}})),
            (json!({"stringData": null, "data": null}), json!({"data": null})),
            (json!({"stringData": {}}), json!({})),
            // The server says what is wrong with these.
            (json!({"stringData": {"a": 1}}), json!({"stringData": {"a": 1}})),
            (json!({"stringData": ["a"]}), json!({"stringData": ["a"]})),
            (json!({"stringData": {"a": "b"}, "data": []}), json!({"stringData": {"a": "b"}, "data": []})),
        ] {
            let Value::Object(mut object) = secret.clone() else { panic!("{secret} is an object") };
            encode_texts(&mut object);
            assert_eq!(Value::Object(object), expected, "{secret}");
        }
    }
}
