//! Loads one plugin's file and lets it describe itself in the sandbox, as the host would.

use std::{fs, io::ErrorKind, path::Path, sync::Arc};

use anyhow::Context;
use pilothouse_core::{
    grant::{self, AdminFile},
    references,
};

use crate::{
    app,
    name::PluginName,
    plugin::call_limits,
    wasm::{PluginFile, Revision},
    yaml,
};

/// A plugin's file that has described itself.
pub(super) struct Described {
    pub(super) revision: Revision,
    /// Bytes of the file.
    pub(super) size: usize,
    /// The limits in the administrator's file.
    pub(super) limits: grant::Limits,
}

/// Loads and describes the file at `path`, with the configuration and the limits of the administrator's file beside it.
///
/// # Errors
/// If one of the files cannot be read, or the plugin cannot be loaded or described.
pub(super) async fn describe(path: &Path) -> anyhow::Result<Described> {
    let bytes = fs::read(path)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    // A file with another name than a plugin may have can be described all the same.
    let name = PluginName::of_file(&stem).or_else(|error| PluginName::suggested(&stem).ok_or(error))?;
    let AdminFile { config, limits, .. } = admin_file(path)?;
    let placeholders = references::find(&config).map_err(anyhow::Error::msg)?;
    if !placeholders.is_empty() {
        eprintln!(
            "The configuration refers to {} values in the cluster. Each is replaced by a placeholder here.",
            placeholders.len()
        );
    }
    let config = references::resolve(&config, &|reference| Some(format!("({reference})")));
    let size = bytes.len();
    let linked = app::engine(None)?.load(PluginFile::new(bytes)).await?.link().await?;
    let revision = linked.describe(name, Arc::from(config.to_string()), call_limits(&limits)).await?;
    Ok(Described { revision, size, limits })
}

/// Reads the administrator's file beside the plugin, if there is one.
pub(super) fn admin_file(plugin: &Path) -> anyhow::Result<AdminFile> {
    let path = plugin.with_extension("yaml");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(AdminFile::default()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    yaml::read(&text).map_err(anyhow::Error::msg).with_context(|| format!("cannot use {}", path.display()))
}
