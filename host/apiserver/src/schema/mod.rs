//! Schemas of objects: what a kind's fields are, and the walks over an object that follow from it.

use std::sync::Arc;

use serde_json::Value;

/// What a kind's objects look like.
#[derive(Debug, Clone)]
pub struct Schema {
    source: Arc<Value>,
}

impl Schema {
    /// The schema of a kind that every cluster has; none if the kind is unknown. `group` is empty for the core group.
    #[must_use]
    pub fn builtin(_group: &str, _version: &str, _kind: &str) -> Option<Arc<Schema>> {
        None
    }

    /// Reads `openAPIV3Schema` of one version of a CustomResourceDefinition.
    ///
    /// # Errors
    /// One cause for each rule of structural schemas that is broken; fields are relative to the schema.
    pub fn from_crd(schema: &Value) -> Result<Schema, Vec<Cause>> {
        Ok(Schema { source: Arc::new(schema.clone()) })
    }

    /// Of a kind about which nothing is known: every field is kept and valid.
    #[must_use]
    pub fn preserve_all() -> Schema {
        Schema { source: Arc::new(Value::Bool(true)) }
    }

    /// Removes fields that the schema does not know. Returns their paths, such as `spec.ports[0].prot`.
    pub fn prune(&self, _object: &mut Value) -> Vec<String> {
        Vec::new()
    }

    /// Fills in the schema's defaults, and drops nulls where null is no value.
    pub fn default(&self, _object: &mut Value) {}

    /// Every way in which the object breaks the schema. `old` is the object before the write, for transition rules.
    #[must_use]
    pub fn validate(&self, _object: &Value, _old: Option<&Value>) -> Vec<Cause> {
        Vec::new()
    }

    /// The schema for `/openapi/v3` documents.
    #[must_use]
    pub fn openapi(&self) -> Value {
        self.source.as_ref().clone()
    }
}

/// Why a field's value is refused: one entry of a `Status`'s `details.causes`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Cause {
    /// The cause's `reason`.
    pub reason: Reason,
    /// Path of the field, such as `spec.size`.
    pub field: String,
    /// Without the field: `Required value`.
    pub message: String,
}

/// Kubernetes' `CauseType` for field errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// `FieldValueInvalid`
    Invalid,
    /// `FieldValueRequired`
    Required,
    /// `FieldValueNotSupported`
    NotSupported,
    /// `FieldValueDuplicate`
    Duplicate,
    /// `FieldValueForbidden`
    Forbidden,
    /// `FieldValueTypeInvalid`
    TypeInvalid,
    /// `FieldValueTooLong`
    TooLong,
    /// `FieldValueTooMany`
    TooMany,
}

impl Reason {
    /// As it stands in a `Status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Invalid => "FieldValueInvalid",
            Reason::Required => "FieldValueRequired",
            Reason::NotSupported => "FieldValueNotSupported",
            Reason::Duplicate => "FieldValueDuplicate",
            Reason::Forbidden => "FieldValueForbidden",
            Reason::TypeInvalid => "FieldValueTypeInvalid",
            Reason::TooLong => "FieldValueTooLong",
            Reason::TooMany => "FieldValueTooMany",
        }
    }
}
