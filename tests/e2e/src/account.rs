//! A service account with rights that a test chooses.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};

use crate::wait::eventually;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A service account, and a Role `test-NAME` in its own namespace.
#[derive(Clone)]
pub struct ServiceAccount {
    client: Client,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ServiceAccount {
    /// Creates an account that may do nothing.
    ///
    /// # Errors
    /// The server rejects it.
    pub async fn create(client: Client, namespace: &str, name: &str) -> Result<Self> {
        let account = Self { client, namespace: namespace.to_owned(), name: name.to_owned() };
        let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        account.post(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), &object).await?;
        let place = format!("{RBAC}/namespaces/{namespace}");
        let role_name = format!("test-{name}");
        let role = json!({"metadata": {"name": role_name}, "rules": []});
        account.post(&format!("{place}/roles"), &role).await?;
        let binding = json!({
            "metadata": {"name": role_name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role_name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        });
        account.post(&format!("{place}/rolebindings"), &binding).await?;
        Ok(account)
    }

    /// Returns the account's name as a user.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    /// Replaces what the account may do in its namespace.
    ///
    /// # Errors
    /// The server rejects the rules.
    pub async fn may(&self, rules: &Value) -> Result<()> {
        let path = format!("{RBAC}/namespaces/{}/roles/test-{}", self.namespace, self.name);
        set_rules(&self.client, &path, rules).await
    }

    /// Writes a kubeconfig with a token of this account: a copy of `of`, which names the server.
    ///
    /// # Errors
    /// The server gives no token, or the file cannot be written.
    pub async fn kubeconfig(&self, of: &Path, folder: &Path) -> Result<PathBuf> {
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{}/token", self.namespace, self.name);
        let request =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
        let answer = self.post(&path, &request).await?;
        let token = answer["status"]["token"].as_str().context("the server gives no token")?;
        let text = std::fs::read_to_string(of).context("cannot read the cluster's kubeconfig")?;
        let mut config = pilothouse_apiserver::yaml::first(&text)?.value;
        let user = &config["contexts"][0]["context"]["user"].clone();
        config["users"] = json!([{"name": user.as_str().unwrap_or("it"), "user": {"token": token}}]);
        config["contexts"][0]["context"]["user"] = user.as_str().unwrap_or("it").into();
        config["contexts"][0]["context"]["namespace"] = (*self.namespace).into();
        let written = folder.join(format!("{}.kubeconfig", self.name));
        std::fs::write(&written, config.to_string()).context("cannot write the kubeconfig")?;
        Ok(written)
    }

    async fn post(&self, path: &str, object: &Value) -> Result<Value> {
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(object.to_string().into_bytes())
            .context("cannot write the request")?;
        self.client.request(request).await.with_context(|| format!("cannot POST to {path}"))
    }
}

/// Replaces the rules of the Role or ClusterRole at a path, and returns once the server has them.
///
/// # Errors
/// The server rejects the rules.
pub async fn set_rules(client: &Client, path: &str, rules: &Value) -> Result<()> {
    let patch = json!({ "rules": rules }).to_string().into_bytes();
    let request = Request::patch(path).header(header::CONTENT_TYPE, "application/merge-patch+json").body(patch);
    let request = request.context("cannot write the request")?;
    client.request::<Value>(request).await.with_context(|| format!("cannot PATCH {path}"))?;
    Ok(())
}

/// Waits until the API server judges an account by its newest rules: it may do something, or it may not.
///
/// # Errors
/// It does not in time.
pub async fn is_judged(client: &Client, attributes: &Value, user: &str, allowed: bool) -> Result<()> {
    let spec = json!({"user": user, "resourceAttributes": attributes});
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
    eventually("the server judges by the newest rules", async || {
        let request = Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
            .header(header::CONTENT_TYPE, "application/json")
            .body(review.to_string().into_bytes())
            .context("cannot write the request")?;
        let answer: Value = client.request(request).await.context("cannot ask")?;
        ensure!(answer["status"]["allowed"] == allowed, "{attributes}: {}", answer["status"]);
        Ok(())
    })
    .await
}
