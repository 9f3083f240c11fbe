//! Logs what happens, for people to follow: `pilothouse dev` shows the target `pilothouse::feed` line by line.
//!
//! A host in a cluster logs which fields have changed and never their values, because the log has more readers than the
//! objects. `dev` enables [`VALUES`] and shows values too, except those of Secrets.
//!
//! The functions cost nothing where the target is off.

use std::time::Duration;

use pilothouse_core::{
    backlog::Batch,
    key::{Key, TypeMeta},
    store::Change,
};
use serde_json::Value;
use tracing::{Level, debug, enabled};

use super::{batch, serving::ControllerId};

/// A target that only switches: where it is enabled, lines show the values of changed fields.
pub(crate) const VALUES: &str = "pilothouse::feed::values";

/// Changed fields that a line names.
const NAMED_FIELDS: usize = 3;

/// Logs a change and the keys that it wakes.
pub(super) fn changed(id: &ControllerId, change: &Change, keys: &[Key]) {
    log_change(id, change, keys, "");
}

/// Logs a change and the keys that it wakes because they have read the object.
pub(super) fn read(id: &ControllerId, change: &Change, keys: &[Key]) {
    log_change(id, change, keys, "by what it read");
}

/// Logs that a key is woken because something that it read had changed before it was read.
pub(super) fn outdated(id: &ControllerId, key: &Key) {
    debug!(target: "pilothouse::feed", what = "outdated", plugin = %id.plugin, controller = &*id.name, wakes = %key);
}

fn log_change(id: &ControllerId, change: &Change, keys: &[Key], why: &str) {
    if !enabled!(target: "pilothouse::feed", Level::DEBUG) || keys.is_empty() {
        return;
    }
    let object = change.object();
    let of = object.type_meta();
    let values = enabled!(target: VALUES, Level::DEBUG) && *of != secret();
    let wakes = keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    debug!(
        target: "pilothouse::feed",
        what = "changed", plugin = %id.plugin, controller = &*id.name,
        kind = %of.kind, object = %object.key(), change = describe(change, values), wakes, why,
    );
}

/// Logs the keys that a lookup or the plugin's `map` has found for changed objects.
pub(super) fn mapped(id: &ControllerId, objects: &str, keys: &[Key]) {
    if !enabled!(target: "pilothouse::feed", Level::DEBUG) || keys.is_empty() {
        return;
    }
    let wakes = keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    debug!(target: "pilothouse::feed", what = "mapped", plugin = %id.plugin, controller = &*id.name, object = objects, wakes);
}

/// Logs that a plugin's `observe` took a batch of changes.
pub(super) fn observed(plugin: &str, changes: &Batch, took: Duration) {
    if !enabled!(target: "pilothouse::feed", Level::DEBUG) {
        return;
    }
    let object = batch::objects(changes);
    debug!(target: "pilothouse::feed", what = "observed", plugin, object, ?took);
}

fn secret() -> TypeMeta {
    TypeMeta::new("v1", "Secret")
}

/// Describes a change: `created`, `deleted`, or the fields that differ, as `spec.quantity: 3 → 5` with values and
/// `spec.quantity` without.
fn describe(change: &Change, values: bool) -> String {
    let (old, new) = match (&change.old, &change.new) {
        (Some(old), Some(new)) => (old, new),
        (None, _) => return "created".into(),
        (_, None) => return "deleted".into(),
    };
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let mut found = Vec::new();
    differences(&parse(&old.json()), &parse(&new.json()), "", values, &mut found);
    let more = found.len().saturating_sub(NAMED_FIELDS);
    found.truncate(NAMED_FIELDS);
    if found.is_empty() {
        return "metadata".into();
    }
    let mut text = found.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

fn differences(old: &Value, new: &Value, path: &str, values: bool, found: &mut Vec<String>) {
    if old == new || matches!(path, "metadata.resourceVersion" | "metadata.generation") {
        return;
    }
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let names: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for name in names {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let missing = Value::Null;
                differences(a.get(name).unwrap_or(&missing), b.get(name).unwrap_or(&missing), &path, values, found);
            }
        }
        _ if !values => found.push(path.to_owned()),
        _ => found.push(format!("{path}: {} → {}", short(old), short(new))),
    }
}

/// Shortens a value to a few characters.
fn short(value: &Value) -> String {
    let text = match value {
        Value::Null => return "none".into(),
        Value::Array(items) => return format!("{} items", items.len()),
        Value::Object(_) => return "{…}".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.chars().count() > 40 { text.chars().take(39).chain(['…']).collect() } else { text }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilothouse_core::object::Object;
    use serde_json::json;

    use super::*;

    fn object(spec: &Value) -> Option<Arc<Object>> {
        let json = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "a", "namespace": "b", "uid": "c", "resourceVersion": "1" },
            "spec": spec,
        });
        let of = TypeMeta::new("v1", "ConfigMap");
        Some(Arc::new(Object::parse(json.to_string().as_bytes(), &of).expect("the object is well formed")))
    }

    #[test]
    fn change_is_described_by_its_first_fields() {
        let described = |old, new| describe(&Change { old, new, missed: false }, true);
        let before = object(&json!({ "quantity": 3, "color": "red", "sizes": [1, 2] }));
        assert_eq!(described(None, before.clone()), "created");
        assert_eq!(described(before.clone(), None), "deleted");
        assert_eq!(
            described(before.clone(), object(&json!({ "quantity": 5, "color": "red", "sizes": [1] }))),
            "spec.quantity: 3 → 5, spec.sizes: 2 items → 1 items"
        );
        assert_eq!(
            described(before.clone(), object(&json!({ "quantity": 3, "sizes": [1, 2] }))),
            "spec.color: red → none"
        );
        let after = object(&json!({ "quantity": 5, "sizes": [1] }));
        let names = describe(&Change { old: before.clone(), new: after, missed: false }, false);
        assert_eq!(names, "spec.color, spec.quantity, spec.sizes");
        assert_eq!(described(before.clone(), before), "metadata");
    }
}
