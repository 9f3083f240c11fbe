//! Loads one plugin's file and lets it describe itself in the sandbox, as the host would.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use pilothouse_core::{grant::AdminFile, references};

use crate::{
    app,
    name::PluginName,
    plugin::call_limits,
    wasm::{Optimizing, PluginFile, Revision},
    yaml,
};

/// A plugin's file that has described itself.
pub(super) struct Described {
    pub(super) revision: Revision,
    /// Bytes of the file.
    pub(super) size: usize,
    /// The administrator's file.
    pub(super) file: AdminFile,
}

/// Loads and describes the file at `path`, with the configuration and the limits of the administrator's file: `file`, or else the one beside the
/// plugin.
///
/// # Errors
/// If one of the files cannot be read, or the plugin cannot be loaded or described.
pub(super) async fn describe(path: &Path, file: Option<&Path>) -> anyhow::Result<Described> {
    let bytes = fs::read(path)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    // A file with another name than a plugin may have can be described all the same.
    let name = PluginName::of_file(&stem).or_else(|error| PluginName::suggested(&stem).ok_or(error))?;
    let (from, file) = admin_file(path, file, &name)?;
    let placeholders = references::find(&file.config).map_err(anyhow::Error::msg)?;
    if !placeholders.is_empty() {
        eprintln!(
            "The configuration refers to {} values in the cluster. Each is replaced by a placeholder here.",
            placeholders.len()
        );
    }
    let config = references::resolve(&file.config, &|reference| Some(format!("({reference})")));
    let size = bytes.len();
    let linked = app::engine(None, Optimizing::Never)?.load(PluginFile::new(bytes)).await?.link().await?;
    let described = linked.describe(name, Arc::from(config.to_string()), call_limits(&file.limits)).await;
    let revision = described.with_context(|| match &from {
        Some(from) => format!("it was described with `config:` of {}", from.display()),
        None => {
            "there is no administrator's file beside it, so its configuration is empty; name one with --config FILE"
                .to_owned()
        }
    })?;
    Ok(Described { revision, size, file })
}

/// Reads the administrator's file that was named, or the one beside the plugin if there is one. Returns its path too.
pub(super) fn admin_file(
    plugin: &Path,
    named: Option<&Path>,
    name: &PluginName,
) -> anyhow::Result<(Option<PathBuf>, AdminFile)> {
    let beside = [plugin.with_extension("yaml"), plugin.with_file_name(format!("{name}.yaml"))];
    let candidates = named.map_or_else(|| beside.to_vec(), |named| vec![named.to_owned()]);
    for path in candidates {
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let file =
            yaml::read(&text).map_err(anyhow::Error::msg).with_context(|| format!("cannot use {}", path.display()))?;
        return Ok((Some(path), file));
    }
    Ok((None, AdminFile::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_administrators_file_is_the_named_one_or_lies_beside_the_plugin() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let (plugin, name) = (dir.path().join("my_site.wasm"), PluginName::new("my-site")?);
        let enabled = |named: Option<&Path>| admin_file(&plugin, named, &name).map(|(from, file)| (from, file.enabled));
        assert_eq!(enabled(None)?, (None, true));
        // Under the name of the plugin, as the host reads it, and under that of the component.
        let (of_plugin, of_file) = (dir.path().join("my-site.yaml"), dir.path().join("my_site.yaml"));
        fs::write(&of_plugin, "enabled: false")?;
        assert_eq!(enabled(None)?, (Some(of_plugin), false));
        fs::write(&of_file, "enabled: true")?;
        assert_eq!(enabled(None)?, (Some(of_file), true));
        let named = dir.path().join("other.yaml");
        assert!(enabled(Some(&named)).is_err());
        fs::write(&named, "enabled: no")?;
        assert_eq!(enabled(Some(&named))?, (Some(named.clone()), false));
        Ok(())
    }
}
