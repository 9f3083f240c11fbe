//! Builds the example plugin in other languages, `javascript` and `python` beside this program, with the usual tool of
//! each.
//!
//! ```text
//! registry ── npm, pip ──► target/bench-NAME: the tool ── source, wit ──► target/bench-NAME/myapple.wasm
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::target;

/// A language and how to build a plugin in it.
pub(crate) struct Toolchain {
    /// The name of its folders.
    name: &'static str,
    /// The source file there.
    source: &'static str,
    /// The build tool, and the version with which figures are comparable.
    tool: &'static str,
    /// Commands that install the tool into a folder, each with a remedy if it cannot be run.
    install: fn(&Path) -> Vec<(Command, &'static str)>,
    /// The command that builds a component from the source and the contract.
    build: fn(&Paths) -> Command,
}

/// The folders of a build.
struct Paths {
    folder: PathBuf,
    /// A copy of the source, because tools leave files beside it.
    source: PathBuf,
    contract: PathBuf,
    component: PathBuf,
}

pub(crate) const JAVASCRIPT: Toolchain = Toolchain {
    name: "javascript",
    source: "myapple.js",
    tool: COMPONENTIZE_JS,
    install: |folder| {
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(folder).arg(COMPONENTIZE_JS);
        vec![(npm, "install Node.js from https://nodejs.org")]
    },
    build: |paths| {
        let mut build = Command::new(paths.folder.join("node_modules/.bin/componentize-js"));
        build.arg(&paths.source).arg("--wit").arg(&paths.contract).args(["--world-name", "plugin", "--out"]);
        build.arg(&paths.component);
        build
    },
};

pub(crate) const PYTHON: Toolchain = Toolchain {
    name: "python",
    source: "myapple.py",
    tool: COMPONENTIZE_PY,
    install: |folder| {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(folder);
        let mut pip = Command::new(folder.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check", COMPONENTIZE_PY]);
        vec![(venv, "install python3 and python3-venv"), (pip, "install python3-venv")]
    },
    build: |paths| {
        let mut build = Command::new(paths.folder.join("bin/componentize-py"));
        build.arg("--quiet").arg("--wit-path").arg(&paths.contract).args(["--world", "plugin", "componentize"]);
        build.arg("--python-path").arg(&paths.folder).arg("myapple").arg("--output").arg(&paths.component);
        build
    },
};

const COMPONENTIZE_JS: &str = "@bytecodealliance/componentize-js@0.23.0";
const COMPONENTIZE_PY: &str = "componentize-py==0.25.1";

/// File that marks a complete installation and names the tool's version.
const INSTALLED: &str = "installed";

impl Toolchain {
    /// Builds the plugin. An error says why that cannot be done here.
    pub(crate) fn build(&self) -> Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = self.folder()?;
        if fs::read_to_string(folder.join(INSTALLED)).is_ok_and(|installed| installed == self.tool) {
            eprintln!("building the plugin in {}", self.name);
        } else {
            eprintln!("installing {} into {}, and building the plugin in {}", self.tool, folder.display(), self.name);
            fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
            for (mut command, missing) in (self.install)(&folder) {
                run(&mut command, missing)?;
            }
            fs::write(folder.join(INSTALLED), self.tool).context("cannot say that it is installed")?;
        }
        let source = folder.join(self.source);
        fs::copy(root.join(self.name).join(self.source), &source)
            .with_context(|| format!("cannot copy {} to {}", self.source, folder.display()))?;
        let paths = Paths { source, contract: root.join("../../wit"), component: self.component()?, folder };
        run(&mut (self.build)(&paths), "remove the folder of the tool, to have it installed again")
    }

    /// The path of the component.
    pub(crate) fn plugin(&self) -> Result<Vec<u8>> {
        let path = self.component()?;
        fs::read(&path).with_context(|| format!("{} was not built: run the line as a whole", path.display()))
    }

    fn folder(&self) -> Result<PathBuf> {
        Ok(target()?.join(format!("bench-{}", self.name)))
    }

    fn component(&self) -> Result<PathBuf> {
        Ok(self.folder()?.join("myapple.wasm"))
    }
}

/// Runs a command to its end. `missing` is the remedy if it cannot be started.
fn run(command: &mut Command, missing: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}: {missing}"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).trim().to_owned());
        bail!("{program} ended with {}: {}", output.status, said.join("\n").trim());
    }
    Ok(())
}
