//! `pilothouse dev --controllers`: plugins that stand in for the controllers and nodes of a cluster.
//!
//! They are plugins of this repository, and are not part of the program. Here they are found, and enabled whatever
//! their files say.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use pilothouse_apiserver::yaml;
use serde_json::json;

use crate::{
    name::PluginName,
    plugin::{Found, SettingsFile},
    wasm::PluginFile,
};

/// The plugins: Deployments get ReplicaSets and these get Pods, and Pods become ready.
const NAMES: [&str; 2] = ["deployment", "kubelet-stand-in"];

/// The plugins of the checkout that this program was built in.
const BUILT_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/plugins");

/// The stand-ins, and the directory that they are in.
#[derive(Debug)]
pub(super) struct StandIns {
    pub(super) directory: PathBuf,
    pub(super) plugins: Vec<Arc<Found>>,
}

impl StandIns {
    /// Reads the stand-ins of the directory that the user named. By default, they are beside this program, in the
    /// folder `plugins` of the build that it belongs to, or in the checkout that it was built in.
    ///
    /// # Errors
    /// One of them is missing, or cannot be read.
    pub(super) fn read(named: Option<&Path>) -> anyhow::Result<Self> {
        let looked_in = named.map_or_else(defaults, |named| vec![named.to_owned()]);
        let has_all = |directory: &&PathBuf| NAMES.iter().all(|name| file(directory, name, "wasm").is_file());
        let Some(directory) = looked_in.iter().find(has_all).cloned() else {
            let looked_in: Vec<String> = looked_in.iter().map(|directory| directory.display().to_string()).collect();
            bail!(
                "--controllers needs {}.wasm, which are not in {}: run `make plugins` in a checkout of Pilothouse, and name its target/plugins \
                 with --controllers=DIR",
                NAMES.join(".wasm and "),
                looked_in.join(", nor in ")
            );
        };
        let plugins = NAMES.into_iter().map(|name| read(&directory, name)).collect::<anyhow::Result<_>>()?;
        Ok(Self { directory, plugins })
    }

    /// Returns the files of a directory of plugins that the stand-ins replace.
    pub(super) fn replaced(&self, plugins: &Path) -> Vec<PathBuf> {
        let files = self.plugins.iter().map(|plugin| file(plugins, plugin.name.as_str(), "wasm"));
        let is_other = |path: &PathBuf| path.is_file() && path.parent() != Some(self.directory.as_path());
        files.filter(is_other).collect()
    }
}

fn file(directory: &Path, name: &str, extension: &str) -> PathBuf {
    directory.join(format!("{name}.{extension}"))
}

fn defaults() -> Vec<PathBuf> {
    let program = env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent).map(Path::to_owned);
    let build = beside.as_deref().and_then(Path::parent).map(|build| build.join("plugins"));
    let mut directories: Vec<PathBuf> = beside.into_iter().chain(build).chain([BUILT_IN.into()]).collect();
    directories.dedup_by_key(|directory| directory.canonicalize().unwrap_or_else(|_| directory.clone()));
    directories
}

fn read(directory: &Path, name: &str) -> anyhow::Result<Arc<Found>> {
    let path = file(directory, name, "wasm");
    let wasm = PluginFile::new(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    let path = file(directory, name, "yaml");
    let settings = match fs::read_to_string(&path) {
        Ok(text) => SettingsFile::Text(enabled(&text).into()),
        Err(_) if !path.exists() => SettingsFile::Missing,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let name = PluginName::new(name)?;
    Ok(Arc::new(Found { name, digest: wasm.digest(), wasm: wasm.into(), settings }))
}

/// Returns an administrator's file with `enabled: true`. One that is not valid stays as it is, so that the host says
/// why.
fn enabled(text: &str) -> String {
    let (documents, error) = yaml::documents(text);
    match (<[_; 1]>::try_from(documents), error) {
        (Ok([mut document]), None) if document.value.is_object() => {
            document.value["enabled"] = json!(true);
            document.value.to_string()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stand_ins_are_read_and_enabled_whatever_their_files_say() -> anyhow::Result<()> {
        let (dir, plugins) = (tempfile::tempdir()?, tempfile::tempdir()?);
        fs::write(dir.path().join("deployment.wasm"), "code")?;
        let error = StandIns::read(Some(dir.path())).expect_err("one is missing").to_string();
        assert!(error.contains("needs deployment.wasm and kubelet-stand-in.wasm, which are not in /"), "{error}");
        assert!(error.contains("run `make plugins`"), "{error}");
        fs::write(dir.path().join("kubelet-stand-in.wasm"), "other code")?;
        fs::write(dir.path().join("kubelet-stand-in.yaml"), "# not here\nenabled: false\nlimits: {memoryMiB: 8}\n")?;
        let found = StandIns::read(Some(dir.path()))?;
        let settings: Vec<_> =
            found.plugins.iter().map(|plugin| (plugin.name.as_str(), plugin.settings.clone())).collect();
        let text = r#"{"enabled":true,"limits":{"memoryMiB":8}}"#;
        assert_eq!(
            settings,
            [("deployment", SettingsFile::Missing), ("kubelet-stand-in", SettingsFile::Text(text.into()))]
        );
        assert!(found.replaced(dir.path()).is_empty());
        assert!(found.replaced(plugins.path()).is_empty());
        fs::write(plugins.path().join("deployment.wasm"), "older code")?;
        assert_eq!(found.replaced(plugins.path()), [plugins.path().join("deployment.wasm")]);
        Ok(())
    }

    #[test]
    fn they_are_looked_for_beside_the_program_in_its_build_and_in_the_checkout() {
        let directories = defaults();
        assert!(directories.iter().any(|directory| directory.ends_with("plugins")), "{directories:?}");
        assert_eq!(
            directories.first().map(PathBuf::as_path),
            env::current_exe().ok().as_deref().and_then(Path::parent)
        );
    }
}
