//! Who owns which field: `metadata.managedFields`, and server-side apply.

use serde_json::Value;

use crate::schema::Schema;

/// Who writes, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manager {
    /// `fieldManager` of the request, or what stands in for it.
    pub name: String,
    /// Of the written object, such as `apps/v1`.
    pub api_version: String,
    /// Which part is written; none: the object itself.
    pub subresource: Option<String>,
    /// RFC 3339, whole seconds: what a changed entry's `time` becomes.
    pub time: String,
    /// Fields that this write cannot change and therefore cannot own, as dotted paths: `status` for the object itself where
    /// it has a status subresource, `spec` and `metadata` for `status`.
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

/// Why an apply is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// 409, causes with reason `FieldManagerConflict`.
    #[error("apply failed with conflicts")]
    Conflicts(Vec<Conflict>),
    /// What is applied cannot be: unknown field, wrong type, duplicate keys. A real server answers 500.
    #[error("{0}")]
    Invalid(String),
}

/// Server-side apply: the object that results, with its `metadata.managedFields`. Equal to `live` where nothing changes.
///
/// # Errors
/// See [`Error`].
pub fn apply(
    _live: Option<&Value>,
    applied: &Value,
    _schema: &Schema,
    _manager: &Manager,
    _force: bool,
) -> Result<Value, Error> {
    Ok(applied.clone())
}

/// Brings `new`'s `metadata.managedFields` up to date after any other write.
pub fn track_update(_old: Option<&Value>, _new: &mut Value, _schema: &Schema, _manager: &Manager) {}
