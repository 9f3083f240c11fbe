//! Builds a probe in each language, with the usual tool of each.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use pilothouse_e2e::suite::NotHere;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

const COMPONENTIZE_JS: &str = "0.23.0";
const COMPONENTIZE_PY: &str = "0.25.1";

/// Returns the component of `tests/languages/python`.
pub(crate) fn python() -> Result<Vec<u8>> {
    let folder = folder(&format!("python-{COMPONENTIZE_PY}"))?;
    let tool = folder.join("bin/componentize-py");
    if !tool.is_file() {
        let package = format!("componentize-py=={COMPONENTIZE_PY}");
        let installed = run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
            .and_then(|()| run(Command::new(folder.join("bin/pip")).args(["install", "--quiet", &package])));
        if installed.is_err() {
            bail!(NotHere("python3 with venv and pip, or its package index, is not here"));
        }
    }
    fs::copy(root().join("tests/languages/python/probe.py"), folder.join("probe.py"))
        .context("cannot copy the source")?;
    let component = folder.join("probe.wasm");
    run(Command::new(tool)
        .current_dir(&folder)
        .arg("--wit-path")
        .arg(root().join("wit"))
        .args(["--world", "plugin", "componentize", "probe", "--output"])
        .arg(&component))?;
    fs::read(&component).context("cannot read the component")
}

/// Returns the component of `tests/languages/javascript`.
pub(crate) fn javascript() -> Result<Vec<u8>> {
    let folder = componentize_js()?;
    let component = folder.join("probe.wasm");
    run(Command::new(folder.join("node_modules/.bin/componentize-js"))
        .current_dir(&folder)
        .arg(root().join("tests/languages/javascript/probe.js"))
        .arg("--wit")
        .arg(root().join("wit"))
        .args(["--world-name", "plugin", "--out"])
        .arg(&component))?;
    fs::read(&component).context("cannot read the component")
}

/// Returns the folder in which componentize-js is installed.
fn componentize_js() -> Result<PathBuf> {
    let folder = folder(&format!("javascript-{COMPONENTIZE_JS}"))?;
    if !folder.join("node_modules/.bin/componentize-js").is_file() {
        let package = format!("@bytecodealliance/componentize-js@{COMPONENTIZE_JS}");
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(&folder).arg(package);
        if run(&mut npm).is_err() {
            bail!(NotHere("npm, or its registry, is not here"));
        }
    }
    Ok(folder)
}

/// Returns the component of `tests/languages/go`, by the compiler of Go itself.
///
/// It makes a core module that imports preview 1 of WASI. An adapter, which comes with the tools for JavaScript, turns
/// that into WASI 0.2.
pub(crate) fn go() -> Result<Vec<u8>> {
    let (folder, sources) = (folder("go")?, root().join("tests/languages/go"));
    let wit = root().join("wit");
    let mut bindings = Command::new("wit-bindgen");
    bindings.current_dir(&folder).args(["go", "--quiet", "--world", "plugin"]).arg(&wit);
    if run(&mut bindings).is_err() {
        bail!(NotHere("wit-bindgen is not here: `cargo install wit-bindgen-cli@0.63.0`"));
    }
    let export = folder.join("export_pilothouse_plugin_controller");
    fs::create_dir_all(&export).context("cannot create the folder of the export")?;
    fs::copy(sources.join("probe.go"), export.join("probe.go")).context("cannot copy the source")?;
    let replaced = format!("-replace=go.bytecodealliance.org/pkg={}", sources.join("pkg").canonicalize()?.display());
    if run(Command::new("go").current_dir(&folder).args(["mod", "edit", &replaced])).is_err() {
        bail!(NotHere("Go is not here"));
    }
    let core = folder.join("core.wasm");
    run(Command::new("go")
        .current_dir(&folder)
        .envs([("GOOS", "wasip1"), ("GOARCH", "wasm"), ("GOFLAGS", "-mod=mod")])
        .args(["build", "-buildmode=c-shared", "-ldflags=-checklinkname=0", "-o"])
        .arg(&core)
        .arg("."))?;
    let adapter = componentize_js()?.join("node_modules/@bytecodealliance/jco/lib/wasi_snapshot_preview1.reactor.wasm");
    let Ok(adapter) = fs::read(adapter) else { bail!(NotHere("the adapter of WASI preview 1 is not here")) };
    let mut module = fs::read(core).context("cannot read the module")?;
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(&wit)?;
    let world = resolve.select_world(&[package], Some("plugin"))?;
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    ComponentEncoder::default().module(&module)?.adapter("wasi_snapshot_preview1", &adapter)?.encode()
}

/// Returns the guest `probing`, built for `wasm32-wasip2`.
pub(crate) fn rust() -> Result<Vec<u8>> {
    const TARGET: &str = "wasm32-wasip2";
    if run(Command::new("rustup").args(["target", "add", TARGET])).is_err() {
        bail!(NotHere("rustup, or its target wasm32-wasip2, is not here"));
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(root()).args(["build", "--quiet", "--profile", "guest", "--target", TARGET]);
    run(build.args(["-p", "pilothouse-guests", "--example", "probing"]))?;
    fs::read(target().join(TARGET).join("guest/examples/probing.wasm")).context("cannot read the component")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn target() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Creates a folder for a tool and what it makes.
fn folder(tool: &str) -> Result<PathBuf> {
    let folder = target().join("languages").join(tool);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    folder.canonicalize().context("the folder is gone")
}

/// Runs a command to its end.
fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).trim().to_owned());
        bail!("{program} ended with {}: {}", output.status, said.join("\n").trim());
    }
    Ok(())
}
