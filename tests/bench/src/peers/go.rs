//! The Go programs of `tests/bench/go`: client-go's informers and workqueue, and controller-runtime's queue and
//! controller.

use std::{
    env::consts::EXE_SUFFIX,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, Result, bail, ensure};

use crate::target;

/// Builds the programs once. An error says why they cannot be measured here.
pub(crate) fn build() -> Result<()> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build_now().map_err(|why| format!("{why:#}")));
    built.clone().map_err(anyhow::Error::msg)
}

fn build_now() -> Result<()> {
    let said = Command::new("go").arg("version").stdin(Stdio::null()).output();
    if !said.is_ok_and(|said| said.status.success()) {
        bail!("there is no Go: install it from https://go.dev/dl");
    }
    eprintln!("building the Go programs: some minutes the first time");
    let folder = folder()?;
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("go");
    let built = Command::new("go")
        .args(["build", "-trimpath", "-o"])
        .arg(&folder)
        .arg("./...")
        .current_dir(&source)
        // Independent of the user's settings for other work.
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

fn folder() -> Result<PathBuf> {
    Ok(target()?.join("bench-go"))
}

/// Returns the command for one of the programs.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Result<tokio::process::Command> {
    let mut command = tokio::process::Command::new(folder()?.join(format!("{program}{EXE_SUFFIX}")));
    command.args(arguments);
    Ok(command)
}

/// Measures the time of a key through a workqueue of that kind, in microseconds. See `go/queue`.
pub(crate) fn queue(kind: &str) -> Result<Vec<f64>> {
    let output = command("queue", &[kind])?.into_std().stderr(Stdio::inherit()).output().context("cannot start it")?;
    ensure!(output.status.success(), "it ended with {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(vec![text.trim().parse().with_context(|| format!("no number: {text:?}"))?])
}
