//! Builds a project in Rust.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::{Profile, tools, tools::Tool};

const TARGET: &str = "wasm32-unknown-unknown";

const CARGO: Tool = Tool {
    program: "cargo",
    install: "get Rust from https://rustup.rs: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh",
};

const RUSTC: Tool = Tool { program: "rustc", install: CARGO.install };

const RUSTUP: Tool = Tool {
    program: "rustup",
    install: "the Rust toolchain here lacks the target wasm32-unknown-unknown: get Rust from https://rustup.rs, or the target from your \
              system's packages (Debian: libstd-rust-dev-wasm32, Fedora: rust-std-static-wasm32-unknown-unknown, Arch: rust-wasm)",
};

/// Builds the project, and returns the components of its own packages.
pub(super) async fn build(dir: &Path, profile: Profile) -> anyhow::Result<Vec<PathBuf>> {
    have_target(dir).await?;
    let mut cargo = CARGO.command_or("CARGO", dir);
    cargo.args(["build", "--target", TARGET]);
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    tools::say(&cargo);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let messages = CARGO.read(&mut cargo).await?;
    let dir = dir.canonicalize().with_context(|| format!("cannot use {}", dir.display()))?;
    let built = components(&String::from_utf8_lossy(&messages), &dir);
    ensure!(
        !built.is_empty(),
        "no package in {} makes a component: add `crate-type = [\"cdylib\", \"rlib\"]` below `[lib]` in its Cargo.toml",
        dir.display()
    );
    Ok(built)
}

/// Adds the target to the toolchain if it is missing.
async fn have_target(dir: &Path) -> anyhow::Result<()> {
    let mut rustc = RUSTC.command_or("RUSTC", dir);
    let folder = RUSTC.read(rustc.args(["--print", "target-libdir", "--target", TARGET])).await?;
    if Path::new(String::from_utf8_lossy(&folder).trim()).is_dir() {
        return Ok(());
    }
    eprintln!("The Rust toolchain lacks the target {TARGET}. Adding it:");
    let mut rustup = RUSTUP.command(dir);
    rustup.args(["target", "add", TARGET]);
    RUSTUP.run(rustup).await
}

/// A line of Cargo's output.
#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

/// Returns the WebAssembly files of packages in `dir`. Dependencies may make some too.
fn components(messages: &str, dir: &Path) -> Vec<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    let artifacts = messages.filter(|message| message.reason == "compiler-artifact");
    let own = artifacts.filter(|artifact| artifact.manifest_path.starts_with(dir));
    own.flat_map(|artifact| artifact.filenames)
        .filter(|file| file.extension().is_some_and(|extension| extension == "wasm"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_components_are_those_of_the_projects_own_packages() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/src/dep/Cargo.toml","filenames":["/t/dep.wasm"]}
{"reason":"build-script-executed","package_id":"x"}
not JSON
{"reason":"compiler-artifact","manifest_path":"/p/my-site/Cargo.toml","filenames":["/t/my_site.wasm","/t/libmy_site.rlib"]}
{"reason":"build-finished","success":true}"#;
        assert_eq!(components(messages, Path::new("/p/my-site")), [Path::new("/t/my_site.wasm")]);
        assert!(components(messages, Path::new("/elsewhere")).is_empty());
    }
}
