//! `pilothouse inspect`: prints what a plugin is and asks for.

use std::{fmt::Write as _, num::NonZeroU32, path::PathBuf, time::Duration};

use anyhow::Context;
use clap::ValueEnum;
use pilothouse_core::{
    grant,
    key::TypeMeta,
    manifest::{HttpPermission, MappedWatch, Mapping, Watch, WatchPattern},
    predicate::{Condition, Predicate, Test},
};
use serde_json::json;

use super::describe::{Described, describe};
use crate::{plugin::all_grants, wasm::Revision};

/// Show what a plugin is and asks for
///
/// Loads the plugin in the sandbox, as the host would, and lets it describe itself. Prints its manifest, imports and size, and
/// the permissions that it asks for as the administrator's file grants them. The file may have any name.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse inspect target/plugins/myapple.wasm
  pilothouse inspect target/wasm32-unknown-unknown/debug/my_site.wasm --config my-site.yaml
  pilothouse inspect build/my-site.wasm --crds | kubectl apply --server-side -f -
  pilothouse inspect target/plugins/myapple.wasm --output json | jq .permissions")]
pub(super) struct Args {
    /// The plugin: a component, or a core module that wit-bindgen made
    #[arg(value_name = "PLUGIN.wasm")]
    pub(super) plugin: PathBuf,
    /// The form of the output
    #[arg(long, short, value_enum, default_value_t)]
    pub(super) output: Output,
    /// The administrator's file, whose `config:` the plugin is given [default: NAME.yaml beside the plugin, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Print only the CustomResourceDefinitions that the plugin brings, as YAML
    #[arg(long, conflicts_with = "output")]
    pub(super) crds: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

pub(super) fn main(args: &Args) -> anyhow::Result<()> {
    let described = super::block_on(describe(&args.plugin, args.config.as_deref()));
    let Described { revision, size, file } =
        described.with_context(|| format!("cannot inspect {}", args.plugin.display()))?;
    if args.crds {
        print!("{}", crds(&revision.manifest().crds)?);
        return Ok(());
    }
    match args.output {
        Output::Text => print!("{}", text(&revision, size, &file.limits)),
        Output::Json => println!("{:#}", as_json(&revision, size, &file.limits)),
    }
    Ok(())
}

/// Returns CustomResourceDefinitions as YAML documents.
fn crds(crds: &[String]) -> anyhow::Result<String> {
    let mut text = String::new();
    for crd in crds {
        let value: serde_json::Value =
            serde_json::from_str(crd).context("a CustomResourceDefinition is not valid JSON")?;
        let yaml = serde_saphyr::to_string(&value).context("cannot print a CustomResourceDefinition as YAML")?;
        let _ = write!(text, "---\n{}\n", yaml.trim_end());
    }
    Ok(text)
}

/// A limit, under its key in `limits` of the administrator's file.
struct Limit {
    key: &'static str,
    /// For people.
    value: String,
    /// For programs. Null if there is no limit.
    json: serde_json::Value,
    /// `true` if the file does not set it.
    default: bool,
}

/// Returns all limits that the administrator can set.
fn all_limits(revision: &Revision, file: &grant::Limits) -> Vec<Limit> {
    // A new limit does not compile until it is listed here.
    let grant::Limits {
        memory_mib,
        total_memory_mib,
        watches,
        metric_series,
        timeout_ms,
        host_calls,
        host_mib,
        reuse,
        max_concurrency,
        cpu_weight,
        cpu_milli,
        reconciles_per_second,
        requests_per_second,
        http_requests_per_second,
        backoff_base_ms,
        backoff_cap_ms,
    } = *file;
    let (limits, backoff) = (revision.limits(), file.pace().backoff);
    let millis = |delay: Duration| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    let number =
        |key, value: u64, set: bool| Limit { key, value: value.to_string(), json: value.into(), default: !set };
    let some = |key, value: Option<NonZeroU32>, otherwise: &str| Limit {
        key,
        value: value.map_or_else(|| otherwise.to_owned(), |value| value.to_string()),
        json: value.map(NonZeroU32::get).into(),
        default: value.is_none(),
    };
    let mib = |bytes: usize| u64::try_from(bytes >> 20).unwrap_or(u64::MAX);
    vec![
        number("memoryMiB", mib(limits.memory), memory_mib.is_some()),
        number("totalMemoryMiB", mib(limits.total_memory), total_memory_mib.is_some()),
        number("watches", file.watches().get().into(), watches.is_some()),
        number("metricSeries", file.metric_series().get().into(), metric_series.is_some()),
        some("timeoutMs", timeout_ms, "as the manifest says"),
        number("hostCalls", limits.host_calls.into(), host_calls.is_some()),
        number("hostMiB", mib(limits.host_bytes), host_mib.is_some()),
        Limit { key: "reuse", value: limits.reuse.to_string(), json: limits.reuse.into(), default: reuse.is_none() },
        some("maxConcurrency", max_concurrency, "as the manifest says"),
        number("cpuWeight", file.share().weight.get().into(), cpu_weight.is_some()),
        some("cpuMilli", cpu_milli, "none"),
        some("reconcilesPerSecond", reconciles_per_second, "none"),
        some("requestsPerSecond", requests_per_second, "none"),
        some("httpRequestsPerSecond", http_requests_per_second, "none"),
        number("backoffBaseMs", millis(backoff.base), backoff_base_ms.is_some()),
        number("backoffCapMs", millis(backoff.cap), backoff_cap_ms.is_some()),
    ]
}

/// Returns the description for people.
fn text(revision: &Revision, size: usize, limits: &grant::Limits) -> String {
    let manifest = revision.manifest();
    let mut text = String::new();
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<13} {value}");
    };
    row("plugin", &format!("{} {}", revision.plugin(), manifest.version));
    row("", &manifest.description);
    row("digest", &revision.digest().to_string());
    row("size", &format!("{size} bytes"));
    row("imports", &revision.linked().imports().join(", "));
    row("exports", &revision.linked().exports().join(", "));
    for crd in &manifest.crds {
        row("brings", &format!("CustomResourceDefinition {}", crd_name(crd)));
    }
    for controller in &manifest.controllers {
        row("controller", &controller.name);
        row("  for", &watch(&controller.for_));
        for owned in &controller.owns {
            row("  owns", &watch(owned));
        }
        for mapped in &controller.watches {
            row("  watches", &format!("{}, mapped by {}", watch(&mapped.watch), mapping(&mapped.mapping)));
        }
        for read in &controller.reads {
            row("  reads", &watch(read));
        }
        row("  workers", &controller.max_concurrency.to_string());
        row("  deadline", &format!("{} ms", controller.timeout.as_millis()));
        let resync = controller.resync.map_or("never".to_owned(), |every| format!("every {} s", every.as_secs()));
        row("  resync", &resync);
        if let Some(finalizer) = &controller.finalizer {
            row("  finalizer", finalizer);
        }
    }
    for index in &manifest.indexes {
        row("index", &format!("{} of {} by {}", index.name, index.of, index.path));
    }
    for observed in &manifest.observes {
        row("observes", &watch(observed));
    }
    for WatchPattern { watch: observed, except, with_verbs } in &manifest.patterns {
        let names = |kinds: &[TypeMeta]| kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let except = if except.is_empty() { String::new() } else { format!(", except {}", names(except)) };
        let verbs = if with_verbs.is_empty() { String::new() } else { format!(", with {}", with_verbs.join(", ")) };
        row("observes", &format!("{}{except}{verbs}", watch(observed)));
    }
    for HttpPermission { host, port, plain, methods } in &manifest.http {
        let methods: Vec<&str> = methods.iter().map(String::as_str).collect();
        row("http", &format!("{} {}://{host}:{port}", methods.join(", "), scheme(*plain)));
    }
    for webhook in &manifest.webhooks {
        let resources: Vec<String> = webhook.rules.iter().map(|rule| rule.resources.join(", ")).collect();
        let failure = webhook.on_failure.as_str();
        row("webhook", &format!("{} for {}, on failure {failure}", webhook.name, resources.join(", ")));
        for read in &webhook.reads {
            row("  reads", &watch(read));
        }
    }
    for metric in &manifest.metrics {
        let by = if metric.labels.is_empty() { "" } else { " by " };
        row("metric", &format!("{}{by}{}", metric.name, metric.labels.join(", ")));
    }
    if let Some(schema) = &manifest.config_schema {
        row("config", schema);
    }
    row("instances", manifest.instances.as_str());
    for (place, Limit { key, value, default, .. }) in all_limits(revision, limits).iter().enumerate() {
        let default = if *default { " (default)" } else { "" };
        row(if place == 0 { "limits" } else { "" }, &format!("{key:<21} {value}{default}"));
    }
    let _ = write!(
        text,
        "\nTo grant all that it asks for, put this into {}.yaml beside it:\n\n{}",
        revision.plugin(),
        all_grants(manifest)
    );
    text
}

