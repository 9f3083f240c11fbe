//! The real host as a process, with plugins, against the embedded API server in this process, or a real one.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use pilothouse_e2e::{Apple, Cluster, Kind, Plugin, Plugins, admin::Admin, eventually, host};
use pilothouse_real::process::Process;
use tempfile::TempDir;

use crate::{controllers::create_namespace, memory};

pub(super) const NAMESPACE: &str = "orchard";

/// A server and a host for one round. Dropping them ends both.
pub(super) struct Scene {
    pub(super) cluster: Cluster,
    host: Process,
    _plugins: Plugins,
    _folder: TempDir,
}

impl Scene {
    /// Starts both and waits until the example plugin has reconciled a first MyApple.
    pub(super) async fn start(kind: Kind) -> Result<Self> {
        let scene = Self::with(kind, &[NAMESPACE], &[Plugin::myapple()?], &[]).await?;
        let first = scene.apple("first");
        first.create(1).await?.settles().await.with_context(|| scene.last_lines())?;
        first.delete().await?;
        scene.code_is_optimized().await?;
        Ok(scene)
    }

    /// Starts both with these namespaces, plugins and further arguments of `run`, and returns at once.
    pub(super) async fn with(kind: Kind, namespaces: &[&str], plugins: &[Plugin], arguments: &[&str]) -> Result<Self> {
        let cluster = Cluster::start(kind).await?;
        for name in namespaces {
            create_namespace(&cluster, name).await?;
        }
        let files = Plugins::empty()?;
        for plugin in plugins {
            ensure!(plugin.yaml.is_some(), "{} has no grants", plugin.name);
            files.put(plugin)?;
        }
        let folder = tempfile::tempdir().context("cannot create a folder for the host's log")?;
        let mut command = Command::new(host::binary()?);
        command
            .arg("run")
            .arg("--plugins")
            .arg(files.path())
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig())
            .args([
                "--metrics-address=127.0.0.1:0",
                "--health-probe-address=0",
                "--log-format=json",
                "--leader-elect=false",
            ])
            .args(arguments)
            .env_remove("PILOTHOUSE_LOG");
        let host = Process::start("the host", command, &folder.path().join("host.log"))?;
        Ok(Self { cluster, host, _plugins: files, _folder: folder })
    }

    /// Waits until nothing is compiled any more.
    pub(super) async fn code_is_optimized(&self) -> Result<()> {
        let admin = eventually("the host serves its admin endpoint", async || {
            let log = fs::read(self.host.log()).context("cannot read the host's log")?;
            let serving = log.split(|byte| *byte == b'\n').find_map(|line| Admin::logged(line).transpose());
            serving.transpose()?.context("it does not yet")
        });
        admin.await?.code_is_optimized().await.with_context(|| self.last_lines())
    }

    /// Names a MyApple. It need not exist.
    pub(super) fn apple(&self, name: &str) -> Apple {
        Apple::new(self.cluster.client(), NAMESPACE, name)
    }

    /// The host's process id.
    pub(super) fn id(&self) -> u32 {
        self.host.id()
    }

    /// The host's private memory in bytes.
    pub(super) fn private(&self) -> Result<usize> {
        Ok(memory::rollup_of(self.host.id())?.private)
    }

    /// The last lines of the host's log.
    pub(super) fn last_lines(&self) -> String {
        self.host.last_lines(20)
    }

    /// The host's resident memory in bytes.
    pub(super) fn resident(&self) -> Result<usize> {
        memory::resident_of(self.host.id())
    }
}
