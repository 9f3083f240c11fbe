//! The three patches that compute a new object from the current one.
//!
//! | patch | content | lists |
//! |---|---|---|
//! | [`json`] | operations on paths (RFC 6902) | by index |
//! | [`merge`] | the fields to change, null to remove (RFC 7396) | replaced |
//! | [`strategic`] | the same, with directives | merged as the schema says |
//!
//! The result is not yet pruned, defaulted or validated. `managed` implements the fourth patch, server-side apply.

mod list;
mod strategic;

use json_patch::{PatchErrorKind, PatchOperation, ReplaceOperation, jsonptr::PointerBuf};
use serde_json::Value;
pub use strategic::strategic;

use crate::schema::{
    Schema,
    node::{MAX_DEPTH, deeper_than},
};

/// Upper bound for operations in a JSON patch, as in kube-apiserver.
const OPERATIONS: usize = 10_000;

/// Upper bound for the bytes that all `copy` operations of a JSON patch add, as in kube-apiserver.
const COPIED: usize = 3 << 20;

/// Why a patch cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The patch is malformed (400).
    #[error("{0}")]
    Malformed(String),
    /// The patch cannot be applied to this object (422).
    #[error("{0}")]
    Unprocessable(String),
    /// The patch has too many operations or copies too much (413).
    #[error("{0}")]
    TooLarge(String),
    /// A strategic merge contradicts itself or the schema. kube-apiserver answers 500.
    #[error("{0}")]
    Internal(String),
}

/// Applies a JSON patch (RFC 6902). As in kube-apiserver, `replace` adds a missing field.
///
/// # Errors
/// See [`Error`]. A `test` that fails is [`Error::Unprocessable`].
pub fn json(current: &Value, patch: &Value, _schema: &Schema) -> Result<Value, Error> {
    let operations = patch.as_array().ok_or_else(|| Error::Malformed("a JSON patch must be a list".to_owned()))?;
    if operations.len() > OPERATIONS {
        let found = operations.len();
        return Err(Error::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {OPERATIONS}, got {found}"
        )));
    }
    let json_patch::Patch(operations) = serde_json::from_value(patch.clone())
        .map_err(|error| Error::Malformed(format!("error decoding patch: {error}")))?;
    let mut object = current.clone();
    let mut copied = 0;
    for operation in operations {
        let operation = prepare(operation, &object, &mut copied)?;
        json_patch::patch_unsafe(&mut object, std::slice::from_ref(&operation)).map_err(|error| {
            match (&error.kind, &operation) {
                (PatchErrorKind::TestFailed, PatchOperation::Test(test)) => {
                    Error::Unprocessable(format!("testing value {} failed: test failed", test.path))
                }
                _ => Error::Unprocessable(error.to_string()),
            }
        })?;
    }
    Ok(object)
}

/// Checks that an operation does not make the object too large or too deep, and that `replace` finds a field to
/// replace.
fn prepare(operation: PatchOperation, object: &Value, copied: &mut usize) -> Result<PatchOperation, Error> {
    let bounded = |path: &PointerBuf, value: &Value| {
        let left = MAX_DEPTH.saturating_sub(path.count());
        if deeper_than(value, left) {
            return Err(Error::Unprocessable(format!("the value at {path} is nested too deeply")));
        }
        Ok(())
    };
    match &operation {
        PatchOperation::Add(add) => bounded(&add.path, &add.value)?,
        PatchOperation::Replace(ReplaceOperation { path, value }) => {
            bounded(path, value)?;
            let parent = path.parent().and_then(|parent| parent.resolve(object).ok());
            if parent.is_some_and(Value::is_object) && path.resolve(object).is_err() {
                let (path, value) = (path.clone(), value.clone());
                return Ok(PatchOperation::Add(json_patch::AddOperation { path, value }));
            }
        }
        PatchOperation::Copy(copy) => {
            if let Ok(value) = copy.from.resolve(object) {
                bounded(&copy.path, value)?;
                *copied += value.to_string().len();
                if *copied > COPIED {
                    return Err(Error::TooLarge(format!(
                        "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the \
                         limit {COPIED}"
                    )));
                }
            }
        }
        PatchOperation::Move(from) => {
            if let Ok(value) = from.from.resolve(object) {
                bounded(&from.path, value)?;
            }
        }
        PatchOperation::Remove(_) | PatchOperation::Test(_) => {}
    }
    Ok(operation)
}

/// Applies a merge patch (RFC 7396).
///
/// # Errors
/// [`Error::Malformed`] if the patch is not an object.
pub fn merge(current: &Value, patch: &Value, _schema: &Schema) -> Result<Value, Error> {
    check_object(patch)?;
    let mut object = current.clone();
    json_patch::merge(&mut object, patch);
    Ok(object)
}

/// Checks that a merge patch is an object, and not too deep.
fn check_object(patch: &Value) -> Result<(), Error> {
    if !patch.is_object() {
        return Err(Error::Malformed("a merge patch must be an object".to_owned()));
    }
    if deeper_than(patch, MAX_DEPTH) {
        return Err(Error::Malformed("the patch is nested too deeply".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
