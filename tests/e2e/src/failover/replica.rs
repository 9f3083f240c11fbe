//! One host of a run, with an account of its own and a line to the API server that can be cut.

use std::path::Path;

use anyhow::{Context, Result};
use kube::Client;
use serde_json::{Value, json};

use super::judge::Name;
use crate::{
    host::Host,
    relay::{Line, Relay},
    scene::Scene,
};

/// A host.
pub(super) struct Replica {
    pub(super) name: Name,
    pub(super) host: Host,
    relay: Relay,
}

impl Replica {
    /// Starts the host `host-NUMBER`, which acts as the service account of this name.
    ///
    /// `files` is a folder for kubeconfigs.
    pub(super) async fn start(scene: &Scene, files: &Path, number: usize) -> Result<Self> {
        let name = format!("host-{number}");
        let token = token(&scene.client(), &scene.namespace, &name).await?;
        let folder = files.join(&name);
        std::fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let text = std::fs::read(scene.cluster.kubeconfig()).context("cannot read the kubeconfig")?;
        let mut kubeconfig: Value = serde_json::from_slice(&text).context("the kubeconfig is not JSON")?;
        kubeconfig["users"][0]["user"] = json!({ "token": token });
        let path = folder.join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).with_context(|| format!("cannot write {}", path.display()))?;
        let (relay, path) = Relay::before(&path, &folder).await?;
        Ok(Self { name: name.into(), host: scene.host_as(path)?, relay })
    }

    /// Changes what becomes of its connections to the API server.
    pub(super) fn set(&self, line: Line) {
        self.relay.set(line);
    }

    /// Waits until it is ready, to act or to take over.
    pub(super) async fn is_ready(&mut self) -> Result<()> {
        self.host.ready().await.with_context(|| format!("{} is not ready", self.name))
    }
}

/// Grants everything to all service accounts of a namespace.
pub(super) async fn grant(client: &Client, namespace: &str) -> Result<()> {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": format!("pilothouse-{namespace}")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{
            "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": format!("system:serviceaccounts:{namespace}"),
        }],
    });
    post(client, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.map(drop)
}

/// Creates a service account, and returns a token for it.
async fn token(client: &Client, namespace: &str, name: &str) -> Result<String> {
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    post(client, &accounts, &account).await?;
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": [], "expirationSeconds": 86_400},
    });
    let answer = post(client, &format!("{accounts}/{name}/token"), &request).await?;
    Ok(answer["status"]["token"].as_str().context("the server gives no token")?.to_owned())
}

async fn post(client: &Client, path: &str, object: &Value) -> Result<Value> {
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(object.to_string().into_bytes())
        .context("cannot write the request")?;
    client.request(request).await.with_context(|| format!("cannot POST to {path}"))
}
