//! `pilothouse new`: makes the project of a plugin.

mod names;
mod sdk;
mod template;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};

use self::{names::Names, sdk::Sdk};
use super::language::Language;

/// Make the project of a new plugin
///
/// The project builds, tests and reconciles at once. Its plugin brings a kind of its own, and keeps a ConfigMap and a status for every object of
/// that kind. Nothing outside the new folder is changed.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse new my-site
  pilothouse new my-site --lang python
  pilothouse new greeter --kind apps.example.com/v1alpha1/Greeting --dir operators/greeter
  pilothouse new my-site --sdk https://github.com/example/pilothouse

Then:
  cd my-site
  pilothouse build
  pilothouse dev")]
pub(super) struct Args {
    /// The name of the project and of its plugin: lower-case letters, digits and `-`
    #[arg(value_name = "NAME")]
    name: String,
    /// The language
    #[arg(long, value_enum, value_name = "LANGUAGE", default_value_t, hide_possible_values = false)]
    lang: Language,
    /// The kind that the plugin reconciles [default: example.com/v1 and the name in CamelCase]
    #[arg(long, value_name = "GROUP/VERSION/KIND")]
    kind: Option<String>,
    /// A checkout of Pilothouse, or the URL of its git repository [default: the checkout that this program was built in]
    ///
    /// The project takes the SDK from there, because the SDKs are not published yet.
    #[arg(long, value_name = "PATH|URL")]
    sdk: Option<String>,
    /// The new folder [default: NAME]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn main(args: &Args) -> anyhow::Result<()> {
    let names = Names::new(&args.name, args.kind.as_deref())?;
    let dir = args.dir.clone().unwrap_or_else(|| args.name.clone().into());
    ensure_free(&dir)?;
    let sdk = Sdk::find(args.sdk.as_deref(), args.lang)?;
    let Some(files) = template::project(args.lang, &names, &sdk.reference(args.lang)?) else {
        bail!("there is no template for {} yet", args.lang);
    };
    for (path, text) in &files {
        let path = dir.join(path);
        let cannot = || format!("cannot write {}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(cannot)?;
        }
        fs::write(&path, text).with_context(cannot)?;
    }
    print!("{}", report(args.lang, &names, &sdk, &dir, &files));
    Ok(())
}

/// Refuses a folder that has anything in it.
fn ensure_free(dir: &Path) -> anyhow::Result<()> {
    ensure!(!dir.as_os_str().is_empty(), "--dir is empty: name a folder");
    let is_free = match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(_) => fs::symlink_metadata(dir).is_err(),
    };
    ensure!(
        is_free,
        "{} exists and is not an empty folder: choose another folder with --dir, or remove it",
        dir.display()
    );
    Ok(())
}

fn report(language: Language, names: &Names, sdk: &Sdk, dir: &Path, files: &[(String, String)]) -> String {
    let Names { name, group, version, kind } = names;
    let mut text = format!("Created {}: a plugin in {language} for {group}/{version} {kind}.\n\n", dir.display());
    for (path, _) in files {
        let _ = writeln!(text, "  {path}");
    }
    let test = match language {
        Language::Rust => "cargo test",
        Language::Python => "pilothouse build && .venv/bin/python -m pytest",
        Language::JavaScript | Language::TypeScript => "npm install && npm test",
        Language::Go => "go test ./...",
    };
    let _ = writeln!(
        text,
        "\nThe SDKs are not published yet: this project takes its SDK from {sdk}.\n\n\
         Next:\n  cd {}\n  {test}\n  pilothouse build   # makes build/{name}.wasm\n  \
         pilothouse dev     # runs it on an embedded API server, and reloads it at each edit",
        dir.display()
    );
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn run(words: &[&str]) -> anyhow::Result<()> {
        let words = ["pilothouse", "new"].into_iter().chain(words.iter().copied());
        match Cli::try_parse_from(words)?.command {
            Command::New(args) => main(&args),
            _ => bail!("not new"),
        }
    }

    #[test]
    fn a_project_is_written_into_an_empty_folder_and_nowhere_else() -> anyhow::Result<()> {
        let place = tempfile::tempdir()?;
        let dir = place.path().join("deep/my-site").display().to_string();
        run(&["my-site", "--dir", &dir, "--kind", "acme.org/v1alpha1/Page"])?;
        let read = |path: &str| fs::read_to_string(Path::new(&dir).join(path));
        assert!(read("src/lib.rs")?.contains("pub fn my_site() -> Plugin"));
        assert!(read("my-site.yaml")?.contains("names: [pages.acme.org]"));
        assert!(read("examples/page.yaml")?.starts_with("apiVersion: acme.org/v1alpha1\nkind: Page\n"));

        fs::write(Path::new(&dir).join("src/lib.rs"), "mine")?;
        let error = run(&["my-site", "--dir", &dir]).expect_err("it is not empty").to_string();
        assert!(error.contains("is not an empty folder: choose another folder with --dir"), "{error}");
        assert_eq!(read("src/lib.rs")?, "mine");
        let file = place.path().join("file");
        fs::write(&file, "")?;
        let error = run(&["my-site", "--dir", &file.display().to_string()]).expect_err("it is a file").to_string();
        assert!(error.contains("is not an empty folder"), "{error}");
        Ok(())
    }
}
