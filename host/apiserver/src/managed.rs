//! Field ownership: `metadata.managedFields` and server-side apply.
//!
//! Every writer of a field owns it. An ordinary write takes the fields that it changes from all other managers
//! ([`track_update`]). An apply contains everything that its manager wants ([`apply`]). Fields that the manager owned
//! before and no longer names are removed, unless another manager owns them too. If another manager owns a field with
//! another value, the apply is rejected or forced.
//!
//! ```text
//!          applied ──┐                    paths it named last time, and no one owns now
//!                    ▼                                       │
//! live ────────▶  merge by schema ────────▶ remove ◀────────┘
//!   │                                          │
//!   └──────────▶ compare ◀──────────────────── ▼ ──▶ new object and owners
//!                   └─ changed paths that others own: conflicts
//! ```
//!
//! `path` and `set` have the algebra of owned paths, `walk` the walks over objects, and `entries` the form in objects.
//! Algorithm and messages follow Kubernetes' `structured-merge-diff` and `managedfields` packages. All versions of a
//! kind are assumed to have the same fields.

mod entries;
mod last_applied;
#[cfg(test)]
mod laws;
mod path;
mod set;
mod shape;
mod walk;

use entries::{Entry, Operation};
use path::Element;
use serde_json::{Map, Value};
use set::Set;
use walk::Comparison;

use crate::schema::{Schema, node::too_deep};

/// The owner of the fields of an object without managedFields at its first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The manager of a write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manager {
    /// The request's `fieldManager`, or its default.
    pub name: String,
    /// The written object's apiVersion, such as `apps/v1`.
    pub api_version: String,
    /// The written subresource, or `None` for the object itself.
    pub subresource: Option<String>,
    /// The `time` for changed entries: RFC 3339, whole seconds, UTC.
    pub time: String,
    /// Fields that this write can neither change nor own, as dotted paths: `spec` and `metadata` for a write of
    /// `status`, and `status` for a write of an object with a status subresource.
    pub ignore: Vec<String>,
}

/// A field that another manager owns with another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// `conflict with "kubectl-edit" using v1`: message of the cause.
    pub message: String,
    /// `.data.color`: field of the cause.
    pub field: String,
}

/// Why an apply is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// 409 with causes of reason `FieldManagerConflict`. There is at least one. Those of one manager are adjacent.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// The applied object has an unknown field, a wrong type or duplicate keys. kube-apiserver answers 500.
    #[error("{0}")]
    Invalid(String),
}

