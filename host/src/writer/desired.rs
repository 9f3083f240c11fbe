//! Turns what a plugin returned as a child into the body of an apply: checked, in its namespace, and owned.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use pilothouse_core::key::{Key, TypeMeta};
use serde_json::{Map, Value, json};

use super::{
    error::{ChildError, Error},
    handle::{Owner, Writer},
    mark,
};
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

/// Owned kinds that a message names.
const SHOWN_KINDS: usize = 10;

/// A child as it is to be applied.
pub(super) struct Desired {
    pub(super) of: TypeMeta,
    pub(super) key: Key,
    /// The whole body of the apply.
    pub(super) value: Value,
    pub(super) adopt: bool,
    pub(super) replace: bool,
    /// Length of the text that the plugin returned.
    pub(super) bytes: usize,
    /// [`Writer::digest`] of the child.
    pub(super) digest: u64,
}

impl Writer {
    /// Checks the child at position `at`, and adds its namespace and its owner. Sends a request only for a kind that is
    /// not known yet.
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
            let mut owned: Vec<String> = owner.owns.iter().take(SHOWN_KINDS).map(ToString::to_string).collect();
            match owner.owns.len().saturating_sub(SHOWN_KINDS) {
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
        check_watched(view, &of, &key, metadata)?;
        // The server ignores the status in an apply, so the diff would never hold.
        object.remove("status");
        if api_version == "v1" && kind == "Secret" {
            encode_texts(&mut object);
        }
        let (adopt, replace, bytes) = (child.adopt, child.replace, child.object.len());
        Ok(Desired { of, key, value: object.into(), adopt, replace, bytes, digest })
    }

    /// Returns the child's namespace.
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
/// The server does not store `stringData`, and its field set names it all the same: a change of such a key could not be
/// seen there. A key that is in both has the text of `stringData`, as on the server. The server rejects what is not a
/// map of texts.
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

/// Adds the controlling owner reference. Fails if the child names another controlling owner.
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

/// Fails if no lease shows the whole child: the cache would never prove it, and each reconcile would apply it.
fn check_watched(view: &View, of: &TypeMeta, key: &Key, metadata: &Map<String, Value>) -> Result<(), ChildError> {
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
            // The server rejects these.
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
