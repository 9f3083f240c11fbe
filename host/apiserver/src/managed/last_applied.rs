//! The annotation of client-side `kubectl apply` with the last applied object.
//!
//! `kubectl apply --server-side` (manager `kubectl`) takes over from it. Fields that the annotation has with their
//! current values do not conflict. The annotation is updated, so that client-side apply can be used again.

use serde_json::Value;

use super::{
    Manager,
    entries::Entry,
    set::Set,
    walk::{self, Comparison},
};
use crate::schema::{Schema, node::too_deep};

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

const MANAGER: &str = "kubectl";

fn annotation(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str().filter(|text| !text.is_empty())
}

/// `true` if the annotation has all conflicting fields with their current values.
pub(super) fn settles(live: &Value, owners: &[Entry], taken: &Set, schema: &Schema, manager: &Manager) -> bool {
    if manager.name != MANAGER {
        return false;
    }
    let Some(applied) = annotation(live).and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return false;
    };
    if too_deep(&applied) {
        return false;
    }
    let Comparison { removed, modified, added } = Comparison::of(schema, &applied, live);
    let unchanged = walk::paths(schema, &applied).difference(&modified).difference(&added).difference(&removed);
    owners.iter().all(|entry| entry.owned.intersection(taken).difference(&unchanged).is_empty())
}

/// Updates the annotation if the live object has one.
pub(super) fn renew(new: &mut Value, live: &Value, applied: &Value, manager: &Manager) {
    if manager.name != MANAGER || manager.subresource.is_some() || annotation(live).is_none() {
        return;
    }
    let mut applied = applied.clone();
    if let Some(annotations) = applied.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    if let Some(annotations) = new.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
        && annotations.contains_key(ANNOTATION)
    {
        annotations.insert(ANNOTATION.to_owned(), Value::from(format!("{applied}\n")));
    }
}
