//! The plugin under test: compiled once, and described once for each configuration.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{Arc, OnceLock},
};

use anyhow::Context;
use parking_lot::Mutex;
use pilothouse_apiserver::Snapshot;
use pilothouse_core::grant::{self, AdminFile, Grants};
use serde_json::Value;

use super::super::describe;
use crate::{
    app,
    name::PluginName,
    plugin::{Candidate, call_limits},
    references::References,
    wasm::{Engine, Linked, Optimizing, PluginFile, Revision},
    writer::Identities,
};

/// A plugin that cases run.
pub(super) struct Plugin {
    pub(super) name: PluginName,
    pub(super) engine: Engine,
    linked: Linked,
    /// The administrator's file beside it.
    file: AdminFile,
    /// By configuration.
    described: Mutex<BTreeMap<Arc<str>, Arc<Described>>>,
}

/// What cases with one configuration share. They share no instance.
pub(super) struct Described {
    revision: Revision,
    /// The API server once the plugin's definitions are installed.
    pub(super) installed: OnceLock<Snapshot>,
}

impl Plugin {
    /// Loads and links the file at `path`. Reads the administrator's file beside it.
    ///
    /// # Errors
    /// If one of the files cannot be read, or the plugin does not fit the contract.
    pub(super) async fn load(path: &Path, cache: &Path) -> anyhow::Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = PluginName::of_file(&stem).or_else(|error| PluginName::suggested(&stem).ok_or(error))?;
        let (_, file) = describe::admin_file(path, None, &name)?;
        // Cases need the cores, and often end before the code would be optimized.
        let engine = app::engine(Some(cache), Optimizing::Never)?;
        let linked = engine.load(PluginFile::new(bytes)).await?.link().await?;
        Ok(Self { name, engine, linked, file, described: Mutex::default() })
    }

    /// Returns a revision with this configuration, which may do all that it asks for, and what it shares with other
    /// cases.
    ///
    /// # Errors
    /// If the plugin does not accept the configuration, or its manifest is not valid.
    pub(super) async fn candidate(&self, config: Option<&Value>) -> anyhow::Result<(Candidate, Arc<Described>)> {
        let config: Arc<str> = config.unwrap_or(&self.file.config).to_string().into();
        let limits: grant::Limits = self.file.limits;
        let known = self.described.lock().get(&config).cloned();
        let described = match known {
            Some(described) => described,
            None => {
                let revision = self.linked.describe(self.name.clone(), config.clone(), call_limits(&limits)).await?;
                let described = Arc::new(Described { revision, installed: OnceLock::new() });
                self.described.lock().entry(config).or_insert(described).clone()
            }
        };
        // Instances that are reused stay within a case.
        let revision = described.revision.with_limits(call_limits(&limits));
        let manifest = revision.manifest();
        let grants = Grants::all_asked(&manifest.permissions).with_http(&manifest.http, &[]);
        let identity = Identities::default().claim(&self.name, None)?;
        let webhooks = manifest.webhooks.clone();
        let candidate = Candidate {
            revision: Arc::new(revision),
            identity,
            act_as: None,
            grants: Arc::new(grants),
            webhooks,
            limits,
            references: References::default(),
        };
        Ok((candidate, described))
    }
}
