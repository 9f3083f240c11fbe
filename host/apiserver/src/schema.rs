//! Schemas of kinds, and the walks over objects that use them.
//!
//! A [`Schema`] comes from a CustomResourceDefinition ([`Schema::from_crd`]), from the definitions of the built-in
//! kinds ([`Schema::builtin`]), or allows everything ([`Schema::preserve_all`]). A write passes it in this order:
//!
//! ```text
//! body ── prune ──▶ known fields ── default ──▶ complete ── validate ──▶ stored, or rejected with causes
//!           └ paths of unknown fields, for fieldValidation
//! ```
//!
//! Patches and server-side apply read from it how lists and maps merge. Field paths and messages are kube-apiserver's,
//! because people search for them and clients show them.
//!
//! This module has no clock and no I/O. No input makes it panic or recurse beyond `node::MAX_DEPTH`.

mod builtin;
pub(crate) mod cel;
mod formats;
pub(crate) mod go;
#[cfg(test)]
mod laws;
pub(crate) mod node;
mod prune;
mod rules;
mod structural;
mod validate;

use std::sync::Arc;

use go::{quoted, shown};
use node::{FREE, Node};
use serde_json::{Map, Value, json};

/// The schema of a kind.
#[derive(Debug, Clone)]
pub struct Schema {
    pub(crate) root: Node,
    source: Arc<Value>,
    /// `true` for a built-in kind. Its objects are Go structs in kube-apiserver, so null means absent, and lists are
    /// not checked for duplicates.
    pub(crate) builtin: bool,
}

impl Schema {
    /// Returns the schema of a built-in kind, or `None` if the kind is unknown. `group` is empty for the core group.
    #[must_use]
    pub fn builtin(group: &str, version: &str, kind: &str) -> Option<Arc<Schema>> {
        builtin::schema(group, version, kind)
    }

    /// Reads `openAPIV3Schema` of one version of a CustomResourceDefinition. The fields that every object has
    /// (`apiVersion`, `kind`, `metadata`) need not be in it.
    ///
    /// # Errors
    /// One cause for each rule of structural schemas that is broken. Fields are relative to the schema, such as
    /// `properties[spec].type`; the schema's own is empty.
    pub fn from_crd(schema: &Value) -> Result<Schema, Vec<Cause>> {
        let causes = structural::check(schema);
        if !causes.is_empty() {
            return Err(causes);
        }
        let mut root = Node::parse(schema, &|_| None);
        root.add_object_fields();
        root.complete_embedded();
        let schema = Schema { root, source: Arc::new(with_object_fields(schema)), builtin: false };
        let causes = structural::check_defaults(&schema);
        if causes.is_empty() { Ok(schema) } else { Err(causes) }
    }

    /// Returns a schema that keeps and accepts every field.
    #[must_use]
    pub fn preserve_all() -> Schema {
        let mut root = FREE.clone();
        root.add_object_fields();
        let source = with_object_fields(&json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true }));
        Schema { root, source: Arc::new(source), builtin: false }
    }

    /// Removes fields that the schema does not know. Returns their paths in order, such as `spec.ports[0].prot`.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune(&self.root, object)
    }

    /// Fills in defaults, drops nulls where null is not a value, and writes `2.0` as `2`.
    pub fn default(&self, object: &mut Value) {
        prune::default(&self.root, object, self.builtin);
    }

    /// Returns all violations of the schema. `old` is the object before the write, if there was one. Unchanged values
    /// are not reported, and rules about changes compare with `old`.
    #[must_use]
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Cause> {
        validate::validate(self, object, old)
    }

    /// Returns the schema for an OpenAPI v3 document. It refers to [`Schema::openapi_definitions`] as
    /// `#/components/schemas/<name>`.
    #[must_use]
    pub fn openapi(&self) -> Value {
        self.source.as_ref().clone()
    }

    /// Returns all definitions that [`Schema::openapi`] refers to directly or indirectly, by name.
    #[must_use]
    pub fn openapi_definitions(&self) -> Map<String, Value> {
        builtin::referred(&self.source)
    }
}

/// Returns a custom resource's schema with the API server's additions.
fn with_object_fields(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        let properties = fields.entry("properties").or_insert_with(|| json!({}));
        if let Some(properties) = properties.as_object_mut() {
            properties.entry("apiVersion").or_insert_with(|| json!({ "type": "string" }));
            properties.entry("kind").or_insert_with(|| json!({ "type": "string" }));
            properties.insert("metadata".to_owned(), builtin::object_meta_reference());
        }
    }
    schema
}

/// Why a field's value is rejected: an entry of a `Status`'s `details.causes`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Cause {
    /// The cause's `reason`.
    pub reason: Reason,
    /// The field's path, such as `spec.size`. `<nil>` if the message names it.
    pub field: String,
    /// The message without the field, such as `Required value`.
    pub message: String,
}

impl Cause {
    /// The value is wrong; `detail` says why.
    #[must_use]
    pub fn invalid(field: &str, value: &Value, detail: &str) -> Cause {
        let message = format!("Invalid value: {}: {detail}", shown(value));
        Cause { reason: Reason::Invalid, field: field.to_owned(), message }
    }

    /// The value is wrong, and Kubernetes shows its type instead of the value.
    fn invalid_type_name(field: &str, type_name: &str, detail: &str) -> Cause {
        Cause::invalid(field, &Value::from(type_name), detail)
    }

    /// The value is missing. `detail` may be empty.
    #[must_use]
    pub fn required(field: &str, detail: &str) -> Cause {
        Cause { reason: Reason::Required, field: field.to_owned(), message: with_detail("Required value", detail) }
    }

    /// There must be no value here. `detail` may be empty.
    #[must_use]
    pub fn forbidden(field: &str, detail: &str) -> Cause {
        Cause { reason: Reason::Forbidden, field: field.to_owned(), message: with_detail("Forbidden", detail) }
    }

    /// The value is a duplicate.
    #[must_use]
    pub fn duplicate(field: &str, value: &Value) -> Cause {
        let message = format!("Duplicate value: {}", shown(value));
        Cause { reason: Reason::Duplicate, field: field.to_owned(), message }
    }

    /// The value is not among the allowed ones.
    #[must_use]
    pub fn not_supported(field: &str, value: &Value, supported: &[&str]) -> Cause {
        let supported: Vec<String> = supported.iter().map(|value| quoted(value)).collect();
        let message = format!("Unsupported value: {}: supported values: {}", shown(value), supported.join(", "));
        Cause { reason: Reason::NotSupported, field: field.to_owned(), message }
    }
}

fn with_detail(message: &str, detail: &str) -> String {
    if detail.is_empty() { message.to_owned() } else { format!("{message}: {detail}") }
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
    /// The reason's text in a `Status`.
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

#[cfg(test)]
mod tests;
