//! A manifest as the plugin's `describe` gave it: the records of `wit/controller.wit`, nothing checked.

use super::Verb;
use crate::object::Subresource;

/// The record `manifest`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct Manifest {
    pub version: String,
    pub description: String,
    pub controllers: Vec<Controller>,
    pub permissions: Vec<Permission>,
    pub crds: Vec<String>,
    pub config_schema: Option<String>,
}

/// The record `controller`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct Controller {
    pub name: String,
    pub for_: Watch,
    pub owns: Vec<Watch>,
    pub max_concurrency: u32,
    pub timeout_ms: Option<u32>,
}

/// The record `watch`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct Watch {
    pub of: TypeMeta,
    pub namespaces: Vec<String>,
    pub labels: Option<String>,
}

/// The record `permission`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct Permission {
    pub of: TypeMeta,
    pub subresource: Option<Subresource>,
    pub verbs: Vec<Verb>,
    pub namespaces: Vec<String>,
    pub names: Vec<String>,
}

/// The record `type-meta`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/types.wit says it")]
pub struct TypeMeta {
    pub api_version: String,
    pub kind: String,
}
