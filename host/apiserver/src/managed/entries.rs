//! The entries of `metadata.managedFields`.

use serde_json::{Value, json};

use super::{Manager, set::Set};

/// Upper bound for entries of updates, as in kube-apiserver. Older ones are merged.
const UPDATES: usize = 10;

/// The operation by which an owner got its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

/// An owner and its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) operation: Operation,
    pub(super) api_version: String,
    pub(super) subresource: String,
    pub(super) time: Option<String>,
    pub(super) owned: Set,
}

impl Entry {
    pub(super) fn new(manager: &Manager, operation: Operation, owned: Set) -> Entry {
        let name = if manager.name.is_empty() { "unknown" } else { &manager.name };
        Entry {
            name: name.to_owned(),
            operation,
            api_version: manager.api_version.clone(),
            subresource: manager.subresource.clone().unwrap_or_default(),
            time: None,
            owned,
        }
    }

    /// `true` if two entries have the same owner. An applier is one owner in all versions.
    pub(super) fn same_owner(&self, other: &Entry) -> bool {
        self.name == other.name
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// Returns the owner as in a conflict's message: `"kubectl-edit" using v1`.
    pub(super) fn shown(&self) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }

    fn parse(source: &Value) -> Option<Entry> {
        let text = |name: &str| source.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let operation = match text("operation").as_str() {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        let (api_version, fields_type) = (text("apiVersion"), text("fieldsType"));
        if api_version.is_empty() || fields_type != "FieldsV1" {
            return None;
        }
        Some(Entry {
            name: text("manager"),
            operation,
            api_version,
            subresource: text("subresource"),
            time: source.get("time").and_then(Value::as_str).map(str::to_owned),
            owned: source.get("fieldsV1").map(Set::parse).unwrap_or_default(),
        })
    }

    fn serialize(&self) -> Value {
        let operation = match self.operation {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        };
        let mut entry = json!({
            "manager": self.name, "operation": operation, "apiVersion": self.api_version,
            "fieldsType": "FieldsV1", "fieldsV1": self.owned.serialize(),
        });
        if let Some(time) = &self.time {
            entry["time"] = Value::from(time.as_str());
        }
        if !self.subresource.is_empty() {
            entry["subresource"] = Value::from(self.subresource.as_str());
        }
        entry
    }
}

/// Reads an object's entries. Returns `None` if they are invalid.
pub(super) fn read(object: &Value) -> Option<Vec<Entry>> {
    match &object["metadata"]["managedFields"] {
        Value::Null => Some(Vec::new()),
        Value::Array(entries) => entries.iter().map(Entry::parse).collect(),
        _ => None,
    }
}

/// `true` if a client resets managedFields by an empty list or one empty entry.
pub(super) fn asks_for_reset(object: &Value) -> bool {
    match object["metadata"]["managedFields"].as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(|entry| entry.values().all(|v| v.is_null() || *v == json!(""))),
        _ => false,
    }
}

/// Removes the entries from an object.
pub(super) fn strip(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

/// Writes entries into an object, in Kubernetes' order. Owners of nothing are left out.
pub(super) fn write(object: &mut Value, mut entries: Vec<Entry>) {
    entries.retain(|entry| !entry.owned.is_empty());
    entries.sort_by(|a, b| {
        let key = |entry: &Entry| {
            let Entry { operation, time, name, api_version, subresource, .. } = entry.clone();
            (operation, time, name, api_version, subresource)
        };
        key(a).cmp(&key(b))
    });
    let Some(object) = object.as_object_mut() else { return };
    if entries.is_empty() {
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            metadata.remove("managedFields");
        }
        return;
    }
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("managedFields".to_owned(), entries.iter().map(Entry::serialize).collect());
    }
}

/// Merges the oldest updates of each version until at most [`UPDATES`] are left.
pub(super) fn cap(entries: &mut Vec<Entry>) {
    let mut updates: Vec<Entry> = Vec::new();
    entries.retain(|entry| {
        let is_update = entry.operation == Operation::Update;
        if is_update {
            updates.push(entry.clone());
        }
        !is_update
    });
    updates.sort_by(|a, b| (&a.time, &a.name).cmp(&(&b.time, &b.name)));
    let mut index = 1;
    while updates.len() > UPDATES && index < updates.len() {
        let newer = updates[index].clone();
        match updates[..index].iter_mut().find(|older| older.api_version == newer.api_version) {
            Some(older) => {
                older.name = "ancient-changes".to_owned();
                older.subresource.clear();
                older.owned = older.owned.union(&newer.owned);
                older.time = newer.time;
                updates.remove(index);
            }
            None => index += 1,
        }
    }
    entries.extend(updates);
}
