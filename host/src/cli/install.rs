//! `pilothouse manifests`: prints what an installation consists of. The source is the Helm chart in `deploy/chart`, so
//! that Helm installs the same.
//!
//! ```text
//! values.yaml ─► values ─► changed by --values, --set ─► templates ─► objects
//!                             plugins of --plugins ─┘ (rules, ConfigMaps)
//! ```

mod template;
mod values;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use pilothouse_apiserver::yaml;
use serde_json::{Value, json};

use super::run::ensure_directory;
use crate::name::PluginName;

/// Print the objects that run hosts in a cluster
///
/// The objects are a Namespace, the ServiceAccount with its RBAC rules, a Deployment, a Service, a PodDisruptionBudget and a NetworkPolicy; if
/// asked for, also a ServiceMonitor and a PrometheusRule. They are those of the Helm chart, which --chart writes, and take the same values.
///
/// With --plugins, the plugins of a directory are part of the installation, each in a ConfigMap, with the rules that `pilothouse rbac` prints. Large plugins need a volume or an image, which
/// `--set plugins.volume=…` and `--set plugins.copyFrom.image=…` name. No cluster is asked, and nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse manifests | kubectl apply --server-side -f -
  pilothouse manifests --namespace operators --plugins ./plugins --set image=registry.example.com/pilothouse:0.1.0
  pilothouse manifests --set 'plugins.volume={persistentVolumeClaim: {claimName: plugins}}'
  pilothouse manifests --set 'plugins.volume={image: {reference: registry.example.com/plugins:1.0}}'
  pilothouse manifests --set plugins.copyFrom.image=registry.example.com/plugins:1.0 --set metrics.serviceMonitor=true
  pilothouse manifests --show-values
  pilothouse manifests --chart ./chart && helm install pilothouse ./chart --namespace pilothouse --create-namespace")]
pub(super) struct Args {
    /// The namespace of the installation
    #[arg(long, short, value_name = "NAMESPACE", default_value = "pilothouse", value_parser = label)]
    namespace: String,
    /// The name of the installation, and of its objects
    #[arg(long, value_name = "NAME", default_value = "pilothouse", value_parser = label)]
    name: String,
    /// The directory of plugins
    #[arg(long, value_name = "DIR")]
    plugins: Option<PathBuf>,
    /// A file of values, as for Helm; may be given several times, and later ones win
    #[arg(long, short = 'f', value_name = "FILE")]
    values: Vec<PathBuf>,
    /// A single value in YAML, which wins over those of files; may be given several times
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Print the values in force instead of objects
    #[arg(long, conflicts_with = "plugins")]
    show_values: bool,
    /// Write the Helm chart to this new directory, and print nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["plugins", "values", "set", "show_values"])]
    chart: Option<PathBuf>,
}

