//! A host as in a pod: a service account's token in a file and the server's address in the environment, but no
//! kubeconfig.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use pilothouse_e2e::{
    Plugin, Pod, Scene, cluster::Kind, image::may_unshare, install::server_and_ca, suite::NotHere, wait::within,
};
use serde_json::{Value, json};

/// The host reads the token file again after at most a minute. The plugin's next retry comes at most a minute later.
pub(crate) const ROTATED: Duration = Duration::from_secs(150);

pub(crate) async fn a_pods_service_account_is_used_and_its_rotated_token_followed(scene: Scene) -> Result<()> {
    if scene.cluster.kind() == Kind::Embedded {
        return Err(NotHere("the embedded API server has no TLS, and asks for no token").into());
    }
    if !may_unshare() {
        return Err(NotHere("no mount namespace of one's own (unshare -rm), so no service account's folder").into());
    }
    let account = Account::create(&scene).await?;
    let folder = scene.folder().join("serviceaccount");
    let (server, ca) = server_and_ca(&scene.cluster.kubeconfig())?;
    std::fs::create_dir(&folder).context("cannot create the service account's folder")?;
    write(&folder, "ca.crt", &ca)?;
    write(&folder, "namespace", scene.namespace.as_bytes())?;
    let first = account.token(&scene, "first").await?;
    write(&folder, "token", first.as_bytes())?;

    let pod = Pod { service_account: folder.clone(), server };
    let mut host = scene.with(&[Plugin::myapple()?])?.host_in(pod)?;
    host.ready().await?;
    scene.apple("gala").create(3).await?.settles().await?;

    let second = account.token(&scene, "second").await?;
    write(&folder, "token", second.as_bytes())?;
    // A token is valid as long as the object that it is bound to exists.
    account.revoke(&scene, "first", &first).await?;
    let fuji = scene.apple("fuji");
    fuji.create(2).await?;
    within(ROTATED, "the host uses the rotated token", async || fuji.settles().await).await?;
    host.ready().await
}

/// Replaces the files atomically, as the kubelet does.
pub(crate) fn write(folder: &Path, name: &str, content: &[u8]) -> Result<()> {
    let new = folder.join(format!("{name}.new"));
    std::fs::write(&new, content).with_context(|| format!("cannot write {}", new.display()))?;
    std::fs::rename(&new, folder.join(name)).with_context(|| format!("cannot put {name} in its place"))
}

/// A service account with all permissions.
pub(crate) struct Account {
    namespace: String,
}

impl Account {
    pub(crate) async fn create(scene: &Scene) -> Result<Self> {
        let namespace = scene.namespace.clone();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "pilothouse"}});
        post(scene, &format!("/api/v1/namespaces/{namespace}/serviceaccounts"), &account).await?;
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": format!("pilothouse-{namespace}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "pilothouse", "namespace": namespace}],
        });
        post(scene, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await?;
        Ok(Self { namespace })
    }

    /// Creates a Secret of this name and a token that is bound to it.
    pub(crate) async fn token(&self, scene: &Scene, secret: &str) -> Result<String> {
        let core = format!("/api/v1/namespaces/{}", self.namespace);
        let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}});
        let object = post(scene, &format!("{core}/secrets"), &object).await?;
        let bound = json!({
            "apiVersion": "v1", "kind": "Secret", "name": secret, "uid": object["metadata"]["uid"],
        });
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [], "boundObjectRef": bound},
        });
        let answer = post(scene, &format!("{core}/serviceaccounts/pilothouse/token"), &request).await?;
        Ok(answer["status"]["token"].as_str().context("the server gives no token")?.to_owned())
    }

    /// Invalidates the token that is bound to that Secret. Returns when the server rejects it.
    pub(crate) async fn revoke(&self, scene: &Scene, secret: &str, token: &str) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/secrets/{secret}", self.namespace);
        let request = http::Request::delete(path).body(Vec::new()).context("cannot write the request")?;
        scene.client().request::<Value>(request).await.context("cannot delete the token's Secret")?;
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        within(ROTATED, "the first token ends", async || {
            let answer = post(scene, "/apis/authentication.k8s.io/v1/tokenreviews", &review).await?;
            ensure!(answer["status"]["authenticated"] != true, "the server still takes it");
            Ok(())
        })
        .await
    }
}

async fn post(scene: &Scene, path: &str, object: &Value) -> Result<Value> {
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(object.to_string().into_bytes())
        .context("cannot write the request")?;
    scene.client().request(request).await.with_context(|| format!("cannot POST to {path}"))
}
