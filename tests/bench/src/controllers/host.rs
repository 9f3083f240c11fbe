//! The real host as a process. One of its plugins logs each call, with the time.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use pilothouse_e2e::{Plugin, Plugins, admin::Admin, host};
use pilothouse_real::process::Process;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::time::sleep;

use super::{Called, Stage, now};

/// Interval at which the log is read.
const POLL: Duration = Duration::from_millis(1);

/// The moment at which a plugin logs its call.
#[derive(Clone, Copy)]
pub(crate) enum Says {
    /// When its export is entered, before any other code of the guest.
    Entered,
    /// When the author's function is entered, with a typed object.
    Typed,
}

impl Says {
    fn guest(self) -> &'static str {
        match self {
            Self::Entered => "entering",
            Self::Typed => "noting",
        }
    }
}

/// A host process. Dropping it kills the process.
pub(crate) struct Host {
    process: Process,
    log: BufReader<File>,
    admin: Option<Admin>,
    /// The incomplete last line.
    line: Vec<u8>,
    /// Plugins without a logged call since [`Self::listen_for`]: the text to find in a line, and the plugin's name.
    unheard: Vec<(Vec<u8>, String)>,
    plugins: Arc<Plugins>,
    _folder: TempDir,
}

impl Host {
    /// Starts a host on the stage's wire, with `plugins` and the one that logs its calls.
    pub(crate) fn start(stage: &Stage, says: Says, plugins: &[Plugin]) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot create a folder for the host")?;
        let [cache, kubeconfig, log] = ["cache", "kubeconfig", "log"].map(|name| folder.path().join(name));
        let files = Plugins::empty()?;
        for plugin in plugins.iter().chain([&Plugin::guest(says.guest())?]) {
            ensure!(plugin.yaml.is_some(), "{} has no grants", plugin.name);
            files.put(plugin)?;
        }
        stage.wire.write_kubeconfig(&kubeconfig)?;
        let mut command = Command::new(host::binary()?);
        command
            .arg("run")
            .arg("--plugins")
            .arg(files.path())
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--cache-dir")
            .arg(&cache);
        command
            .args([
                "--metrics-address=127.0.0.1:0",
                "--health-probe-address=0",
                "--log-format=json",
                "--leader-elect=false",
            ])
            .env_remove("PILOTHOUSE_LOG");
        let process = Process::start("the host", command, &log)?;
        let log = BufReader::new(File::open(&log).context("cannot read the host's log")?);
        Ok(Self {
            process,
            log,
            admin: None,
            line: Vec::new(),
            unheard: Vec::new(),
            plugins: Arc::new(files),
            _folder: folder,
        })
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its admin endpoint, once the log has its address.
    pub(crate) fn admin(&self) -> Result<Admin> {
        self.admin.clone().context("the host does not say where its admin endpoint is")
    }

    /// The folder of its plugins.
    pub(crate) fn plugins(&self) -> Arc<Plugins> {
        self.plugins.clone()
    }

    /// Waits until this many plugins serve and nothing is compiled any more.
    pub(crate) async fn serves(&mut self, plugins: usize) -> Result<()> {
        let mut active = 0;
        while active < plugins {
            match self.next_line()? {
                Some(line) => active += usize::from(memchr::memmem::find(&line, b"plugin is active").is_some()),
                None => self.waits().await?,
            }
        }
        self.admin()?.code_is_optimized().await
    }

    /// Adds a plugin and waits until it fails to load.
    pub(crate) async fn refuses(&mut self, plugin: &Plugin) -> Result<()> {
        self.plugins.put(plugin)?;
        loop {
            match self.next_line()? {
                Some(line) if memchr::memmem::find(&line, b"cannot bring the plugin up").is_some() => return Ok(()),
                Some(_) => {}
                None => self.waits().await?,
            }
        }
    }

