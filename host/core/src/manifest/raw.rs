//! A manifest as the plugin's `describe` returned it: the records of `wit/controller.wit`, unchecked.

use super::{FailurePolicy, MetricType, Policy, Verb, WebhookRule, WebhookType};
use crate::object::Subresource;

/// The record `manifest`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct Manifest {
    pub version: String,
    pub description: String,
    pub controllers: Vec<Controller>,
    pub indexes: Vec<Index>,
    pub observes: Vec<Watch>,
    pub permissions: Vec<Permission>,
    pub crds: Vec<String>,
    pub config_schema: Option<String>,
    pub instances: Policy,
    pub http: Vec<HttpPermission>,
    pub webhooks: Vec<Webhook>,
    pub metrics: Vec<Metric>,
}

/// The record `controller`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct Controller {
    pub name: String,
    pub for_: Watch,
    pub owns: Vec<Watch>,
    pub watches: Vec<MappedWatch>,
    pub reads: Vec<Watch>,
    pub max_concurrency: u32,
    pub resync_seconds: Option<u32>,
    pub timeout_ms: Option<u32>,
    pub finalizer: Option<String>,
}

/// The record `watch`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct Watch {
    pub of: TypeMeta,
    pub except: Vec<TypeMeta>,
    pub with_verbs: Vec<String>,
    pub namespaces: Vec<String>,
    pub labels: Option<String>,
    pub fields: Option<String>,
    pub metadata_only: bool,
    pub without: Vec<String>,
    pub compressed: bool,
    pub when: Vec<Vec<Condition>>,
}

/// The record `condition`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct Condition {
    pub test: Test,
    pub negated: bool,
}

/// The variant `test`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub enum Test {
    Generation,
    Labels,
    Annotations,
    Finalizers,
    Deletion,
    ResourceVersion,
    Cel(String),
}

/// The record `mapped-watch`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct MappedWatch {
    pub watch: Watch,
    pub mapping: Mapping,
}

/// The variant `mapping`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub enum Mapping {
    Owner,
    AnyOwner,
    SameKey,
    Label(String),
    Index(String),
    Plugin,
}

/// The record `index`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct Index {
    pub name: String,
    pub of: TypeMeta,
    pub path: String,
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

/// The record `http-permission`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct HttpPermission {
    pub host: String,
    pub port: Option<u16>,
    pub plain: bool,
    pub methods: Vec<String>,
}

/// The record `webhook`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct Webhook {
    pub name: String,
    pub of_type: WebhookType,
    pub rules: Vec<WebhookRule>,
    pub on_failure: FailurePolicy,
    pub timeout_seconds: Option<u32>,
    pub namespaces: Option<String>,
    pub labels: Option<String>,
    pub match_conditions: Vec<(String, String)>,
    pub reinvoke: bool,
    pub reads: Vec<Watch>,
}

/// The record `metric`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/controller.wit says it")]
pub struct Metric {
    pub name: String,
    pub of_type: MetricType,
    pub help: String,
    pub labels: Vec<String>,
    pub buckets: Vec<String>,
}

/// The record `type-meta`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "wit/types.wit says it")]
pub struct TypeMeta {
    pub api_version: String,
    pub kind: String,
}
