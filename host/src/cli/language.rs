//! The languages of plugins' projects.

use std::{fmt, path::Path};

use clap::ValueEnum;

/// A language that has an SDK and a template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Language {
    /// Rust
    #[default]
    Rust,
    /// Python
    Python,
    /// JavaScript
    #[value(name = "javascript", alias = "js")]
    JavaScript,
    /// TypeScript
    #[value(name = "typescript", alias = "ts")]
    TypeScript,
    /// Go
    Go,
}

impl Language {
    /// Returns the language of a project by the file that its package manager reads. `None` if there is no such file.
    pub(super) fn of_project(dir: &Path) -> Option<Self> {
        let has = |file: &str| dir.join(file).is_file();
        if has("Cargo.toml") {
            Some(Self::Rust)
        } else if has("pyproject.toml") {
            Some(Self::Python)
        } else if has("package.json") {
            Some(if has("tsconfig.json") { Self::TypeScript } else { Self::JavaScript })
        } else if has("go.mod") {
            Some(Self::Go)
        } else {
            None
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rust => "Rust",
            Self::Python => "Python",
            Self::JavaScript => "JavaScript",
            Self::TypeScript => "TypeScript",
            Self::Go => "Go",
        })
    }
}