/// `v1 Pod in web where app=a and spec.nodeName=n, metadata only, when generation or labels`.
fn watch(watch: &Watch) -> String {
    let mut text = watch.of.to_string();
    if !watch.namespaces.is_empty() {
        let _ = write!(text, " in {}", watch.namespaces.join(", "));
    }
    let labels = watch.labels.as_ref().map(ToString::to_string);
    let fields = watch.fields.as_ref().map(ToString::to_string);
    let selectors: Vec<String> = labels.into_iter().chain(fields).filter(|selector| !selector.is_empty()).collect();
    if !selectors.is_empty() {
        let _ = write!(text, " where {}", selectors.join(" and "));
    }
    if !watch.keep.is_whole() {
        let _ = write!(text, ", {}", watch.keep);
    }
    if watch.compressed {
        text.push_str(", compressed");
    }
    if !watch.when.is_empty() {
        let _ = write!(text, ", when {}", when(&watch.when));
    }
    text
}

/// `generation or labels and not deletion`.
fn when(predicate: &Predicate) -> String {
    let all = |all: &Vec<Condition>| all.iter().map(condition).collect::<Vec<_>>().join(" and ");
    predicate.any().iter().map(all).collect::<Vec<_>>().join(" or ")
}

fn condition(condition: &Condition) -> String {
    let test = match &condition.test {
        Test::Generation => "generation".to_owned(),
        Test::Labels => "labels".to_owned(),
        Test::Annotations => "annotations".to_owned(),
        Test::Finalizers => "finalizers".to_owned(),
        Test::Deletion => "deletion".to_owned(),
        Test::ResourceVersion => "resource-version".to_owned(),
        Test::Cel(expression) => format!("`{}`", expression.text()),
    };
    if condition.negated { format!("not {test}") } else { test }
}

