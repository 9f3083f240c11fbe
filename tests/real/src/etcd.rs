//! Copies etcd's data and raises its revision.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use kube::Client;
use serde_json::{Value, json};

/// Copies the folder `from` to `to`, which it replaces. etcd must not run.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    copy_into(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn copy_into(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir(to)?;
    // etcd insists that nobody else may read its folder.
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let (entry, to) = entry.map(|entry| (entry.path(), to.join(entry.file_name())))?;
        if entry.is_dir() {
            copy_into(&entry, &to)?;
        } else {
            fs::copy(&entry, &to)?;
        }
    }
    Ok(())
}

/// etcd's own API, by its JSON gateway.
pub(crate) struct Api {
    client: Client,
}

impl Api {
    pub(crate) fn new(port: u16) -> Result<Self> {
        let url = format!("http://127.0.0.1:{port}").parse().context("cannot make a URL of etcd's address")?;
        Ok(Self { client: Client::try_from(kube::Config::new(url)).context("cannot make a client for etcd")? })
    }

    /// The revision of the last change, which is the newest resource version of Kubernetes.
    pub(crate) async fn revision(&self) -> Result<u64> {
        let answer = self.ask("/v3/maintenance/status", &json!({})).await?;
        revision(&answer)
    }

    /// Writes a key that Kubernetes does not use until the revision is above `newest`, then compacts the history up to
    /// there.
    pub(crate) async fn raise_above(&self, newest: u64) -> Result<()> {
        let mut revision = self.revision().await?;
        ensure!(revision <= newest, "the data to be raised is at revision {revision}, above {newest} already");
        while revision <= newest {
            // `raise`, in base64.
            let answer = self.ask("/v3/kv/put", &json!({"key": "cmFpc2U=", "value": ""})).await?;
            revision = self::revision(&answer)?;
        }
        self.ask("/v3/kv/compaction", &json!({"revision": revision, "physical": true})).await.map(drop)
    }

    async fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let request =
            http::Request::post(path).body(body.to_string().into_bytes()).context("cannot write the request")?;
        self.client.request(request).await.with_context(|| format!("etcd does not answer {path}"))
    }
}

fn revision(answer: &Value) -> Result<u64> {
    let revision = answer["header"]["revision"].as_str().and_then(|text| text.parse().ok());
    revision.with_context(|| format!("etcd's answer has no revision: {answer}"))
}
