//! client-go's shared informers, in a Go program of their own: `tests/bench/go`.

use std::env::consts::EXE_SUFFIX;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::target;

/// Builds the program; an error says why it cannot be measured here.
pub(crate) fn build() -> Result<()> {
    let said = Command::new("go").arg("version").stdin(Stdio::null()).output();
    if !said.is_ok_and(|said| said.status.success()) {
        bail!("there is no Go: install it from https://go.dev/dl");
    }
    eprintln!("building the Go program: a minute the first time");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("go");
    let built = Command::new("go")
        .args(["build", "-trimpath", "-o"])
        .arg(program()?)
        .arg(".")
        .current_dir(&source)
        // As it was written down, whatever the user's own settings for other work are.
        .env("GOFLAGS", "-mod=readonly")
        .env("GOWORK", "off")
        .stdin(Stdio::null())
        .output()
        .context("cannot run go build")?;
    if !built.status.success() {
        bail!("go build ended with {}: {}", built.status, String::from_utf8_lossy(&built.stderr).trim());
    }
    Ok(())
}

fn program() -> Result<PathBuf> {
    Ok(target()?.join(format!("bench-keeper{EXE_SUFFIX}")))
}

/// The command for pods as structs.
pub(crate) fn typed() -> Result<tokio::process::Command> {
    command("typed")
}

/// The command for pods as maps.
pub(crate) fn dynamic() -> Result<tokio::process::Command> {
    command("dynamic")
}

fn command(kind: &str) -> Result<tokio::process::Command> {
    let mut command = tokio::process::Command::new(program()?);
    command.arg(kind);
    Ok(command)
}
