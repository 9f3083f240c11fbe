//! The three patches that compute a new object from the current one: JSON patch, merge patch, strategic merge patch.

use serde_json::Value;

use crate::schema::Schema;

/// Why a patch cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The patch is not one; 400.
    #[error("{0}")]
    Malformed(String),
    /// The patch is one, but this object cannot take it; 422.
    #[error("{0}")]
    Unprocessable(String),
    /// Too many operations; 413.
    #[error("{0}")]
    TooLarge(String),
    /// What a real server answers with 500: a strategic merge that contradicts itself or the schema.
    #[error("{0}")]
    Internal(String),
}

/// RFC 6902.
///
/// # Errors
/// See [`Error`].
pub fn json(current: &Value, _patch: &Value, _schema: &Schema) -> Result<Value, Error> {
    Ok(current.clone())
}

/// RFC 7396.
///
/// # Errors
/// See [`Error`].
pub fn merge(current: &Value, _patch: &Value, _schema: &Schema) -> Result<Value, Error> {
    Ok(current.clone())
}

/// Kubernetes' own, for built-in kinds.
///
/// # Errors
/// See [`Error`].
pub fn strategic(current: &Value, _patch: &Value, _schema: &Schema) -> Result<Value, Error> {
    Ok(current.clone())
}