fn mapping(mapping: &Mapping) -> String {
    match mapping {
        Mapping::Owner => "owner".to_owned(),
        Mapping::AnyOwner => "any owner".to_owned(),
        Mapping::SameKey => "same key".to_owned(),
        Mapping::Label(label) => format!("label {label}"),
        Mapping::Index(index) => format!("index {index}"),
        Mapping::Plugin => "the plugin".to_owned(),
    }
}

fn scheme(plain: bool) -> &'static str {
    if plain { "http" } else { "https" }
}

fn crd_name(crd: &str) -> String {
    let crd: serde_json::Value = serde_json::from_str(crd).unwrap_or_default();
    crd["metadata"]["name"].as_str().unwrap_or("without a name").to_owned()
}

/// Returns the description for programs.
fn as_json(revision: &Revision, size: usize, limits: &grant::Limits) -> serde_json::Value {
    let manifest = revision.manifest();
    let watch = |watch: &Watch| {
        json!({
            "apiVersion": *watch.of.api_version,
            "kind": *watch.of.kind,
            "namespaces": watch.namespaces,
            "labels": watch.labels.as_ref().map(ToString::to_string),
            "fields": watch.fields.as_ref().map(ToString::to_string),
            "metadataOnly": watch.keep.metadata_only(),
            "without": watch.keep.without().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "compressed": watch.compressed,
            "when": watch.when.any().iter().map(|all| all.iter().map(condition).collect::<Vec<_>>()).collect::<Vec<_>>(),
        })
    };
    let pattern = |WatchPattern { watch: of_kinds, except, with_verbs }: &WatchPattern| {
        let mut pattern = watch(of_kinds);
        let kind = |of: &TypeMeta| json!({ "apiVersion": *of.api_version, "kind": *of.kind });
        pattern["except"] = except.iter().map(kind).collect();
        pattern["withVerbs"] = json!(with_verbs);
        pattern
    };
    let mapped = |mapped: &MappedWatch| json!({ "watch": watch(&mapped.watch), "mapping": mapping(&mapped.mapping) });
    let indexes = manifest.indexes.iter();
    let indexes: Vec<_> = indexes
        .map(|index| {
            json!({
                "name": index.name,
                "apiVersion": *index.of.api_version,
                "kind": *index.of.kind,
                "path": index.path.to_string(),
            })
        })
        .collect();
    let controllers: Vec<_> = manifest
        .controllers
        .iter()
        .map(|controller| {
            json!({
                "name": controller.name,
                "for": watch(&controller.for_),
                "owns": controller.owns.iter().map(watch).collect::<Vec<_>>(),
                "watches": controller.watches.iter().map(mapped).collect::<Vec<_>>(),
                "reads": controller.reads.iter().map(watch).collect::<Vec<_>>(),
                "resyncSeconds": controller.resync.map(|every| every.as_secs()),
                "maxConcurrency": controller.max_concurrency,
                "timeoutMs": u64::try_from(controller.timeout.as_millis()).unwrap_or(u64::MAX),
                "finalizer": controller.finalizer,
            })
        })
        .collect();
    let permissions: Vec<_> = manifest
        .permissions
        .iter()
        .map(|permission| {
            json!({
                "apiVersion": *permission.of.api_version,
                "kind": *permission.of.kind,
                "subresource": permission.subresource.map(|subresource| subresource.as_str()),
                "verbs": permission.verbs.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "namespaces": permission.namespaces,
                "names": permission.names,
            })
        })
        .collect();
    let http = manifest.http.iter().map(|HttpPermission { host, port, plain, methods }| {
        json!({ "host": host.to_string(), "port": port, "plain": plain, "methods": methods })
    });
    let metrics = manifest.metrics.iter().map(|metric| json!({ "name": metric.name, "labels": metric.labels }));
    let limits: serde_json::Map<_, _> =
        all_limits(revision, limits).into_iter().map(|limit| (limit.key.to_owned(), limit.json)).collect();
    json!({
        "plugin": revision.plugin().as_str(),
        "version": manifest.version,
        "description": manifest.description,
        "digest": revision.digest().to_string(),
        "size": size,
        "imports": revision.linked().imports(),
        "exports": revision.linked().exports(),
        "crds": manifest.crds.iter().map(|crd| crd_name(crd)).collect::<Vec<_>>(),
        "controllers": controllers,
        "indexes": indexes,
        "observes": manifest.observes.iter().map(watch).chain(manifest.patterns.iter().map(pattern)).collect::<Vec<_>>(),
        "permissions": permissions,
        "http": http.collect::<Vec<_>>(),
        "metrics": metrics.collect::<Vec<_>>(),
        "configSchema": manifest.config_schema,
        "instances": manifest.instances.as_str(),
        "limits": limits,
    })
}