/// Includes files of the folder `deploy`.
macro_rules! files {
    ($folder:literal: $($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../deploy/", $folder, "/", $path)))),*]
    };
}

/// The files of the chart, those of objects in the order in which they are printed.
const CHART: &[(&str, &str)] = files!("chart":
    "Chart.yaml",
    "values.yaml",
    "values.schema.json",
    "templates/NOTES.txt",
    "templates/service-account.yaml",
    "templates/rbac.yaml",
    "templates/service.yaml",
    "templates/network-policy.yaml",
    "templates/disruption-budget.yaml",
    "templates/deployment.yaml",
    "templates/service-monitor.yaml",
    "templates/alerts.yaml",
);

/// Helm creates the namespace itself, so it is not part of the chart.
const NAMESPACE: &str = include_str!("../../../deploy/namespace.yaml");

/// Bytes of all files of a ConfigMap: Kubernetes' own bound.
const MAX_CONFIG_MAP: usize = 1 << 20;

/// Bytes of a namespace's name, and of a label's value.
const MAX_LABEL: usize = 63;

/// `rules` returns the Roles that the plugins of a directory need, for a namespace and a name of the installation.
pub(super) fn main(args: &Args, rules: impl FnOnce(&Path, &str, &str) -> anyhow::Result<String>) -> anyhow::Result<()> {
    if let Some(folder) = &args.chart {
        return write_chart(folder);
    }
    if args.show_values && args.values.is_empty() && args.set.is_empty() {
        print!("{}", chart_file("values.yaml"));
        return Ok(());
    }
    let mut values = changed_values(&args.values, &args.set)?;
    if args.show_values {
        print!("{}", serde_saphyr::to_string(&values).context("cannot print the values as YAML")?);
        return Ok(());
    }
    let plugins = args.plugins.as_deref().map_or_else(|| Ok(Vec::new()), PluginFiles::read_all)?;
    let config_maps = config_maps(&plugins, &args.namespace, &args.name, &mut values)?;
    let mut text = objects(&args.namespace, &args.name, &values)?;
    for config_map in config_maps {
        let yaml = serde_saphyr::to_string(&config_map).context("cannot print a ConfigMap as YAML")?;
        let _ = write!(text, "---\n{}\n", yaml.trim_end());
    }
    if let Some(plugins) = args.plugins.as_deref().filter(|_| values["rbac"]["create"] == true) {
        text.push_str(&rules(plugins, &args.namespace, &args.name)?);
    }
    print!("{text}");
    Ok(())
}

/// Returns the values of the chart, changed by files and then by single settings.
fn changed_values(files: &[PathBuf], settings: &[String]) -> anyhow::Result<Value> {
    let mut values = yaml::first(chart_file("values.yaml")).context("cannot read the chart's values")?.value;
    for file in files {
        let cannot = || format!("cannot use the values in {}", file.display());
        let text = fs::read_to_string(file).with_context(cannot)?;
        let changes: Value = crate::yaml::read(&text).map_err(anyhow::Error::msg).with_context(cannot)?;
        values::change(&mut values, changes).with_context(cannot)?;
    }
    for setting in settings {
        values::setting(setting)
            .and_then(|changes| values::change(&mut values, changes))
            .context("cannot use --set")?;
    }
    Ok(values)
}

/// Returns the objects of an installation as YAML documents: the namespace, and those of the chart.
fn objects(namespace: &str, name: &str, values: &Value) -> anyhow::Result<String> {
    let scope = json!({"Values": values, "Release": {"Namespace": namespace, "Name": name}});
    let templates = CHART.iter().filter(|(path, _)| path.starts_with("templates/") && path.ends_with(".yaml"));
    let mut text = String::new();
    for (path, template) in [("namespace.yaml", NAMESPACE)].iter().chain(templates) {
        let rendered = template::render(template, &scope).with_context(|| format!("cannot render {path}"))?;
        if !rendered.is_empty() {
            let _ = write!(text, "---\n{}\n", rendered.trim_end());
        }
    }
    match yaml::documents(&text).1 {
        None => Ok(text),
        Some(error) => bail!("the objects would be no valid YAML with these values: {error}"),
    }
}

/// What hosts do that needs rights.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    /// They serve webhooks.
    pub(super) webhooks: bool,
    /// They share the plugins.
    pub(super) spread: bool,
}

/// Returns the Roles and bindings of an installation as YAML documents.
pub(super) fn rbac(namespace: &str, name: &str, uses: Uses) -> anyhow::Result<String> {
    let mut values = changed_values(&[], &[])?;
    values["webhooks"] = uses.webhooks.into();
    values["spread"] = uses.spread.into();
    let scope = json!({"Values": values, "Release": {"Namespace": namespace, "Name": name}});
    template::render(chart_file("templates/rbac.yaml"), &scope).context("cannot render templates/rbac.yaml")
}

fn chart_file(path: &str) -> &'static str {
    CHART.iter().find(|(known, _)| *known == path).map_or("", |(_, text)| text)
}

fn write_chart(folder: &Path) -> anyhow::Result<()> {
    ensure!(!folder.exists(), "{} exists: name a new directory for the chart", folder.display());
    for (path, text) in CHART {
        let path = folder.join(path);
        let cannot = || format!("cannot write {}", path.display());
        fs::create_dir_all(path.parent().unwrap_or(folder)).with_context(cannot)?;
        fs::write(&path, text).with_context(cannot)?;
    }
    Ok(())
}

