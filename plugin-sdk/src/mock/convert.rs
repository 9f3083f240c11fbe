//! Converts the contract's records, as the SDK has them, to those of the core, so that the mock decides with the host's code.

use std::sync::Arc;

use pilothouse_core::{
    field::{FieldPath, FieldSet},
    key as core,
    manifest::{self, FailurePolicy, Mapping, MetricType, Operation, Policy, WebhookRule, WebhookType, raw},
    object::{self, Object},
    selector::FieldSelector,
};
use serde_json::Value;

use crate::{
    Key, TypeMeta, Verb,
    client::Subresource,
    contract::{
        exports::pilothouse::plugin::controller::{self as wire, Manifest, Watch},
        pilothouse::plugin::types,
    },
};

impl From<&TypeMeta> for core::TypeMeta {
    fn from(of: &TypeMeta) -> Self {
        Self::new(&of.api_version, &of.kind)
    }
}

impl From<&core::TypeMeta> for TypeMeta {
    fn from(of: &core::TypeMeta) -> Self {
        Self::new(&*of.api_version, &*of.kind)
    }
}

impl From<&Key> for core::Key {
    fn from(key: &Key) -> Self {
        Self::new(key.namespace.as_deref(), &key.name)
    }
}

impl From<&core::Key> for Key {
    fn from(key: &core::Key) -> Self {
        Self { namespace: key.namespace.as_deref().map(ToOwned::to_owned), name: key.name.to_string() }
    }
}

/// Reads an object of the mock's cluster as the host reads those of a server.
///
/// # Panics
/// Panics if no API server would have such an object.
#[track_caller]
pub(super) fn object(object: &Value) -> Arc<Object> {
    match Object::parse_unstored(object.to_string().as_bytes(), &core::TypeMeta::new("", "")) {
        Ok(object) => Arc::new(object),
        Err(error) => panic!("an API server would not have this object: {error}: {object}"),
    }
}

/// Returns the single values of an object at a path.
pub(super) fn values(object: &Object, path: &FieldPath) -> Vec<String> {
    let json = object.json();
    let values = FieldSet::new([path.clone()]).values(&json).unwrap_or_default();
    values.into_iter().flatten().map(|value| value.into_owned()).collect()
}

/// Returns `true` if the fields of an object match. The mock does not know by which fields a server selects a kind, so any path
/// of names is one.
pub(super) fn selects(selector: &FieldSelector, object: &Object) -> bool {
    selector.matches(|field| {
        let path = FieldPath::parse(field).ok()?;
        values(object, &path).into_iter().next().map(Into::into)
    })
}

pub(super) fn verb(verb: Verb) -> manifest::Verb {
    match verb {
        Verb::Read => manifest::Verb::Read,
        Verb::Create => manifest::Verb::Create,
        Verb::Update => manifest::Verb::Update,
        Verb::Patch => manifest::Verb::Patch,
        Verb::Apply => manifest::Verb::Apply,
        Verb::Delete => manifest::Verb::Delete,
    }
}

pub(super) fn subresource(subresource: Subresource) -> object::Subresource {
    match subresource {
        Subresource::Status => object::Subresource::Status,
        Subresource::Scale => object::Subresource::Scale,
        Subresource::Eviction => object::Subresource::Eviction,
        Subresource::Log => object::Subresource::Log,
        Subresource::Approval => object::Subresource::Approval,
        Subresource::EphemeralContainers => object::Subresource::EphemeralContainers,
        Subresource::Resize => object::Subresource::Resize,
    }
}

pub(super) fn manifest(manifest: &Manifest) -> raw::Manifest {
    raw::Manifest {
        version: manifest.version.clone(),
        description: manifest.description.clone(),
        controllers: manifest.controllers.iter().map(controller).collect(),
        indexes: manifest.indexes.iter().map(index).collect(),
        observes: manifest.observes.iter().map(watch).collect(),
        permissions: manifest.permissions.iter().map(permission).collect(),
        crds: manifest.crds.clone(),
        config_schema: manifest.config_schema.clone(),
        instances: match manifest.instances {
            wire::InstancePolicy::Fresh => Policy::Fresh,
            wire::InstancePolicy::Reuse => Policy::Reuse,
        },
        http: manifest.http.iter().map(http).collect(),
        webhooks: manifest.webhooks.iter().map(webhook).collect(),
        metrics: manifest.metrics.iter().map(metric).collect(),
    }
}

fn controller(controller: &wire::Controller) -> raw::Controller {
    raw::Controller {
        name: controller.name.clone(),
        for_: watch(&controller.for_),
        owns: controller.owns.iter().map(watch).collect(),
        watches: controller.watches.iter().map(mapped).collect(),
        reads: controller.reads.iter().map(watch).collect(),
        max_concurrency: controller.max_concurrency,
        resync_seconds: controller.resync_seconds,
        timeout_ms: controller.timeout_ms,
        finalizer: controller.finalizer.clone(),
    }
}

