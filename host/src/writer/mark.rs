//! The mark of a child: a digest of its text, applied with it as an annotation.
//!
//! The API server stores some children in another form than they were sent: quantities, defaults inside atomic lists, dropped empty
//! values. The diff cannot prove from such a child that it is as it was applied, and a note in memory ends with the process. So the
//! host applies the child once more, with the mark. The mark says which text was applied last. The host's field set says whether
//! somebody has changed a field since ([`diff::is_untouched`]). Both stand in the object, so a restarted host sends nothing.
//!
//! ```text
//! apply ─► answer ─┬─ the diff proves it: no mark
//!                  └─ it does not: apply with mark ─► later: mark = digest of the text, and fields still owned ─► nothing
//!                                                            otherwise ─► apply with mark, one request
//! ```
//!
//! - Changing or removing the mark makes the host apply the child again.
//! - A copied mark proves nothing: the text names the object and its owner's uid, and the field set belongs to one object.
//! - What a mutating webhook wrote into a marked child stays, also when the webhook is removed, until somebody changes the child or the
//!   plugin its text.
//! - Secrets have no mark: a digest of their content does not belong into their metadata.

use std::{fmt::Write as _, sync::Arc};

use pilothouse_core::{diff, object::Object};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use tracing::debug;

use super::{Error, Writer, basis::Basis, desired::Desired};

/// The annotation.
pub(super) const MARK: &str = "pilothouse.dev/applied";

/// As it stands in field sets.
const OWNED_MARK: &str = r#""f:pilothouse.dev/applied""#;

/// Bytes of the digest: nobody finds a second text for one of 128 bits.
const DIGEST_LEN: usize = 16;

/// Removes the mark from what a plugin returned: it may have copied it from the child that it read.
pub(super) fn strip(metadata: &mut Map<String, Value>) {
    let Some(Value::Object(annotations)) = metadata.get_mut("annotations") else { return };
    if annotations.remove(MARK).is_some() && annotations.is_empty() {
        metadata.remove("annotations");
    }
}

/// Returns `true` if this manager's last apply had a mark, and nobody has changed it since.
fn is_marked(live: &Object, manager: &str) -> bool {
    live.applied(manager, None).is_some_and(|fields| fields.contains(OWNED_MARK))
}

/// Feeds a value to the digest, whatever the order of members.
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

impl Desired {
    /// The whole text with its mark, and without the version that an apply is decided on. `None` if the child takes no mark.
    fn marked(&self) -> Option<Value> {
        if *self.of.api_version == *"v1" && *self.of.kind == *"Secret" {
            return None;
        }
        let mut marked = self.value.clone();
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
        // Another type is left to the server to refuse.
        annotations.as_object_mut()?.insert(MARK.into(), mark.into());
        Some(marked)
    }
}

impl Writer {
    /// Returns `true` if an apply would change nothing in `live`.
    pub(super) fn holds(&self, live: &Object, desired: &Desired) -> bool {
        if is_marked(live, &self.manager) {
            return desired.marked().is_some_and(|marked| diff::is_untouched(live, &self.manager, &marked));
        }
        diff::holds(live, &self.manager, None, &desired.value)
    }

    /// Gives the text its mark if `live` has one, so that a change of the text takes one request.
    pub(super) fn keep_mark(&self, live: &Object, desired: &mut Desired) {
        if is_marked(live, &self.manager)
            && let Some(marked) = desired.marked()
        {
            desired.value = marked;
        }
    }

    /// Applies a child once more, with the mark, if its `answer` does not prove that it is as it was applied.
    ///
    /// Returns the newest answer. Returns `None` if somebody changed the child meanwhile: that change wakes the key, and the next reconcile
    /// marks it.
    pub(super) async fn mark(&self, answer: Arc<Object>, desired: &mut Desired) -> Option<Arc<Object>> {
        let manager = &*self.manager;
        if is_marked(&answer, manager) {
            return Some(answer);
        }
        if let Some(metadata) = desired.value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        if diff::holds(&answer, manager, None, &desired.value) || !diff::is_untouched(&answer, manager, &desired.value)
        {
            return Some(answer);
        }
        let Some(marked) = desired.marked() else { return Some(answer) };
        desired.value = marked;
        match self.apply_on(desired, Basis::Version(answer.resource_version())).await {
            Ok(answer) => Some(answer),
            Err(Error::Request { source, .. }) if source.is_conflict() => None,
            // The child itself was applied. Without the mark the next start costs a request.
            Err(Error::Request { source, .. }) => {
                debug!(kind = %desired.of.kind, object = %desired.key, error = %source, "cannot mark a child");
                Some(answer)
            }
            Err(_) => Some(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use pilothouse_core::key::{Key, TypeMeta};
    use serde_json::json;

    use super::*;

    fn mark_of(kind: &str, text: &str) -> Option<String> {
        let desired = Desired {
            of: TypeMeta::new("v1", kind),
            key: Key::new(Some("default"), "a"),
            value: serde_json::from_str(text).expect("JSON"),
            adopt: false,
            bytes: 0,
            digest: 0,
        };
        Some(desired.marked()?.pointer("/metadata/annotations")?.get(MARK)?.as_str()?.to_owned())
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
    fn what_can_have_no_mark_has_none() {
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
