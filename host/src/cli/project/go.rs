//! Builds a project in Go.

use std::{fs, path::Path};

use anyhow::Context;

use super::tools::Tool;

const GO: Tool = Tool {
    program: "go",
    install: "get Go 1.25 or newer from https://go.dev/dl or your system's packages (Debian: golang)",
};

/// The package of the SDK that builds.
const BUILD: &str = "pilothouse.dev/pilothouse-go/cmd/pilothouse-build";

/// Returns the project's name.
pub(super) fn name(dir: &Path) -> anyhow::Result<String> {
    let path = dir.join("go.mod");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    module_name(&text).with_context(|| format!("{} has no line `module`", path.display()))
}

/// Returns the last part of the module's path, without a suffix of its version.
fn module_name(text: &str) -> Option<String> {
    let path = text.lines().find_map(|line| line.trim().strip_prefix("module "))?;
    let path = path.split("//").next().unwrap_or(path).trim().trim_matches('"');
    let is_version = |part: &&str| {
        part.strip_prefix('v').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
    };
    path.rsplit('/').find(|part| !is_version(part)).map(str::to_owned)
}

/// Builds the component into `file`.
pub(super) async fn build(dir: &Path, file: &Path) -> anyhow::Result<()> {
    let mut build = GO.command(dir);
    build.args(["run", BUILD, "-o"]).arg(file);
    GO.run(build).await.context("cannot build the component")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_last_part_of_the_module_without_its_version() {
        assert_eq!(module_name("// a\nmodule example.com/ops/my-site/v2\n\ngo 1.26\n").as_deref(), Some("my-site"));
        assert_eq!(module_name("module my-site // mine\n").as_deref(), Some("my-site"));
        assert_eq!(module_name("go 1.26\n"), None);
    }
}
