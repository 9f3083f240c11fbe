//! The steps of the page, in each language.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use pilothouse_e2e::{scene::Scene, suite::NotHere};
use tokio::sync::Mutex;

use crate::project::Terminal;

/// Held while npm copies the SDK: before that, the SDK's script writes the contract into the checkout.
static COPYING: Mutex<()> = Mutex::const_new(());

pub(crate) async fn rust_from_an_empty_directory_to_an_edit_that_reloads(_scene: Scene) -> Result<()> {
    const MESSAGE: &str = "kubectl get configmap first-message -o jsonpath='{.data.message}'";
    let mut terminal = Terminal::open("Rust")?;
    terminal.run("pilothouse new my-site")?;
    terminal.enter("my-site")?;
    // The versions that this repository is tested with: the registry may have newer ones.
    fs::copy(root("Cargo.lock"), terminal.file("Cargo.lock")).context("cannot copy the lock file")?;
    let tested = terminal.run("cargo test")?;
    ensure!(tested.contains("2 passed"), "the tests of the template do not run:\n{tested}");
    built(&terminal.run("pilothouse build")?, &terminal)?;

    let dev = terminal.dev().await?;
    terminal.page().shows("Hello, world!")?;
    terminal.message_is("first-message", "Hello, world!").await?;
    terminal.kubectl(MESSAGE, "Hello, world!").await?;
    terminal.kubectl("kubectl delete configmap first-message", "\"first-message\" deleted").await?;
    let [header, row] = ["NAME            DATA   AGE", "first-message   1      "];
    terminal.page().shows(header)?;
    terminal.page().shows(&format!("{row}1s"))?;
    terminal.kubectl("kubectl get configmap first-message", &format!("{header}\n{row}")).await?;

    let (from, to) = ("object.spec.message.clone()", "object.spec.message.to_uppercase()");
    terminal.page().shows(from)?;
    terminal.page().shows(to)?;
    terminal.edit("src/lib.rs", from, to, "first-message", "HELLO, WORLD!").await?;
    terminal.page().shows("HELLO, WORLD!")?;
    terminal.kubectl(MESSAGE, "HELLO, WORLD!").await?;
    nothing_else(&dev.printed()?)?;
    dev.end().await
}

pub(crate) async fn python_from_an_empty_directory_to_an_edit_that_reloads(_scene: Scene) -> Result<()> {
    const HAS_VENV: &str = "import venv, sys; assert sys.version_info >= (3, 11)";
    needs("python3", &["-c", HAS_VENV], "Python 3.11 with venv is not here")?;
    let mut terminal = Terminal::open("Python")?;
    create(&mut terminal, "python")?;
    let report = build(&terminal, "cannot install what pyproject.toml asks for", "pip's package index is not here");
    built(&report?, &terminal)?;
    terminal.run(".venv/bin/python -m pytest")?;
    let (from, to) = (r#"obj["spec"]["message"]"#, r#"obj["spec"]["message"].upper()"#);
    serves_an_edit(&terminal, "Python", "my_site.py", from, to, "HELLO").await
}

pub(crate) async fn javascript_from_an_empty_directory_to_an_edit_that_reloads(_scene: Scene) -> Result<()> {
    with_node("javascript", "JavaScript", "src/plugin.js").await
}

pub(crate) async fn typescript_from_an_empty_directory_to_an_edit_that_reloads(_scene: Scene) -> Result<()> {
    with_node("typescript", "TypeScript", "src/plugin.ts").await
}

async fn with_node(language: &str, name: &'static str, source: &str) -> Result<()> {
    const IS_NEW: &str = "process.exit(Number(process.versions.node.split('.')[0]) < 20 ? 1 : 0)";
    needs("node", &["-e", IS_NEW], "Node.js 20 is not here")?;
    needs("npm", &["--version"], "npm is not here")?;
    let mut terminal = Terminal::open(name)?;
    create(&mut terminal, language)?;
    let report = {
        let _copying = COPYING.lock().await;
        build(&terminal, "cannot install what package.json asks for", "npm's registry is not here")?
    };
    built(&report, &terminal)?;
    terminal.run("npm test")?;
    let (from, to) = ("const { message } = object.spec;", "const message = object.spec.message.toUpperCase();");
    serves_an_edit(&terminal, name, source, from, to, "HELLO").await
}

pub(crate) async fn go_from_an_empty_directory_to_an_edit_that_reloads(_scene: Scene) -> Result<()> {
    needs("go", &["version"], "Go is not here")?;
    let mut terminal = Terminal::open("Go")?;
    create(&mut terminal, "go")?;
    built(&terminal.run("pilothouse build")?, &terminal)?;
    terminal.run("go test ./...")?;
    let (from, to) = ("message := object.Spec.Message", r#"message := object.Spec.Message + "!""#);
    serves_an_edit(&terminal, "Go", "main.go", from, to, "hello!").await
}

/// Fails with [`NotHere`] unless a command of a toolchain succeeds.
fn needs(program: &str, arguments: &[&str], missing: &'static str) -> Result<()> {
    let found = Command::new(program).args(arguments).output();
    if !found.is_ok_and(|output| output.status.success()) {
        bail!(NotHere(missing));
    }
    Ok(())
}

/// Makes the project, and enters its folder.
fn create(terminal: &mut Terminal, language: &str) -> Result<()> {
    terminal.run(&format!("pilothouse new my-site --lang {language}"))?;
    terminal.enter("my-site")
}

/// Builds the project, and returns the report. Fails with [`NotHere`] if the error has the text `cannot`.
fn build(terminal: &Terminal, cannot: &str, missing: &'static str) -> Result<String> {
    terminal.run("pilothouse build").map_err(|error| match format!("{error:#}") {
        text if text.contains(cannot) => {
            eprintln!("{text}");
            NotHere(missing).into()
        }
        _ => error,
    })
}

/// Runs `dev`, and does the edit in the language's row of the page's table.
async fn serves_an_edit(
    terminal: &Terminal,
    language: &str,
    source: &str,
    from: &str,
    to: &str,
    message: &str,
) -> Result<()> {
    const MESSAGE: &str = "kubectl get configmap first -o jsonpath='{.data.message}'";
    let dev = terminal.dev().await?;
    terminal.message_is("first", "hello").await?;
    terminal.kubectl(MESSAGE, "hello").await?;
    terminal.page().shows(&format!("| {language} | `{source}` | `{from}` | `{to}` | `{message}` |"))?;
    terminal.edit(source, from, to, "first", message).await?;
    terminal.kubectl(MESSAGE, message).await?;
    nothing_else(&dev.printed()?)?;
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

/// Checks that `dev` names no grant that the template lacks, and left the cores to the build of the edit.
fn nothing_else(printed: &str) -> Result<()> {
    ensure!(!printed.contains("would not grant"), "the template lacks grants:\n{printed}");
    ensure!(!printed.contains("code is optimized"), "code that an edit replaces was optimized:\n{printed}");
    Ok(())
}

fn root(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}