/// Returns the message in kube-apiserver's words.
fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: {}: {}", one.message, one.field);
    }
    let mut lines = Vec::new();
    for conflict in conflicts {
        let heading = format!("{}:", conflict.message.replacen("conflict with", "conflicts with", 1));
        if !lines.contains(&heading) {
            lines.push(heading);
        }
        lines.push(format!("- {}", conflict.field));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Applies an object and returns the result with its `metadata.managedFields`. It equals `live` if nothing changes. It
/// is not yet pruned, defaulted or validated. Fields that the manager must [`ignore`](Manager::ignore) are as in
/// `live`.
///
/// # Errors
/// See [`Error`].
pub fn apply(
    live: Option<&Value>,
    applied: &Value,
    schema: &Schema,
    manager: &Manager,
    force: bool,
) -> Result<Value, Error> {
    if too_deep(applied) || live.is_some_and(too_deep) {
        return Err(Error::Invalid("the object is nested too deeply".to_owned()));
    }
    let ignored = ignored(manager);
    let config = configuration(applied, manager);
    check(&config, schema)?;
    let mut owners = live
        .map(entries::read)
        .unwrap_or_else(|| Some(Vec::new()))
        .ok_or_else(|| Error::Invalid("failed to decode managed fields".to_owned()))?;
    let live = bare(live);
    if owners.is_empty() && live.as_object().is_some_and(|object| !object.is_empty()) {
        owners.push(first_owner(&live, schema, manager));
    }
    let mut own = Entry::new(manager, Operation::Apply, walk::paths(schema, &config).outside(&ignored));
    let before = owners.iter().position(|entry| entry.same_owner(&own)).map(|index| owners.remove(index));

    let mut new = walk::merge(schema, &live, &config);
    if let Some(before) = &before {
        new = prune(&new, &before.owned, &own.owned, &owners, schema);
    }
    let changes = Comparison::of(schema, &live, &new).outside(&ignored);
    let taken = changes.modified.union(&changes.added);
    let conflicts = conflicts(&owners, &taken);
    if !force && !conflicts.is_empty() && !last_applied::settles(&live, &owners, &taken, schema, manager) {
        return Err(Error::Conflicts(conflicts));
    }
    for entry in &mut owners {
        entry.owned = entry.owned.difference(&taken).difference(&changes.removed);
    }
    own.owned = own.owned.difference(&never_owned());
    own.time = if walk::equal(&new, &live) {
        // An apply that changes nothing changes only the ownership.
        new = live.clone();
        before.and_then(|entry| entry.time)
    } else {
        Some(manager.time.clone())
    };
    owners.push(own);
    last_applied::renew(&mut new, &live, applied, manager);
    entries::write(&mut new, owners);
    Ok(new)
}

/// Updates the `metadata.managedFields` of `new` after any write but an apply. `new` is what will be stored: pruned,
/// defaulted, and with the fields that the write cannot change as they were. `old` is `None` for a new object.
///
/// A write of the object itself may change managedFields, as in Kubernetes: an empty list resets them.
pub fn track_update(old: Option<&Value>, new: &mut Value, schema: &Schema, manager: &Manager) {
    if too_deep(new) || old.is_some_and(too_deep) {
        entries::strip(new);
        return;
    }
    let given = if manager.subresource.is_some() { None } else { entries::read(new).filter(|given| !given.is_empty()) };
    let mut owners = if manager.subresource.is_none() && entries::asks_for_reset(new) {
        Vec::new()
    } else {
        given.or_else(|| old.and_then(entries::read)).unwrap_or_default()
    };
    entries::strip(new);
    if old.is_some() && owners.is_empty() {
        // No owner is known. Ownership is tracked from the next apply on.
        return;
    }
    let changes = Comparison::of(schema, &bare(old), new).outside(&ignored(manager));
    let taken = changes.modified.union(&changes.added);
    for entry in &mut owners {
        entry.owned = entry.owned.difference(&taken).difference(&changes.removed);
    }
    let mut own = Entry::new(manager, Operation::Update, taken.difference(&never_owned()));
    if !own.owned.is_empty() {
        own.time = Some(manager.time.clone());
        if let Some(index) = owners.iter().position(|entry| entry.same_owner(&own)) {
            own.owned = own.owned.union(&owners.remove(index).owned);
        }
        owners.push(own);
    }
    entries::cap(&mut owners);
    entries::write(new, owners);
}

/// Returns an object without managedFields, or an empty object.
fn bare(object: Option<&Value>) -> Value {
    let mut object = object.cloned().unwrap_or_else(|| Value::Object(Map::new()));
    entries::strip(&mut object);
    object
}

/// Returns the paths that have no owner, because they identify the object or belong to the server.
fn never_owned() -> Set {
    const METADATA: [&str; 8] =
        ["name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields", "resourceVersion"];
    let field = |name: &str| Element::Field(name.to_owned());
    let top = ["apiVersion", "kind", "metadata"].map(|name| vec![field(name)]);
    let metadata = METADATA.map(|name| vec![field("metadata"), field(name)]);
    top.into_iter().chain(metadata).collect()
}

fn ignored(manager: &Manager) -> Set {
    manager.ignore.iter().map(|path| path.split('.').map(|name| Element::Field(name.to_owned())).collect()).collect()
}

/// Returns the applied object without the fields that this manager cannot change. Identifying fields stay.
fn configuration(applied: &Value, manager: &Manager) -> Value {
    let mut config = applied.clone();
    entries::strip(&mut config);
    let identity = |fields: &Map<String, Value>| -> Map<String, Value> {
        let kept =
            fields.iter().filter(|(name, _)| matches!(name.as_str(), "name" | "namespace" | "uid" | "resourceVersion"));
        kept.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    for path in &manager.ignore {
        let (parents, last) = path.rsplit_once('.').unwrap_or(("", path));
        let parents = parents.split('.').filter(|name| !name.is_empty());
        let Some(parent) = parents.into_iter().try_fold(&mut config, |value, name| value.get_mut(name)) else {
            continue;
        };
        let Some(fields) = parent.as_object_mut() else { continue };
        match fields.remove(last) {
            Some(Value::Object(metadata)) if path == "metadata" => {
                fields.insert(last.to_owned(), Value::Object(identity(&metadata)));
            }
            _ => {}
        }
    }
    config
}

/// Checks that the applied object fits the schema, so that it can be merged.
fn check(config: &Value, schema: &Schema) -> Result<(), Error> {
    let mut wrong = Vec::new();
    shape::Check { builtin: schema.builtin, wrong: &mut wrong }.check(&schema.root, config, false, &mut String::new());
    let what = match wrong.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&config["apiVersion"]);
    let version = if version.contains('/') { version } else { format!("/{version}") };
    Err(Error::Invalid(format!(
        "failed to create typed patch object ({}/{}; {version}, Kind={}): {what}",
        text(&config["metadata"]["namespace"]),
        text(&config["metadata"]["name"]),
        text(&config["kind"]),
    )))
}

/// Returns the owner of an object without managedFields.
fn first_owner(live: &Value, schema: &Schema, manager: &Manager) -> Entry {
    let writer = Manager { name: BEFORE_FIRST_APPLY.to_owned(), subresource: None, ..manager.clone() };
    let all = Comparison::of(schema, &Value::Object(Map::new()), live).added;
    Entry { time: Some(manager.time.clone()), ..Entry::new(&writer, Operation::Update, all.difference(&never_owned())) }
}

/// Removes what the manager owned before and does not name now, unless another manager owns it.
fn prune(merged: &Value, before: &Set, now: &Set, others: &[Entry], schema: &Schema) -> Value {
    let complete = |set: &Set| set.with_fields_on_the_way(&schema.root);
    let owned = complete(&others.iter().fold(now.clone(), |owned, entry| owned.union(&entry.owned)));
    let all = complete(&walk::paths(schema, merged));
    let before = complete(before);

    // Removes everything that the manager owned, and adds back what has another owner or none. Fields beneath an owned
    // path may have other owners.
    let bare = walk::without(schema, merged, &before);
    let kept = complete(&walk::paths(schema, &bare));
    let pruned = walk::without(schema, merged, &all.difference(&kept.union(&owned)));
    let kept = complete(&walk::paths(schema, &pruned));
    walk::without(schema, merged, &all.difference(&kept).intersection(&before))
}

fn conflicts(owners: &[Entry], taken: &Set) -> Vec<Conflict> {
    let mut owners: Vec<_> = owners.iter().collect();
    owners.sort_by_key(|entry| entry.shown());
    let conflicts = owners.into_iter().flat_map(|entry| {
        entry.owned.intersection(taken).paths().into_iter().map(|path| Conflict {
            message: format!("conflict with {}", entry.shown()),
            field: path.iter().map(Element::to_string).collect(),
        })
    });
    conflicts.collect()
}

#[cfg(test)]
mod tests;