    /// Replaces a plugin and returns the time until the new revision serves.
    pub(crate) async fn reloads(&mut self, plugin: &Plugin) -> Result<Duration> {
        while self.next_line()?.is_some() {}
        let start = now();
        self.plugins.put(plugin)?;
        loop {
            match self.next_line()? {
                Some(line) if memchr::memmem::find(&line, b"plugin is active").is_some() => {
                    let active = Line::read(&line)?.time()?;
                    return active.checked_sub(start).context("it served before it was there");
                }
                Some(_) => {}
                None => self.waits().await?,
            }
        }
    }

    /// Starts to look for log lines that show calls of these plugins.
    pub(crate) fn listen_for(&mut self, plugins: impl Iterator<Item = String>) -> Result<()> {
        while self.next_line()?.is_some() {}
        self.unheard = plugins.map(|name| (format!(r#""plugin":"{name}""#).into_bytes(), name)).collect();
        Ok(())
    }

    /// Returns the plugins without a call so far.
    pub(crate) fn unheard(&self) -> impl Iterator<Item = &str> {
        self.unheard.iter().map(|(_, name)| name.as_str())
    }

    /// Waits until the log may have grown.
    async fn waits(&mut self) -> Result<()> {
        if let Some(status) = self.process.exited() {
            anyhow::bail!("the host ended with {status}\n{}", self.process.last_lines(20));
        }
        sleep(POLL).await;
        Ok(())
    }

    /// Returns the next complete line of the log, if any.
    fn next_line(&mut self) -> Result<Option<Vec<u8>>> {
        self.log.read_until(b'\n', &mut self.line).context("cannot read the host's log")?;
        if !self.line.ends_with(b"\n") {
            return Ok(None);
        }
        let line = std::mem::take(&mut self.line);
        let has = |text: &[u8]| memchr::memmem::find(&line, text).is_some();
        if self.admin.is_none() {
            self.admin = Admin::logged(&line)?;
        }
        // A plugin's quarantine is logged, too.
        if !has(b"quarantined") {
            self.unheard.retain(|(of, _)| !has(of));
        }
        Ok(Some(line))
    }
}

impl Called for Host {
    async fn called(&mut self, mark: &str) -> Result<Duration> {
        loop {
            while let Some(line) = self.next_line()? {
                if let Some(at) = called(&line, mark) {
                    return at;
                }
            }
            self.waits().await?;
        }
    }
}

/// The parts of a log line that matter here.
#[derive(Deserialize)]
struct Line<'a> {
    timestamp: &'a str,
    message: &'a str,
}

impl<'a> Line<'a> {
    fn read(line: &'a [u8]) -> Result<Self> {
        serde_json::from_slice(line).context("not a line of a log in JSON")
    }

    /// Time since 1970.
    fn time(&self) -> Result<Duration> {
        let at: k8s_openapi::jiff::Timestamp = self.timestamp.parse().context("its time is none")?;
        Ok(at.duration_since(k8s_openapi::jiff::Timestamp::UNIX_EPOCH).unsigned_abs())
    }
}

/// Returns when the plugin was called for the change with this mark, if the line says that.
fn called(line: &[u8], mark: &str) -> Option<Result<Duration>> {
    memchr::memmem::find(line, format!("\"mark\":\"{mark}\"").as_bytes())?;
    let read = || {
        let line = Line::read(line)?;
        ensure!(line.message == "called", "the plugin says {:?}", line.message);
        line.time()
    };
    Some(read())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_call_is_read_off_the_log() {
        let line = br#"{"timestamp":"1970-01-01T00:00:01.000250Z","level":"INFO","message":"called","fields":{"name":"map-01","mark":"mark-000007"},"target":"pilothouse::plugin_log"}"#;
        assert!(called(line, "mark-000008").is_none());
        let at = called(line, "mark-000007").expect("it is that line").expect("it is whole");
        assert_eq!(at, Duration::from_micros(1_000_250));
        assert!(called(br#""mark":"mark-000007""#, "mark-000007").expect("it is that line").is_err());
    }
}
