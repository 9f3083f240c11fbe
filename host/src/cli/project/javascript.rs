//! Builds a project in JavaScript or TypeScript.

use std::{fs, path::Path};

use anyhow::Context;

use super::tools::Tool;

const NPM: Tool = Tool {
    program: "npm",
    install: "get Node.js 20 or newer from https://nodejs.org or your system's packages (Debian: nodejs npm)",
};

/// Holds the package.json that was installed last.
const STAMP: &str = "node_modules/.pilothouse-installed";

/// Returns the project's name.
pub(super) fn name(dir: &Path) -> anyhow::Result<String> {
    let path = dir.join("package.json");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let package: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not valid JSON", path.display()))?;
    let name = package["name"].as_str().with_context(|| format!("{} has no `name`", path.display()))?;
    // `@scope/name`.
    Ok(name.rsplit('/').next().unwrap_or(name).to_owned())
}

/// Builds the component into `file`.
pub(super) async fn build(dir: &Path, file: &Path) -> anyhow::Result<()> {
    let wanted = fs::read(dir.join("package.json")).context("cannot read package.json")?;
    if fs::read(dir.join(STAMP)).ok().as_ref() != Some(&wanted) {
        let mut install = NPM.command(dir);
        install.args(["install", "--no-audit", "--no-fund"]);
        NPM.run(install).await.context("cannot install what package.json asks for")?;
        let stamp = dir.join(STAMP);
        // Without dependencies, npm makes no folder.
        fs::create_dir_all(dir.join("node_modules"))
            .and_then(|()| fs::write(stamp, wanted))
            .context("cannot write into node_modules")?;
    }
    let mut build = NPM.command(dir);
    build.args(["run", "--silent", "build", "--", "--output"]).arg(file);
    NPM.run(build).await.context("cannot build the component by the script `build` of package.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_the_package_without_its_scope() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("package.json"), r#"{ "name": "@acme/my-site" }"#)?;
        assert_eq!(name(dir.path())?, "my-site");
        fs::write(dir.path().join("package.json"), "{}")?;
        assert!(name(dir.path()).is_err());
        Ok(())
    }
}
