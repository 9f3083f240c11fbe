//! `pilothouse collect`: reads what a plugin needs from a cluster, and writes it as a case or as manifests.
//!
//! ```text
//! manifest ─► wanted: lists ─► pages ─► objects ─► clean: redacted, without what servers set ─► case │ manifests
//! ```

mod clean;
mod wanted;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs::OpenOptions,
    io::{self, IsTerminal, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use jiff::{Timestamp, Unit};
use pilothouse_apiserver::Server;
use pilothouse_core::{
    informer::InformerKey,
    key::TypeMeta,
    manifest::{Discovered, Manifest},
};
use serde_json::Value;

use self::{
    clean::{Cleaned, clean},
    wanted::{Wanted, wanted},
};
use super::describe::describe;
use crate::cluster::{self, Cluster, ConnectOptions, Select};

/// Write the objects that a plugin needs, from a cluster, as a case or as manifests
///
/// Reads the kinds, namespaces and selectors of the plugin's manifest, and the CustomResourceDefinitions of other
/// plugins that it needs. Of a kind that the plugin only makes, it takes the objects that belong to one of the others.
/// Changes nothing in the cluster.
///
/// Each value of a Secret is replaced; its keys stay. All other objects are written as they are, without
/// `managedFields`, uids and what else the server sets. Look through the file before you share it.
///
/// A kind that may not be read is reported, and the others are written. The exit code is then 1.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse collect target/plugins/myapple.wasm --output cases/staging.yaml --context staging
  pilothouse collect my-site.wasm --namespace shop --namespace blog | less
  pilothouse collect my-site.wasm --format manifests --output staging.yaml
  pilothouse dev --manifests staging.yaml")]
pub(super) struct Args {
    /// The plugin: a component, or a core module that wit-bindgen made
    #[arg(value_name = "PLUGIN.wasm")]
    plugin: PathBuf,
    /// Where to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file of --output if it exists
    #[arg(long, requires = "output")]
    force: bool,
    /// What is written
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Read only the objects in this namespace, and cluster-scoped ones; may be given several times
    #[arg(long, short, value_name = "NAME")]
    namespace: Vec<String>,
    /// The most objects to write
    #[arg(long, value_name = "N", default_value_t = MAX_OBJECTS)]
    limit: usize,
    /// The administrator's file, whose `config:` the plugin is given [default: NAME.yaml beside the plugin, if there is
    /// one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A kubeconfig file [default: $KUBECONFIG, then ~/.kube/config, then the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A case for `pilothouse test`, which expects nothing yet
    #[default]
    Case,
    /// A stream of objects for `pilothouse dev --manifests`
    Manifests,
}

/// Objects that are written at most, unless the user says otherwise. A case of this size takes seconds to begin.
const MAX_OBJECTS: usize = 10_000;

/// Bytes of JSON of all objects together.
const MAX_BYTES: usize = 256 << 20;

/// Objects of a page: client-go's size.
const PAGE: u32 = 500;

/// Tries of a page that the API server puts off, and of a list whose pages expire.
const TRIES: usize = 5;

/// The longest wait before a page that the API server puts off.
const MAX_WAIT: Duration = Duration::from_secs(30);

pub(super) fn main(args: &Args) -> anyhow::Result<()> {
    if let Some(output) = args.output.as_deref().filter(|output| output.exists() && !args.force) {
        bail!("{} exists: name another file with --output, or replace it with --force", output.display());
    }
    super::block_on(collect(args))
}

async fn collect(args: &Args) -> anyhow::Result<()> {
    let described = describe(&args.plugin, args.config.as_deref()).await;
    let described = described.with_context(|| format!("cannot use {}", args.plugin.display()))?;
    let connect = ConnectOptions { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
    let cluster = cluster::connect(&connect).await?;
    let mut reader = Reader::new(&cluster, args.limit);
    reader.read_all(described.revision.manifest(), &args.namespace).await?;
    let Reader { objects, failed, .. } = reader;
    let cleaned = clean(objects);
    let now = Timestamp::now().round(Unit::Second).unwrap_or_default();
    let text = match args.format {
        Format::Case => case(described.revision.plugin().as_str(), &cleaned, now)?,
        Format::Manifests => manifests(&cleaned)?,
    };
    write(args.output.as_deref(), &text).context("cannot write what was collected")?;
    cleaned.notes.iter().for_each(|note| eprintln!("{note}"));
    let objects = cleaned.objects.len();
    eprintln!("{objects} object{} written", if objects == 1 { "" } else { "s" });
    ensure!(failed.is_empty(), "these are missing, because they cannot be read:\n  {}", failed.join("\n  "));
    Ok(())
}

fn write(output: Option<&Path>, text: &str) -> io::Result<()> {
    match output {
        Some(path) => OpenOptions::new().write(true).create(true).truncate(true).open(path)?.write_all(text.as_bytes()),
        None => io::stdout().write_all(text.as_bytes()),
    }
}

/// Reads the objects.
struct Reader<'a> {
    cluster: &'a Cluster,
    limit: usize,
    bytes: usize,
    objects: Vec<Value>,
    /// The uids of `objects`.
    uids: HashSet<String>,
    /// What cannot be read, and why.
    failed: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(cluster: &'a Cluster, limit: usize) -> Self {
        Self { cluster, limit, bytes: 0, objects: Vec::new(), uids: HashSet::new(), failed: Vec::new() }
    }

    /// Reads all that the manifest asks for, and the definitions of its kinds.
    ///
    /// # Errors
    /// If the API server cannot be reached, or there are too many objects.
    async fn read_all(&mut self, manifest: &Manifest, namespaces: &[String]) -> anyhow::Result<()> {
        let discovered = if manifest.patterns.is_empty() {
            Discovered::default()
        } else {
            self.cluster.served(|api_version| manifest.looks_at(api_version)).await?
        };
        let requests = wanted(manifest, &discovered, namespaces);
        // Scope is known only to the server. A cluster-scoped kind has one list.
        let (mut done, mut kinds) = (BTreeSet::new(), BTreeMap::new());
        for Wanted { mut key, is_owned } in requests {
            let endpoint = match self.cluster.endpoint(&key.of).await {
                Ok(endpoint) => endpoint,
                Err(cluster::Error::Missing(of)) => {
                    eprintln!("{of}: not served, so there are no objects");
                    continue;
                }
                Err(error @ cluster::Error::Unreachable(_)) => return Err(error.into()),
                Err(error) => {
                    self.failed(&key, &error);
                    continue;
                }
            };
            if !endpoint.namespaced {
                key.namespace = None;
            }
            if !done.insert(key.clone()) {
                continue;
            }
            kinds.insert(key.of.clone(), format!("{}.{}", endpoint.plural, key.of.group()));
            match self.list(&key, is_owned).await? {
                Ok(count) => progress(&key, count, true),
                Err(error) => self.failed(&key, &error),
            }
        }
        let embedded = Server::new();
        let brought: Vec<Value> =
            manifest.crds.iter().filter_map(|definition| serde_json::from_str(definition).ok()).collect();
        for (of, name) in kinds {
            let is_brought = brought.iter().any(|definition| definition["metadata"]["name"] == *name);
            if !is_brought && embedded.kind(&of.api_version, &of.kind).is_none() {
                self.definition(&of, &name).await?;
            }
        }
        Ok(())
    }

    /// Reads the definition of a kind that neither the plugin nor an embedded API server has.
    async fn definition(&mut self, of: &TypeMeta, name: &str) -> anyhow::Result<()> {
        let crds = TypeMeta::new("apiextensions.k8s.io/v1", "CustomResourceDefinition");
        match self.cluster.get(&crds, None, name).await {
            Ok(body) => {
                let definition = serde_json::from_slice(&body).context("a definition is not JSON")?;
                self.add(definition, body.len())?;
            }
            Err(error) if error.is_not_found() => {
                // Nothing but its own server can serve such a kind.
                self.objects.retain(|object| object["apiVersion"] != *of.api_version || object["kind"] != *of.kind);
                self.failed.push(format!("{of}: it has no CustomResourceDefinition, so its objects are left out"));
            }
            Err(error @ cluster::Error::Unreachable(_)) => return Err(error.into()),
            Err(error) => self.failed.push(format!("the CustomResourceDefinition {name}: {error}")),
        }
        Ok(())
    }

    fn failed(&mut self, key: &InformerKey, error: &cluster::Error) {
        let is_denied = matches!(error, cluster::Error::Status(status) if status.code == 403);
        let hint = if is_denied && key.namespace.is_none() { "; --namespace NAME reads less" } else { "" };
        eprintln!("{key}: cannot be read");
        self.failed.push(format!("{key}: {error}{hint}"));
    }

    /// Reads a list in pages, and returns how many objects it keeps. `is_owned`: keeps only those that belong to
    /// another.
    async fn list(&mut self, key: &InformerKey, is_owned: bool) -> anyhow::Result<Result<usize, cluster::Error>> {
        let (before, mut token, mut restarts) = (self.objects.len(), None, 0);
        loop {
            let (page, bytes) = match self.page(key, token.as_deref()).await {
                Ok(page) => page,
                Err(cluster::Error::Status(status)) if status.code == 410 && restarts < TRIES => {
                    // The pages have expired. What is there already is not read twice.
                    (token, restarts) = (None, restarts + 1);
                    continue;
                }
                Err(error @ cluster::Error::Unreachable(_)) => return Err(error.into()),
                Err(error) => return Ok(Err(error)),
            };
            let Page { items, next } = page;
            let each = bytes / items.len().max(1);
            for mut object in items {
                object["apiVersion"] = (*key.of.api_version).into();
                object["kind"] = (*key.of.kind).into();
                let owners = object["metadata"]["ownerReferences"].as_array();
                let has_owner = owners
                    .into_iter()
                    .flatten()
                    .any(|owner| owner["uid"].as_str().is_some_and(|uid| self.uids.contains(uid)));
                if has_owner || !is_owned {
                    self.add(object, each)?;
                }
            }
            progress(key, self.objects.len() - before, false);
            match next {
                Some(next) => token = Some(next),
                None => return Ok(Ok(self.objects.len() - before)),
            }
        }
    }

    /// Reads one page. Waits if the API server puts it off.
    async fn page(&self, key: &InformerKey, token: Option<&str>) -> Result<(Page, usize), cluster::Error> {
        let select = Select {
            namespace: key.namespace.as_deref(),
            labels: key.labels.to_string(),
            fields: key.fields.to_string(),
            metadata_only: false,
        };
        let endpoint = self.cluster.endpoint(&key.of).await?;
        let mut tries = 1;
        let body = loop {
            match self.cluster.list(&endpoint, &select, PAGE, token, None).await {
                Err(error) if tries < TRIES && error.retry_after().is_some() => {
                    tokio::time::sleep(error.retry_after().unwrap_or_default().min(MAX_WAIT)).await;
                    tries += 1;
                }
                answer => break answer?,
            }
        };
        Page::parse(&body)
            .map(|page| (page, body.len()))
            .map_err(|source| cluster::Error::Answer { path: endpoint.plural.clone(), source: source.into() })
    }

    fn add(&mut self, object: Value, bytes: usize) -> anyhow::Result<()> {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        if !self.uids.insert(uid.to_owned()) {
            return Ok(());
        }
        ensure!(
            self.objects.len() < self.limit,
            "there are more than {} objects: read less with --namespace, or set --limit",
            self.limit
        );
        self.bytes += bytes;
        ensure!(
            self.bytes <= MAX_BYTES,
            "the objects have more than {} MiB: read less with --namespace",
            MAX_BYTES >> 20
        );
        self.objects.push(object);
        Ok(())
    }
}

/// A page of a list.
struct Page {
    items: Vec<Value>,
    /// The token of the next page.
    next: Option<String>,
}

impl Page {
    fn parse(body: &[u8]) -> serde_json::Result<Self> {
        let mut list: Value = serde_json::from_slice(body)?;
        let next = list["metadata"]["continue"].as_str().filter(|token| !token.is_empty()).map(str::to_owned);
        let Value::Array(items) = list["items"].take() else { return Ok(Self { items: Vec::new(), next }) };
        Ok(Self { items, next })
    }
}

/// Shows how far a list is: on a terminal after each page, and otherwise at its end.
fn progress(key: &InformerKey, count: usize, is_over: bool) {
    let is_terminal = io::stderr().is_terminal();
    let begin = if is_terminal { "\r\x1b[K" } else { "" };
    match (is_over, is_terminal) {
        (true, _) => eprintln!("{begin}{key}: {count}"),
        (false, true) => eprint!("{begin}{key}: {count} …"),
        (false, false) => {}
    }
}

/// Returns the objects as the given state of a case.
fn case(plugin: &str, cleaned: &Cleaned, now: Timestamp) -> anyhow::Result<String> {
    let mut text =
        format!("# What {plugin} needs of a cluster, by `pilothouse collect`. Values of Secrets are replaced.\n");
    cleaned.notes.iter().for_each(|note| text.push_str(&format!("# {note}\n")));
    text.push_str(&format!("name: the cluster at {now}\ngiven:\n  clock: {now}\n"));
    text.push_str(if cleaned.objects.is_empty() { "  objects: []\n" } else { "  objects:\n" });
    for object in &cleaned.objects {
        for (number, line) in yaml(object)?.lines().enumerate() {
            let begin = match (number, line) {
                (0, _) => "    - ",
                (_, "") => "",
                _ => "      ",
            };
            text.push_str(&format!("{begin}{line}\n"));
        }
    }
    text.push_str("# `pilothouse test --update` writes here what the plugin does.\nthen: {}\n");
    Ok(text)
}

/// Returns the objects as a stream of documents.
fn manifests(cleaned: &Cleaned) -> anyhow::Result<String> {
    let mut text = "# Values of Secrets are replaced.\n".to_owned();
    cleaned.notes.iter().for_each(|note| text.push_str(&format!("# {note}\n")));
    for namespace in &cleaned.namespaces {
        text.push_str(&format!("---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: {namespace}\n"));
    }
    for object in &cleaned.objects {
        text.push_str(&format!("---\n{}\n", yaml(object)?));
    }
    Ok(text)
}

fn yaml(object: &Value) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(object).context("cannot write an object as YAML")?;
    Ok(text.trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests;
