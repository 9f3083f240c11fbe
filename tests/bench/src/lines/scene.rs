//! The real host as a process, with the example plugin, against the embedded API server in this process.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::PostParams;
use pilothouse_e2e::{Apple, Cluster, Kind, Plugin, host};
use pilothouse_real::process::Process;
use serde_json::{from_value, json};
use tempfile::TempDir;

use crate::memory;

const NAMESPACE: &str = "orchard";

/// A server and a host on it, both of one round. Dropped, they end.
pub(super) struct Scene {
    pub(super) cluster: Cluster,
    host: Process,
    _folder: TempDir,
}

impl Scene {
    /// Starts both; returns when the plugin has reconciled a first MyApple.
    pub(super) async fn start() -> Result<Self> {
        let cluster = Cluster::start(Kind::Embedded).await?;
        let namespace: Namespace = from_value(json!({"metadata": {"name": NAMESPACE}})).context("not a namespace")?;
        let namespaces: Api<Namespace> = Api::all(cluster.client());
        namespaces.create(&PostParams::default(), &namespace).await.context("cannot create the namespace")?;

        let folder = tempfile::tempdir().context("cannot create a folder for the plugin")?;
        let plugins = folder.path().join("plugins");
        fs::create_dir(&plugins).context("cannot create a folder for the plugin")?;
        let Plugin { name, wasm, yaml } = Plugin::myapple()?;
        fs::write(plugins.join(format!("{name}.yaml")), yaml.context("the plugin has no grants")?)
            .and_then(|()| fs::write(plugins.join(format!("{name}.wasm")), wasm))
            .context("cannot write the plugin")?;

        let mut command = Command::new(host::binary()?);
        command
            .arg("run")
            .arg("--plugins")
            .arg(&plugins)
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig())
            .args(["--admin-address", "127.0.0.1:0"])
            .env_remove("PILOTHOUSE_LOG");
        let host = Process::start("the host", command, &folder.path().join("host.log"))?;
        let scene = Self { cluster, host, _folder: folder };
        let first = scene.apple("first");
        first.create(1).await?.settles().await.with_context(|| scene.host.last_lines(20))?;
        first.delete().await?;
        Ok(scene)
    }

    /// A MyApple, which need not exist.
    pub(super) fn apple(&self, name: &str) -> Apple {
        Apple::new(self.cluster.client(), NAMESPACE, name)
    }

    /// Bytes that are resident in the host.
    pub(super) fn resident(&self) -> Result<usize> {
        memory::resident_of(self.host.id())
    }
}
