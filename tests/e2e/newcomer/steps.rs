//! The steps of the page, in each language.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};
use pilothouse_e2e::{scene::Scene, suite::NotHere};

use crate::project::Terminal;

pub(crate) async fn rust_from_an_empty_directory_to_an_edit_that_reloads(_scene: Scene) -> Result<()> {
    let mut terminal = Terminal::open()?;
    terminal.run("pilothouse new my-site")?;
    terminal.enter("my-site")?;
    // The versions that this repository is tested with: the registry may have newer ones.
    fs::copy(root("Cargo.lock"), terminal.file("Cargo.lock")).context("cannot copy the lock file")?;
    let tested = terminal.run("cargo test")?;
    ensure!(tested.contains("2 passed"), "the tests of the template do not run:\n{tested}");
    built(&terminal.run("pilothouse build")?, &terminal)?;

    let dev = terminal.dev().await?;
    terminal.page().says("kubectl get configmap first-message -o jsonpath='{.data.message}'")?;
    terminal.page().shows("Hello, world!")?;
    terminal.message_is("first-message", "Hello, world!").await?;
    let (from, to) = ("object.spec.message.clone()", "object.spec.message.to_uppercase()");
    terminal.page().shows(from)?;
    terminal.page().shows(to)?;
    terminal.edit("src/lib.rs", from, to)?;
    terminal.page().shows("HELLO, WORLD!")?;
    terminal.message_is("first-message", "HELLO, WORLD!").await?;
    grants_suffice(&dev.printed()?)?;
    dev.end().await
}

pub(crate) async fn python_from_an_empty_directory_to_an_edit_that_reloads(_scene: Scene) -> Result<()> {
    let found = Command::new("python3").args(["-c", "import venv, sys; assert sys.version_info >= (3, 11)"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        bail!(NotHere("python3 3.11 with venv is not here"));
    }
    let mut terminal = Terminal::open()?;
    terminal.run("pilothouse new my-site --lang python")?;
    terminal.enter("my-site")?;
    let report = terminal.run("pilothouse build").map_err(|error| match format!("{error:#}") {
        text if text.contains("cannot install what pyproject.toml asks for") => {
            NotHere("pip's package index is not here").into()
        }
        _ => error,
    })?;
    built(&report, &terminal)?;
    terminal.run(".venv/bin/python -m pytest")?;

    let dev = terminal.dev().await?;
    terminal.message_is("first", "hello").await?;
    terminal.edit("my_site.py", r#"obj["spec"]["message"]"#, r#"obj["spec"]["message"].upper()"#)?;
    terminal.message_is("first", "HELLO").await?;
    grants_suffice(&dev.printed()?)?;
    dev.end().await
}

/// Checks what `pilothouse build` reports, and its two files.
fn built(report: &str, terminal: &Terminal) -> Result<()> {
    for file in ["build/my-site.wasm", "build/my-site.yaml"] {
        ensure!(terminal.file(file).is_file(), "there is no {file}");
    }
    for line in
        ["asks for     { apiVersion: example.com/v1, kind: MySite, verbs: [read] }", "my-site.yaml grants all of it"]
    {
        ensure!(report.contains(line), "the report does not say `{line}`:\n{report}");
    }
    Ok(())
}

/// Checks that `dev` names no grant that the template lacks.
fn grants_suffice(printed: &str) -> Result<()> {
    ensure!(!printed.contains("would not grant"), "the template lacks grants:\n{printed}");
    Ok(())
}

fn root(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}
