//! The mark of a child: a digest of its text, applied with it as an annotation.
//!
//! The API server stores some children in another form than they were sent: quantities, defaults inside atomic lists,
//! dropped empty values. The diff cannot prove that such a child is as it was applied, and what is known in memory ends
//! with the process. So the host applies the child once more, with the mark. The mark says which text was applied last.
//! The host's field set says whether somebody has changed a field since ([`diff::is_untouched`]). Both stand in the
//! object, so a restarted host sends nothing.
//!
//! ```text
//! apply ─► answer ─┬─ the diff proves it: no mark
//!                  └─ it does not: apply with mark ─► later: mark = digest of the text, and fields still owned ─► nothing
//!                                                            otherwise ─► apply with mark, one request
//! ```
//!
//! - If somebody changes or removes the mark, the host applies the child again.
//! - A copied mark proves nothing: the text names the object and its owner's uid, and the field set belongs to one
//!   object.
//! - A field that a mutating webhook adds to a marked child stays, also after the webhook is removed, until somebody
//!   changes the child or the plugin changes its text.
//! - Secrets have no mark: a digest of their content does not belong into their metadata.

use std::fmt::Write as _;

#[cfg(doc)]
use pilothouse_core::diff;
use pilothouse_core::{key::TypeMeta, object::Object};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// The annotation.
pub(super) const MARK: &str = "pilothouse.dev/applied";

/// The annotation's name in field sets.
const OWNED_MARK: &str = r#""f:pilothouse.dev/applied""#;

/// Bytes of the digest. No second text can be found for 128 bits.
const DIGEST_LEN: usize = 16;

/// Removes the mark from the metadata that a plugin returned: it may be a copy of the child's.
pub(super) fn strip(metadata: &mut Map<String, Value>) {
    let Some(Value::Object(annotations)) = metadata.get_mut("annotations") else { return };
    if annotations.remove(MARK).is_some() && annotations.is_empty() {
        metadata.remove("annotations");
    }
}

/// Returns `true` if this manager's last apply had a mark, and no other manager has changed it since.
pub(super) fn is_marked(live: &Object, manager: &str) -> bool {
    live.applied(manager, None).is_some_and(|fields| fields.contains(OWNED_MARK))
}

/// Feeds a value to the digest. The order of members makes no difference.
fn feed(sha: &mut Sha256, value: &Value) {
    let mut part = |kind: &[u8; 1], bytes: &[u8]| {
        sha.update(kind);
        sha.update((bytes.len() as u64).to_le_bytes());
        sha.update(bytes);
    };
    match value {
        Value::Null => part(b"0", &[]),
        Value::Bool(value) => part(b"b", &[u8::from(*value)]),
        Value::Number(value) => part(b"n", value.to_string().as_bytes()),
        Value::String(value) => part(b"s", value.as_bytes()),
        Value::Array(list) => {
            part(b"[", &(list.len() as u64).to_le_bytes());
            list.iter().for_each(|value| feed(sha, value));
        }
        Value::Object(map) => {
            part(b"{", &(map.len() as u64).to_le_bytes());
            let mut members: Vec<_> = map.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            for (name, value) in members {
                sha.update((name.len() as u64).to_le_bytes());
                sha.update(name.as_bytes());
                feed(sha, value);
            }
        }
    }
}

/// Returns the whole text with its mark, and without the version that an apply is decided on. `None` if the child takes
/// no mark.
pub(super) fn marked(of: &TypeMeta, value: &Value) -> Option<Value> {
    if *of.api_version == *"v1" && *of.kind == *"Secret" {
        return None;
    }
    let mut marked = value.clone();
    let metadata = marked.get_mut("metadata")?.as_object_mut()?;
    metadata.remove("resourceVersion");
    strip(metadata);
    let mut sha = Sha256::new();
    feed(&mut sha, &marked);
    let digest = sha.finalize();
    let mut mark = String::with_capacity(2 * DIGEST_LEN);
    for byte in digest.iter().take(DIGEST_LEN) {
        let _ = write!(mark, "{byte:02x}");
    }
    let annotations = marked.get_mut("metadata")?.as_object_mut()?.entry("annotations").or_insert(Value::Null);
    if annotations.is_null() {
        *annotations = Map::new().into();
    }
    // The server rejects annotations of another type.
    annotations.as_object_mut()?.insert(MARK.into(), mark.into());
    Some(marked)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mark_of(kind: &str, text: &str) -> Option<String> {
        let value = serde_json::from_str(text).expect("JSON");
        let marked = marked(&TypeMeta::new("v1", kind), &value)?;
        Some(marked.pointer("/metadata/annotations")?.get(MARK)?.as_str()?.to_owned())
    }

    #[test]
    fn the_mark_is_the_same_for_all_hosts_and_orders_of_members() {
        let text = r#"{"metadata":{"name":"a","annotations":{"b":"c"}},"spec":{"x":[1,"1",null,true],"y":{}}}"#;
        let other = r#"{"spec":{"y":{},"x":[1,"1",null,true]},"metadata":{"annotations":{"b":"c"},"name":"a"}}"#;
        // Another value would make every host apply every marked child once more.
        assert_eq!(mark_of("Pod", text).as_deref(), Some("7cc6cec67fb3189d7c458c7fc33772c7"));
        assert_eq!(mark_of("Pod", other), mark_of("Pod", text));
        assert_eq!(OWNED_MARK, format!("\"f:{MARK}\""));
    }

    #[test]
    fn texts_that_differ_have_other_marks() {
        let spec = |spec: &str| mark_of("Pod", &format!(r#"{{"metadata":{{}},"spec":{spec}}}"#)).expect("a mark");
        let specs = [
            "{}",
            "[]",
            "null",
            "0",
            "\"\"",
            "false",
            "[[],[]]",
            "[[[]]]",
            r#"{"a":"bc"}"#,
            r#"{"ab":"c"}"#,
            r#"["a","b"]"#,
            r#"["ab"]"#,
        ];
        let marks: std::collections::HashSet<String> = specs.iter().map(|one| spec(one)).collect();
        assert_eq!(marks.len(), specs.len());
    }

    #[test]
    fn kinds_and_texts_that_take_no_mark_have_none() {
        assert_eq!(mark_of("Secret", r#"{"metadata":{}}"#), None);
        assert_eq!(mark_of("Pod", r#"{"metadata":{"annotations":[]}}"#), None);
        assert_eq!(
            mark_of("Pod", r#"{"metadata":{"annotations":null}}"#),
            mark_of("Pod", r#"{"metadata":{"annotations":null}}"#)
        );
        let strip = |annotations: Value| {
            let mut metadata = Map::from_iter([("annotations".to_owned(), annotations)]);
            super::strip(&mut metadata);
            Value::Object(metadata)
        };
        assert_eq!(strip(json!({ MARK: "0" })), json!({}));
        assert_eq!(strip(json!({ MARK: "0", "a": "b" })), json!({ "annotations": { "a": "b" } }));
        assert_eq!(strip(json!({})), json!({ "annotations": {} }));
    }
}
