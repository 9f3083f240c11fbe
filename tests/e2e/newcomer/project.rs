//! A new user's terminal: commands in a folder, and `pilothouse dev`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    config::{KubeConfigOptions, Kubeconfig},
};
use pilothouse_e2e::{eventually, host, wait::within};
use pilothouse_real::{
    assets::Assets,
    process::{Process, last_lines},
};
use tempfile::TempDir;

use crate::page::Page;

/// Time for a change to be seen. `dev` may compile dependencies first, on a busy machine.
const SEEN: Duration = Duration::from_secs(540);
/// More than the host's grace for calls in flight (30 s).
const END: Duration = Duration::from_secs(45);

/// An empty directory and what a user types in it.
pub(crate) struct Terminal {
    /// Whose steps are printed.
    language: &'static str,
    page: Page,
    directory: TempDir,
    /// The folder in which commands run.
    folder: PathBuf,
    /// The search path, with `pilothouse` on it, and kubectl if it is here.
    path: String,
    /// `true` if kubectl is here.
    has_kubectl: bool,
}

impl Terminal {
    /// Opens a terminal in an empty directory.
    pub(crate) fn open(language: &'static str) -> Result<Self> {
        let directory = tempfile::tempdir().context("cannot create a directory")?;
        let program = host::binary()?.canonicalize().context("cannot find the program")?;
        let assets = Assets::present()?;
        let kubectl = assets.as_ref().map(Assets::folder);
        let folders = program.parent().into_iter().chain(kubectl).map(|folder| folder.display().to_string());
        let path = folders.chain(env::var("PATH")).collect::<Vec<_>>().join(":");
        let folder = directory.path().to_owned();
        Ok(Self { language, page: Page::read()?, directory, folder, path, has_kubectl: kubectl.is_some() })
    }

    /// Returns the page.
    pub(crate) fn page(&self) -> &Page {
        &self.page
    }

    /// `cd` into a folder.
    pub(crate) fn enter(&mut self, folder: &str) -> Result<()> {
        self.page.says(&format!("cd {folder}"))?;
        self.folder.push(folder);
        ensure!(self.folder.is_dir(), "there is no {folder}");
        Ok(())
    }

    /// Returns the path of a file in the folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs a command of the page, and returns its standard output.
    pub(crate) fn run(&self, command: &str) -> Result<String> {
        self.page.says(command)?;
        let began = Instant::now();
        let out = output(self.command(command)?)?;
        self.took(began, command);
        Ok(out)
    }

    fn command(&self, line: &str) -> Result<Command> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec {line}")]).current_dir(&self.folder).stdin(Stdio::null());
        // The test runs inside Cargo, and a user does not.
        const KEPT: [&str; 3] = ["CARGO_HOME", "CARGO_INCREMENTAL", "CARGO_NET_OFFLINE"];
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for name in names.filter(|name| name.starts_with("CARGO") && !KEPT.contains(&name.as_str())) {
            command.env_remove(name);
        }
        // Slow code serves a test, and takes a tenth of the time to compile.
        command.envs([("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")]);
        command.envs([("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")]);
        command.env("PATH", &self.path).env("CARGO_TARGET_DIR", target()?);
        Ok(command)
    }

    /// Prints the time of a step.
    fn took(&self, began: Instant, step: &str) {
        println!("{:>8.1} s  {}: {step}", began.elapsed().as_secs_f64(), self.language);
    }

    /// Starts the page's `pilothouse dev`, and returns when it says that it is ready.
    pub(crate) async fn dev(&self) -> Result<Dev> {
        const LINE: &str = "pilothouse dev --kubeconfig-out dev.kubeconfig";
        self.page.says(LINE)?;
        let (log, began) = (self.directory.path().join("dev.log"), Instant::now());
        let mut dev = Dev { process: Process::start("dev", self.command(LINE)?, &log)?, log };
        dev.prints("Ready.").await?;
        self.took(began, "pilothouse dev is ready");
        self.page.says("export KUBECONFIG=$PWD/dev.kubeconfig")?;
        Ok(dev)
    }

    /// Runs a kubectl command of the page until it prints `expected`. Does nothing if there is no kubectl.
    pub(crate) async fn kubectl(&self, command: &str, expected: &str) -> Result<()> {
        self.page.says(command)?;
        if !self.has_kubectl {
            return Ok(());
        }
        eventually(command, async || {
            let mut kubectl = self.command(command)?;
            kubectl.env("KUBECONFIG", self.file("dev.kubeconfig"));
            // What kubectl knows of servers would otherwise stay in the home.
            kubectl.env("KUBECACHEDIR", self.directory.path().join("kube"));
            let printed = output(kubectl)?;
            ensure!(printed.contains(expected), "it printed {printed:?}, and not {expected:?}");
            Ok(())
        })
        .await
    }

    /// Waits until the plugin's ConfigMap has this message.
    pub(crate) async fn message_is(&self, map: &str, message: &str) -> Result<()> {
        let config = Kubeconfig::read_from(self.file("dev.kubeconfig")).context("cannot read the kubeconfig")?;
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        let maps: Api<ConfigMap> = Api::default_namespaced(Client::try_from(config)?);
        within(SEEN, "the ConfigMap has the message", async || {
            let map = maps.get(map).await?;
            let found = map.data.and_then(|data| data.get("message").cloned()).unwrap_or_default();
            ensure!(found == message, "it is {found:?}");
            Ok(())
        })
        .await
    }

    /// Replaces text in a source, and waits until the plugin's ConfigMap has the new message.
    pub(crate) async fn edit(&self, source: &str, from: &str, to: &str, map: &str, message: &str) -> Result<()> {
        let path = self.file(source);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {source}"))?;
        ensure!(text.contains(from), "{source} has no `{from}`");
        let began = Instant::now();
        fs::write(&path, text.replace(from, to)).with_context(|| format!("cannot write {source}"))?;
        self.message_is(map, message).await?;
        self.took(began, "an edit is served");
        Ok(())
    }
}

/// A running `pilothouse dev`.
pub(crate) struct Dev {
    process: Process,
    log: PathBuf,
}

impl Dev {
    /// Waits until it has printed this text.
    async fn prints(&mut self, text: &str) -> Result<()> {
        let printed = within(SEEN, "dev prints it", async || {
            if let Some(status) = self.process.exited() {
                bail!("dev ended with {status}");
            }
            ensure!(self.printed()?.contains(text), "dev has not printed {text:?}");
            Ok(())
        })
        .await;
        printed.with_context(|| last_lines("dev", &self.log, 60))
    }

    /// Returns all that it has printed.
    pub(crate) fn printed(&self) -> Result<String> {
        fs::read_to_string(&self.log).context("cannot read what dev printed")
    }

    /// Ends it, as ctrl-c does.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.process.terminate();
        let status = self.process.wait(END).await?;
        ensure!(status.success(), "dev ended with {status}\n{}", last_lines("dev", &self.log, 60));
        Ok(())
    }
}

/// Runs a command to its end, and returns its standard output.
fn output(mut command: Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let [out, err] = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    ensure!(output.status.success(), "{command:?} ended with {}:\n{out}\n{err}", output.status);
    Ok(out)
}

/// Returns the folder for what Cargo builds.
fn target() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join("newcomer");
    fs::create_dir_all(&target).with_context(|| format!("cannot create {}", target.display()))?;
    target.canonicalize().context("the folder is gone")
}
