//! Runs kubectl as a person does.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use pilothouse_real::assets::Assets;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

/// kubectl for one server and one namespace, with its own caches.
#[derive(Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    namespace: String,
    home: TempDir,
}

impl Kubectl {
    /// Returns `None` if no kubectl of the real servers' version is installed. Another version would test itself, not
    /// the server.
    ///
    /// # Errors
    /// `KUBEBUILDER_ASSETS` names a folder that is not complete.
    pub fn find(kubeconfig: &Path, namespace: &str) -> Result<Option<Self>> {
        let Some(assets) = Assets::present()? else { return Ok(None) };
        let home = tempfile::tempdir().context("cannot create a folder for kubectl's caches")?;
        let (kubeconfig, namespace) = (kubeconfig.to_owned(), namespace.to_owned());
        Ok(Some(Self { program: assets.kubectl(), kubeconfig, namespace, home }))
    }

    /// Runs kubectl and returns its output.
    ///
    /// # Errors
    /// kubectl fails. The error has its error output.
    pub async fn run(&self, words: &[&str]) -> Result<String> {
        self.run_on("", words).await
    }

    /// Runs kubectl with `input` and returns its output.
    ///
    /// # Errors
    /// kubectl fails. The error has its error output.
    pub async fn run_on(&self, input: &str, words: &[&str]) -> Result<String> {
        let mut child = self.start(words, Stdio::piped())?;
        let mut writing = child.stdin.take().context("kubectl has no input")?;
        writing.write_all(input.as_bytes()).await.context("kubectl does not read")?;
        drop(writing);
        let output = child.wait_with_output().await.context("kubectl does not end")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(output.status.success(), "kubectl {} says: {}", words.join(" "), text(&output.stderr));
        Ok(text(&output.stdout))
    }

    /// Runs kubectl in the background and returns its lines. Dropping them ends it.
    ///
    /// # Errors
    /// kubectl cannot be started.
    pub fn watch(&self, words: &[&str]) -> Result<Watching> {
        let mut child = self.start(words, Stdio::null())?;
        let lines = BufReader::new(child.stdout.take().context("kubectl has no output")?).lines();
        Ok(Watching { _child: child, lines })
    }

    fn start(&self, words: &[&str], input: Stdio) -> Result<Child> {
        Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["--namespace", &self.namespace])
            .args(words)
            .env("HOME", self.home.path())
            .env_remove("KUBECONFIG")
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))
    }
}

/// A kubectl that keeps printing.
#[derive(Debug)]
pub struct Watching {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watching {
    /// Returns the next line that satisfies `wanted`.
    ///
    /// # Errors
    /// kubectl ended, or printed no such line within 120 s.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let found = async {
            while let Some(line) = self.lines.next_line().await.context("cannot read what kubectl prints")? {
                if wanted(&line) {
                    return Ok(line);
                }
            }
            anyhow::bail!("kubectl ended before it printed {what}")
        };
        let limit = std::time::Duration::from_secs(120);
        tokio::time::timeout(limit, found).await.with_context(|| format!("kubectl did not print {what}"))?
    }
}