pub(super) fn watch(watch: &Watch) -> raw::Watch {
    raw::Watch {
        of: type_meta(&watch.of),
        except: watch.except.iter().map(type_meta).collect(),
        with_verbs: watch.with_verbs.clone(),
        namespaces: watch.namespaces.clone(),
        labels: watch.labels.clone(),
        fields: watch.fields.clone(),
        metadata_only: watch.metadata_only,
        without: watch.without.clone(),
        compressed: watch.compressed,
        when: watch.when.iter().map(|all| all.iter().map(condition).collect()).collect(),
    }
}

fn mapped(mapped: &wire::MappedWatch) -> raw::MappedWatch {
    let mapping = match &mapped.mapping {
        wire::Mapping::Owner => raw::Mapping::Owner,
        wire::Mapping::AnyOwner => raw::Mapping::AnyOwner,
        wire::Mapping::SameKey => raw::Mapping::SameKey,
        wire::Mapping::Label(label) => raw::Mapping::Label(label.clone()),
        wire::Mapping::Index(index) => raw::Mapping::Index(index.clone()),
        wire::Mapping::Plugin => raw::Mapping::Plugin,
    };
    raw::MappedWatch { watch: watch(&mapped.watch), mapping }
}

fn condition(condition: &wire::Condition) -> raw::Condition {
    let test = match &condition.test {
        wire::Test::Generation => raw::Test::Generation,
        wire::Test::Labels => raw::Test::Labels,
        wire::Test::Annotations => raw::Test::Annotations,
        wire::Test::Finalizers => raw::Test::Finalizers,
        wire::Test::Deletion => raw::Test::Deletion,
        wire::Test::ResourceVersion => raw::Test::ResourceVersion,
        wire::Test::Cel(expression) => raw::Test::Cel(expression.clone()),
    };
    raw::Condition { test, negated: condition.negated }
}

fn index(index: &wire::Index) -> raw::Index {
    raw::Index { name: index.name.clone(), of: type_meta(&index.of), path: index.path.clone() }
}

fn permission(permission: &wire::Permission) -> raw::Permission {
    raw::Permission {
        of: type_meta(&permission.of),
        subresource: permission.subresource.map(subresource),
        verbs: permission.verbs.iter().copied().map(verb).collect(),
        namespaces: permission.namespaces.clone(),
        names: permission.names.clone(),
    }
}

fn http(asked: &wire::HttpPermission) -> raw::HttpPermission {
    raw::HttpPermission {
        host: asked.host.clone(),
        port: asked.port,
        plain: asked.plain,
        methods: asked.methods.clone(),
    }
}

fn webhook(webhook: &wire::Webhook) -> raw::Webhook {
    raw::Webhook {
        name: webhook.name.clone(),
        of_type: match webhook.of_type {
            wire::WebhookType::Validating => WebhookType::Validating,
            wire::WebhookType::Mutating => WebhookType::Mutating,
        },
        rules: webhook.rules.iter().map(rule).collect(),
        on_failure: match webhook.on_failure {
            wire::FailurePolicy::Fail => FailurePolicy::Fail,
            wire::FailurePolicy::Ignore => FailurePolicy::Ignore,
        },
        timeout_seconds: webhook.timeout_seconds,
        namespaces: webhook.namespaces.clone(),
        labels: webhook.labels.clone(),
        match_conditions: webhook.match_conditions.clone(),
        reinvoke: webhook.reinvoke,
        reads: webhook.reads.iter().map(watch).collect(),
    }
}

fn rule(rule: &wire::WebhookRule) -> WebhookRule {
    let operation = |operation: &types::Operation| match operation {
        types::Operation::Create => Operation::Create,
        types::Operation::Update => Operation::Update,
        types::Operation::Delete => Operation::Delete,
        types::Operation::Connect => Operation::Connect,
    };
    WebhookRule {
        api_groups: rule.api_groups.clone(),
        api_versions: rule.api_versions.clone(),
        resources: rule.resources.clone(),
        operations: rule.operations.iter().map(operation).collect(),
    }
}

fn metric(metric: &wire::Metric) -> raw::Metric {
    raw::Metric {
        name: metric.name.clone(),
        of_type: match metric.of_type {
            wire::MetricType::Counter => MetricType::Counter,
            wire::MetricType::Gauge => MetricType::Gauge,
            wire::MetricType::Histogram => MetricType::Histogram,
        },
        help: metric.help.clone(),
        labels: metric.labels.clone(),
        buckets: metric.buckets.clone(),
    }
}

fn type_meta(of: &TypeMeta) -> raw::TypeMeta {
    raw::TypeMeta { api_version: of.api_version.clone(), kind: of.kind.clone() }
}

/// Converts a mapping for a controller's kind, of which the mock does not know whether it is namespaced: for both, if the plugin does
/// not map itself.
pub(super) fn routes(mapping: &Mapping, of: &core::TypeMeta) -> impl Iterator<Item = pilothouse_core::route::Mapping> {
    [true, false]
        .into_iter()
        .filter_map(move |namespaced| pilothouse_core::route::Mapping::new(mapping, of, namespaced))
}
