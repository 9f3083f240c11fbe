//! Converts the manifest from the contract's records to the core's.

use pilothouse_core::manifest::{
    FailurePolicy, Invalid, Manifest, Mapping, MetricType, Operation, Policy, Problem, Verb, WebhookRule, WebhookType,
    raw,
};

use super::{
    bindings::{exports::pilothouse::plugin::controller as wit, pilothouse::plugin::types},
    export::Export,
    imports::host_state::subresource,
    package::full_name,
};

/// Converts and checks a manifest.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn from_wit(manifest: wit::Manifest) -> Result<Manifest, Invalid> {
    raw::Manifest {
        version: manifest.version,
        description: manifest.description,
        controllers: manifest.controllers.into_iter().map(controller).collect(),
        indexes: manifest.indexes.into_iter().map(index).collect(),
        observes: manifest.observes.into_iter().map(watch).collect(),
        permissions: manifest.permissions.into_iter().map(permission).collect(),
        crds: manifest.crds,
        config_schema: manifest.config_schema,
        instances: match manifest.instances {
            wit::InstancePolicy::Fresh => Policy::Fresh,
            wit::InstancePolicy::Reuse => Policy::Reuse,
        },
        http: manifest.http.into_iter().map(http_permission).collect(),
        webhooks: manifest.webhooks.into_iter().map(webhook).collect(),
        metrics: manifest.metrics.into_iter().map(metric).collect(),
    }
    .check()
}

/// Rejects a manifest that needs an optional export which the component does not have.
pub(crate) fn check_exports(manifest: &Manifest, exports: impl Fn(Export) -> bool) -> Result<(), Invalid> {
    let mut problems = Vec::new();
    let mut need = |export: Export, at: String, instead: &str| {
        if !exports(export) {
            let export = full_name(export.interface());
            let what = format!("needs {export}, which the component does not export: export it, or {instead}");
            problems.push(Problem { at, what });
        }
    };
    for (controller, place) in manifest.controllers.iter().zip(0..) {
        for (watch, at) in controller.watches.iter().zip(0..) {
            if watch.mapping == Mapping::Plugin {
                let at = format!("controllers[{place}].watches[{at}].mapping");
                need(Export::Mapper, at, "choose another mapping");
            }
        }
    }
    if !manifest.observes.is_empty() || !manifest.patterns.is_empty() {
        need(Export::Observer, "observes".to_owned(), "observe nothing");
    }
    if !manifest.webhooks.is_empty() {
        need(Export::Admission, "webhooks".to_owned(), "declare no webhook");
    }
    if manifest.needs_conversion() {
        need(Export::Conversion, "crds".to_owned(), "choose another spec.conversion.strategy");
    }
    if problems.is_empty() { Ok(()) } else { Err(Invalid { problems }) }
}

fn controller(controller: wit::Controller) -> raw::Controller {
    raw::Controller {
        name: controller.name,
        for_: watch(controller.for_),
        owns: controller.owns.into_iter().map(watch).collect(),
        watches: controller.watches.into_iter().map(mapped_watch).collect(),
        reads: controller.reads.into_iter().map(watch).collect(),
        max_concurrency: controller.max_concurrency,
        resync_seconds: controller.resync_seconds,
        timeout_ms: controller.timeout_ms,
        finalizer: controller.finalizer,
    }
}

pub(super) fn watch(watch: wit::Watch) -> raw::Watch {
    raw::Watch {
        of: type_meta(watch.of),
        except: watch.except.into_iter().map(type_meta).collect(),
        with_verbs: watch.with_verbs,
        namespaces: watch.namespaces,
        labels: watch.labels,
        fields: watch.fields,
        metadata_only: watch.metadata_only,
        without: watch.without,
        compressed: watch.compressed,
        when: watch.when.into_iter().map(|all| all.into_iter().map(condition).collect()).collect(),
    }
}