#[cfg(test)]
mod tests {
    use pilothouse_core::grant::AdminFile;

    use super::*;
    use crate::{
        name::PluginName,
        plugin::call_limits,
        wasm::{Engine, testing::Guest},
    };

    async fn shown(yaml: &str) -> (Revision, grant::Limits) {
        let file: AdminFile = serde_saphyr::from_str(yaml).expect("it is an administrator's file");
        let engine = Engine::new().expect("there is an engine");
        let compiled = engine.compile(&Guest::new().reuse().file()).expect("it is a plugin");
        let linked = compiled.link().await.expect("it links");
        let name = PluginName::new("apples").expect("it is a name");
        let revision =
            linked.describe(name, "{}".into(), call_limits(&file.limits)).await.expect("it describes itself");
        (revision, file.limits)
    }

    #[tokio::test]
    async fn every_limit_is_shown_under_its_key() {
        let (revision, limits) =
            shown("limits: { memoryMiB: 8, reuse: false, cpuMilli: 500, backoffCapMs: 60000 }").await;
        let text = text(&revision, 1, &limits);
        let from = text.find("instances").expect("it says what becomes of instances");
        let to = text.find("\nTo grant").expect("it says what to grant");
        insta::assert_snapshot!(&text[from..to], @r"
        instances     reuse
        limits        memoryMiB             8
                      totalMemoryMiB        1024 (default)
                      watches               64 (default)
                      metricSeries          1000 (default)
                      timeoutMs             as the manifest says (default)
                      hostCalls             100000 (default)
                      hostMiB               1024 (default)
                      reuse                 false
                      maxConcurrency        as the manifest says (default)
                      cpuWeight             100 (default)
                      cpuMilli              500
                      reconcilesPerSecond   none (default)
                      requestsPerSecond     none (default)
                      httpRequestsPerSecond none (default)
                      backoffBaseMs         5 (default)
                      backoffCapMs          60000
        ");
        let json = as_json(&revision, 1, &limits);
        assert_eq!(
            (json["instances"].as_str(), json["limits"].to_string().as_str()),
            (
                Some("reuse"),
                r#"{"backoffBaseMs":5,"backoffCapMs":60000,"cpuMilli":500,"cpuWeight":100,"hostCalls":100000,"hostMiB":1024,"httpRequestsPerSecond":null,"maxConcurrency":null,"memoryMiB":8,"metricSeries":1000,"reconcilesPerSecond":null,"requestsPerSecond":null,"reuse":false,"timeoutMs":null,"totalMemoryMiB":1024,"watches":64}"#
            )
        );
    }

    #[test]
    fn definitions_are_printed_as_yaml_that_kubernetes_reads_as_the_same() {
        let crds_of = [
            r#"{"apiVersion":"apiextensions.k8s.io/v1","spec":{"versions":[{"name":"v1","served":true}],"empty":{},"y":"yes","mode":"0644","on":"1e3","text":"a: b\n#c\n","none":null,"number":"12","list":[[1,"- x"],[]]}}"#,
            r#"{"kind":"CustomResourceDefinition"}"#,
        ];
        let printed = crds(&crds_of.map(str::to_owned)).expect("they are printed");
        let (documents, error) = pilothouse_apiserver::yaml::documents(&printed);
        assert_eq!(error, None, "{printed}");
        let read: Vec<_> =
            documents.into_iter().map(|document| document.value).filter(|value| !value.is_null()).collect();
        let meant: Vec<serde_json::Value> =
            crds_of.iter().map(|crd| serde_json::from_str(crd).expect("it is JSON")).collect();
        assert_eq!(read, meant, "{printed}");
    }
}
