//! A plugin's project: what its language needs to build it, and where the result lies.
//!
//! ```text
//! Cargo.toml     ─► cargo build ─────────────────┐
//! pyproject.toml ─► .venv, pilothouse.build ─────┼─► build/NAME.wasm, build/NAME.yaml
//! package.json   ─► npm install, npm run build ──┤
//! go.mod         ─► go run pilothouse-build ─────┘
//! ```

mod go;
mod javascript;
mod python;
mod rust;
mod tools;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};

use super::language::Language;
use crate::name::PluginName;

/// How the plugin is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Profile {
    /// To be shipped: fast code.
    Release,
    /// Soon built, into a folder of its own. Only Rust makes a difference.
    Debug,
}

/// The project of a plugin.
#[derive(Clone, Debug)]
pub(super) struct Project {
    pub(super) dir: PathBuf,
    pub(super) language: Language,
}

/// A component that a build made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Component {
    pub(super) name: PluginName,
    pub(super) file: PathBuf,
}

impl Project {
    /// Finds the project in a folder.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn open(dir: &Path) -> anyhow::Result<Self> {
        if !dir.is_dir() {
            bail!("there is no folder {}", dir.display());
        }
        let Some(language) = Language::of_project(dir) else {
            bail!(
                "there is no project in {}: it has no Cargo.toml, pyproject.toml, package.json or go.mod; `pilothouse new NAME` makes a project",
                dir.display()
            );
        };
        Ok(Self { dir: dir.to_owned(), language })
    }

    /// Returns the folder for what is built. A host can use it as the directory of plugins.
    pub(super) fn output(&self, profile: Profile) -> PathBuf {
        match profile {
            Profile::Release => self.dir.join("build"),
            Profile::Debug => self.dir.join("build/debug"),
        }
    }

    /// Builds the plugin, or all plugins of the project. The output of tools goes to standard error.
    ///
    /// # Errors
    /// A tool is missing, or fails.
    pub(super) async fn build(&self, profile: Profile) -> anyhow::Result<Vec<Component>> {
        let output = self.output(profile);
        fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;
        let output = output.canonicalize().with_context(|| format!("cannot use {}", output.display()))?;
        match self.language {
            Language::Rust => {
                let mut components = Vec::new();
                for built in rust::build(&self.dir, profile).await? {
                    let name = self.deliver_settings(&built, &output)?;
                    let file = output.join(format!("{name}.wasm"));
                    install(&built, &file).with_context(|| format!("cannot write {}", file.display()))?;
                    components.push(Component { name, file });
                }
                Ok(components)
            }
            Language::Python | Language::JavaScript | Language::TypeScript | Language::Go => {
                let name = match self.language {
                    Language::Python => python::name(&self.dir)?,
                    Language::Go => go::name(&self.dir)?,
                    _ => javascript::name(&self.dir)?,
                };
                let file = output.join(format!("{name}.wasm"));
                let name = self.deliver_settings(&file, &output)?;
                match self.language {
                    Language::Python => python::build(&self.dir, &file).await?,
                    Language::Go => go::build(&self.dir, &file).await?,
                    _ => javascript::build(&self.dir, &file).await?,
                }
                if !file.is_file() {
                    bail!("the build ended without an error, and {} does not exist", file.display());
                }
                Ok(vec![Component { name, file }])
            }
        }
    }

    /// Returns the plugin's name by the name of its file, and copies NAME.yaml into `output`. The grants come first, so that a host that loads the
    /// component at once finds them.
    fn deliver_settings(&self, component: &Path, output: &Path) -> anyhow::Result<PluginName> {
        let stem = component.file_stem().unwrap_or_default().to_string_lossy();
        let name = PluginName::of_file(&stem).context("the project's name is not that of a plugin")?;
        let settings = self.dir.join(format!("{name}.yaml"));
        if settings.is_file() {
            let copy = output.join(format!("{name}.yaml"));
            install(&settings, &copy).with_context(|| format!("cannot write {}", copy.display()))?;
        }
        Ok(name)
    }
}

/// Copies a file, unless the copy has the same content. The copy is renamed into place, so that no host loads half a file.
fn install(from: &Path, to: &Path) -> io::Result<()> {
    let content = fs::read(from)?;
    if fs::read(to).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let hidden = to.with_file_name(format!(".{name}.{}", std::process::id()));
    fs::write(&hidden, content)?;
    fs::rename(&hidden, to).inspect_err(|_| drop(fs::remove_file(&hidden)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_known_by_the_file_of_its_package_manager() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let error = Project::open(dir.path()).expect_err("it is empty").to_string();
        assert!(error.contains("no Cargo.toml, pyproject.toml, package.json or go.mod"), "{error}");
        assert!(Project::open(&dir.path().join("none")).is_err());
        for (file, language) in [
            ("go.mod", Language::Go),
            ("package.json", Language::JavaScript),
            ("tsconfig.json", Language::TypeScript),
            ("pyproject.toml", Language::Python),
            ("Cargo.toml", Language::Rust),
        ] {
            fs::write(dir.path().join(file), "")?;
            assert_eq!(Project::open(dir.path())?.language, language);
        }
        Ok(())
    }

    #[test]
    fn a_file_with_the_same_content_is_not_written_again() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::write(&from, "one")?;
        install(&from, &to)?;
        let before = fs::metadata(&to)?.modified()?;
        install(&from, &to)?;
        assert_eq!(fs::metadata(&to)?.modified()?, before);
        fs::write(&from, "two")?;
        install(&from, &to)?;
        assert_eq!(fs::read_to_string(&to)?, "two");
        assert_eq!(fs::read_dir(dir.path())?.count(), 2);
        Ok(())
    }

    #[test]
    fn grants_are_copied_under_the_name_of_the_plugin() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("my-site.yaml"), "enabled: true")?;
        let project = Project { dir: dir.path().to_owned(), language: Language::Rust };
        let output = project.output(Profile::Debug);
        fs::create_dir_all(&output)?;
        let name = project.deliver_settings(Path::new("/target/my_site.wasm"), &output)?;
        assert_eq!(name.as_str(), "my-site");
        assert_eq!(fs::read_to_string(output.join("my-site.yaml"))?, "enabled: true");
        Ok(())
    }
}