fn mapped_watch(mapped: wit::MappedWatch) -> raw::MappedWatch {
    let mapping = match mapped.mapping {
        wit::Mapping::Owner => raw::Mapping::Owner,
        wit::Mapping::AnyOwner => raw::Mapping::AnyOwner,
        wit::Mapping::SameKey => raw::Mapping::SameKey,
        wit::Mapping::Label(label) => raw::Mapping::Label(label),
        wit::Mapping::Index(index) => raw::Mapping::Index(index),
        wit::Mapping::Plugin => raw::Mapping::Plugin,
    };
    raw::MappedWatch { watch: watch(mapped.watch), mapping }
}

fn condition(condition: wit::Condition) -> raw::Condition {
    let test = match condition.test {
        wit::Test::Generation => raw::Test::Generation,
        wit::Test::Labels => raw::Test::Labels,
        wit::Test::Annotations => raw::Test::Annotations,
        wit::Test::Finalizers => raw::Test::Finalizers,
        wit::Test::Deletion => raw::Test::Deletion,
        wit::Test::ResourceVersion => raw::Test::ResourceVersion,
        wit::Test::Cel(expression) => raw::Test::Cel(expression),
    };
    raw::Condition { test, negated: condition.negated }
}

fn index(index: wit::Index) -> raw::Index {
    raw::Index { name: index.name, of: type_meta(index.of), path: index.path }
}

fn permission(permission: wit::Permission) -> raw::Permission {
    raw::Permission {
        of: type_meta(permission.of),
        subresource: permission.subresource.map(subresource),
        verbs: permission.verbs.into_iter().map(verb).collect(),
        namespaces: permission.namespaces,
        names: permission.names,
    }
}

fn http_permission(asked: wit::HttpPermission) -> raw::HttpPermission {
    raw::HttpPermission { host: asked.host, port: asked.port, plain: asked.plain, methods: asked.methods }
}

fn webhook(webhook: wit::Webhook) -> raw::Webhook {
    raw::Webhook {
        name: webhook.name,
        of_type: match webhook.of_type {
            wit::WebhookType::Validating => WebhookType::Validating,
            wit::WebhookType::Mutating => WebhookType::Mutating,
        },
        rules: webhook.rules.into_iter().map(webhook_rule).collect(),
        on_failure: match webhook.on_failure {
            wit::FailurePolicy::Fail => FailurePolicy::Fail,
            wit::FailurePolicy::Ignore => FailurePolicy::Ignore,
        },
        timeout_seconds: webhook.timeout_seconds,
        namespaces: webhook.namespaces,
        labels: webhook.labels,
        match_conditions: webhook.match_conditions,
        reinvoke: webhook.reinvoke,
        reads: webhook.reads.into_iter().map(watch).collect(),
    }
}

fn webhook_rule(rule: wit::WebhookRule) -> WebhookRule {
    let operation = |operation| match operation {
        types::Operation::Create => Operation::Create,
        types::Operation::Update => Operation::Update,
        types::Operation::Delete => Operation::Delete,
        types::Operation::Connect => Operation::Connect,
    };
    WebhookRule {
        api_groups: rule.api_groups,
        api_versions: rule.api_versions,
        resources: rule.resources,
        operations: rule.operations.into_iter().map(operation).collect(),
    }
}

fn metric(metric: wit::Metric) -> raw::Metric {
    raw::Metric {
        name: metric.name,
        of_type: match metric.of_type {
            wit::MetricType::Counter => MetricType::Counter,
            wit::MetricType::Gauge => MetricType::Gauge,
            wit::MetricType::Histogram => MetricType::Histogram,
        },
        help: metric.help,
        labels: metric.labels,
        buckets: metric.buckets,
    }
}

fn type_meta(of: types::TypeMeta) -> raw::TypeMeta {
    raw::TypeMeta { api_version: of.api_version, kind: of.kind }
}

fn verb(verb: wit::Verb) -> Verb {
    match verb {
        wit::Verb::Read => Verb::Read,
        wit::Verb::Create => Verb::Create,
        wit::Verb::Update => Verb::Update,
        wit::Verb::Patch => Verb::Patch,
        wit::Verb::Apply => Verb::Apply,
        wit::Verb::Delete => Verb::Delete,
    }
}
