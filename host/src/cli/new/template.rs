//! The files of new projects, from the folder `templates` of the repository.

use super::names::Names;
use crate::cli::language::Language;

/// A file of a template: its path and its text, both with placeholders.
type File = (&'static str, &'static str);

/// Includes files of a folder in `templates`.
macro_rules! files {
    ($language:literal: $($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../../templates/", $language, "/", $path)))),*]
    };
}

/// Ends the name of a file that a tool would take for a project's in the repository. A new project has it without.
const SUFFIX: &str = ".template";

const RUST: &[File] = files!("rust":
    ".gitignore",
    "Cargo.toml.template",
    "README.md",
    "examples/{{singular}}.yaml",
    "src/lib.rs",
    "tests/reconcile.rs",
    "{{name}}.yaml",
);

const PYTHON: &[File] = files!("python":
    ".gitignore",
    "README.md",
    "examples/{{name}}.yaml",
    "pyproject.toml",
    "tests/test_{{crate}}.py",
    "{{crate}}.py",
    "{{name}}.yaml",
);

const JAVASCRIPT: &[File] = files!("javascript":
    ".gitignore",
    ".npmrc",
    "README.md",
    "examples/{{name}}.yaml",
    "package.json",
    "src/plugin.js",
    "test/plugin.test.js",
    "{{name}}.yaml",
);

const TYPESCRIPT: &[File] = files!("typescript":
    ".gitignore",
    ".npmrc",
    "README.md",
    "examples/{{name}}.yaml",
    "package.json",
    "src/plugin.ts",
    "test/plugin.test.ts",
    "tsconfig.json",
    "{{name}}.yaml",
);

const GO: &[File] = files!("go":
    ".gitignore",
    "README.md",
    "examples/{{name}}.yaml",
    "go.mod",
    "main.go",
    "main_test.go",
    "{{name}}.yaml",
);

/// Returns the files of a language's template.
fn files(language: Language) -> &'static [File] {
    match language {
        Language::Rust => RUST,
        Language::Python => PYTHON,
        Language::JavaScript => JAVASCRIPT,
        Language::TypeScript => TYPESCRIPT,
        Language::Go => GO,
    }
}

/// Returns the paths and texts of a new project's files. `sdk` is the reference to the SDK in the form of the language. `None` if the language
/// has no template.
pub(super) fn project(language: Language, names: &Names, sdk: &str) -> Option<Vec<(String, String)>> {
    let values = [
        ("{{name}}", names.name.to_string()),
        ("{{crate}}", names.identifier()),
        ("{{group}}", names.group.clone()),
        ("{{version}}", names.version.clone()),
        ("{{kind}}", names.kind.clone()),
        ("{{plural}}", names.plural()),
        ("{{singular}}", names.singular()),
        ("{{sdk}}", sdk.to_owned()),
    ];
    let filled = |text: &str| values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value));
    let files = files(language);
    (!files.is_empty())
        .then(|| files.iter().map(|(path, text)| (filled(path.trim_end_matches(SUFFIX)), filled(text))).collect())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use clap::ValueEnum as _;

    use super::*;

    fn folder() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../templates"))
    }

    /// Returns the paths of all files below a folder, relative to it.
    fn paths(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut left = vec![folder.to_owned()];
        while let Some(next) = left.pop() {
            for entry in fs::read_dir(next).expect("the folder can be read") {
                let path = entry.expect("it has entries").path();
                // What a tool leaves behind.
                if path.ends_with("__pycache__") || path.ends_with("node_modules") {
                    continue;
                }
                match path.is_dir() {
                    true => left.push(path),
                    false => found.push(path.strip_prefix(folder).expect("it is below").display().to_string()),
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn every_file_of_a_template_is_listed() {
        for language in Language::value_variants() {
            let name = language.to_possible_value().expect("it can be chosen").get_name().to_owned();
            let mut listed: Vec<&str> = files(*language).iter().map(|(path, _)| *path).collect();
            listed.sort_unstable();
            let there = folder().join(&name);
            assert_eq!(listed, if there.is_dir() { paths(&there) } else { Vec::new() }, "templates/{name}");
        }
    }

    #[test]
    fn no_placeholder_is_left_in_a_project() {
        let names = Names::new("my-site", None).expect("they are names");
        for language in Language::value_variants() {
            for (path, text) in project(*language, &names, "there").unwrap_or_default() {
                for text in [&path, &text] {
                    let left = text.match_indices("{{").map(|(at, _)| &text[at + 2..]);
                    let left = left.filter(|rest| rest.starts_with(|first: char| first.is_ascii_lowercase()));
                    let left: Vec<&str> = left.filter_map(|rest| Some(rest.split_once("}}")?.0)).collect();
                    let left: Vec<_> =
                        left.iter().filter(|word| word.chars().all(|c| c.is_ascii_lowercase())).collect();
                    assert!(left.is_empty(), "{language}: {path}: {left:?}");
                }
            }
        }
    }

    #[test]
    fn the_rust_template_has_the_versions_that_the_sdk_has() {
        let workspace = fs::read_to_string(folder().join("../Cargo.toml")).expect("it can be read");
        let version = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} = ")))?.to_owned();
            Some(line.split('"').nth(1)?.to_owned())
        };
        let template = RUST.iter().find(|(path, _)| *path == "Cargo.toml.template").expect("it is there").1;
        for name in ["k8s-openapi", "kube", "schemars", "serde", "serde_json", "rust-version", "edition"] {
            assert_eq!(version(template, name), version(&workspace, name), "{name}");
        }
    }
}