/// A plugin's file, and the administrator's.
struct PluginFiles {
    name: PluginName,
    /// The name of the file in the directory.
    file: String,
    wasm: Vec<u8>,
    /// The administrator's file: its name and its text.
    settings: Option<(String, String)>,
}

impl PluginFiles {
    /// Reads the plugins of a directory, in the order of their files.
    fn read_all(directory: &Path) -> anyhow::Result<Vec<Self>> {
        ensure_directory(directory)?;
        let cannot = |path: &Path| format!("cannot read {}", path.display());
        let entries = fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let mut paths: Vec<_> =
            entries.with_context(|| cannot(directory))?.into_iter().map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "wasm"));
        ensure!(!paths.is_empty(), "there is no plugin (NAME.wasm) in {}", directory.display());
        paths.sort();
        let plugins = paths.into_iter().map(|path| -> anyhow::Result<Self> {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let name = PluginName::of_file(&stem).with_context(|| cannot(&path))?;
            let beside = [path.with_extension("yaml"), path.with_file_name(format!("{name}.yaml"))];
            let settings = match beside.into_iter().find(|path| path.exists()) {
                Some(path) => {
                    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    Some((file, fs::read_to_string(&path).with_context(|| cannot(&path))?))
                }
                None => None,
            };
            let wasm = fs::read(&path).with_context(|| cannot(&path))?;
            Ok(Self { file: format!("{stem}.wasm"), name, wasm, settings })
        });
        plugins.collect()
    }
}

/// Returns a ConfigMap for each plugin, and makes them the volume of plugins. Returns none if the values name another
/// source of plugins.
fn config_maps(plugins: &[PluginFiles], namespace: &str, name: &str, values: &mut Value) -> anyhow::Result<Vec<Value>> {
    let has_source = values["plugins"]["volume"] != json!({}) || values["plugins"]["copyFrom"]["image"] != "";
    if plugins.is_empty() || has_source {
        return Ok(Vec::new());
    }
    let mut config_maps = Vec::new();
    for plugin in plugins {
        let bytes = plugin.wasm.len() + plugin.settings.as_ref().map_or(0, |(_, text)| text.len());
        ensure!(
            bytes <= MAX_CONFIG_MAP,
            "the plugin {} has {bytes} bytes, and a ConfigMap holds at most {MAX_CONFIG_MAP}: strip the file, or bring the \
             plugins by a volume or an image, with --set plugins.volume=… or --set plugins.copyFrom.image=…",
            plugin.name
        );
        let mut config_map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": format!("{name}-plugin-{}", plugin.name),
                "namespace": namespace,
                "labels": {"app.kubernetes.io/name": "pilothouse", "app.kubernetes.io/instance": name},
            },
            "binaryData": {(plugin.file.clone()): STANDARD.encode(&plugin.wasm)},
        });
        if let Some((file, text)) = &plugin.settings {
            config_map["data"] = json!({(file.clone()): text});
        }
        config_maps.push(config_map);
    }
    let sources = config_maps.iter().map(|map| json!({"configMap": {"name": map["metadata"]["name"]}}));
    values["plugins"]["volume"] = json!({"projected": {"sources": sources.collect::<Vec<_>>()}});
    Ok(config_maps)
}

/// Checks a name that Services and labels may have, and that YAML reads as a text.
pub(super) fn label(text: &str) -> Result<String, String> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = text.len() <= MAX_LABEL
        && text.bytes().all(|byte| is_inner(byte) || byte == b'-')
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase())
        && text.bytes().next_back().is_some_and(is_inner);
    if is_label && yaml::first(text).is_ok_and(|document| document.value.is_string()) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "it must have 1 to {MAX_LABEL} lower-case letters, digits and `-`, begin with a letter, and not be a word like `on`"
    ))
}

#[cfg(test)]
mod tests;
