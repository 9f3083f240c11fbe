//! `pilothouse inspect`: what a plugin is and asks for.

use std::{fmt::Write as _, fs, sync::Arc};

use anyhow::Context;
use pilothouse_core::{
    grant::{AdminFile, Grants},
    manifest::{MappedWatch, Mapping, Watch},
    predicate::{Condition, Predicate, Test},
};
use serde_json::json;

use super::args::{InspectArgs, Output};
use crate::{
    app,
    wasm::{Limits, PluginName, Revision},
};

pub(super) fn main(args: &InspectArgs) -> anyhow::Result<()> {
    let cannot = || format!("cannot inspect {}", args.plugin.display());
    let bytes = fs::read(&args.plugin).with_context(cannot)?;
    let stem = args.plugin.file_stem().unwrap_or_default().to_string_lossy();
    let name = PluginName::new(&stem).with_context(cannot)?;
    let config = admin_config(args).with_context(cannot)?;
    let size = bytes.len();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let revision = runtime.block_on(async {
        let linked = app::engine(None)?.load(bytes.into()).await?.link()?;
        let revision = linked.describe(name, config, Limits::default()).await?;
        anyhow::Ok(revision)
    });
    let revision = revision.with_context(cannot)?;
    match args.output {
        Output::Text => print!("{}", text(&revision, size)),
        Output::Json => println!("{:#}", as_json(&revision, size)),
    }
    Ok(())
}

/// The configuration in the administrator's file beside the plugin, if there is one: some plugins describe themselves by it.
fn admin_config(args: &InspectArgs) -> anyhow::Result<Arc<str>> {
    let path = args.plugin.with_extension("yaml");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok("{}".into()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let file: AdminFile = serde_saphyr::from_str(&text).with_context(|| format!("cannot use {}", path.display()))?;
    Ok(file.config.to_string().into())
}

/// For people: what it is, what runs, what it is made of, and what to grant.
fn text(revision: &Revision, size: usize) -> String {
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
    }
    for index in &manifest.indexes {
        row("index", &format!("{} of {} by {}", index.name, index.of, index.path));
    }
    for observed in &manifest.observes {
        row("observes", &watch(observed));
    }
    if let Some(schema) = &manifest.config_schema {
        row("config", schema);
    }
    let _ = write!(
        text,
        "\nTo allow all that it asks for, {}.yaml beside it holds:\n\n{}",
        revision.plugin(),
        Grants::yaml(&manifest.permissions)
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

fn crd_name(crd: &str) -> String {
    let crd: serde_json::Value = serde_json::from_str(crd).unwrap_or_default();
    crd["metadata"]["name"].as_str().unwrap_or("without a name").to_owned()
}

/// The same for programs.
fn as_json(revision: &Revision, size: usize) -> serde_json::Value {
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
        "observes": manifest.observes.iter().map(watch).collect::<Vec<_>>(),
        "permissions": permissions,
        "configSchema": manifest.config_schema,
    })
}
