//! The API server of a run, as its own process, and the requests of the test to it.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use pilothouse_apiserver::faults::Rule;
use pilothouse_real::process::Process;
use serde_json::{Value, json};

use super::world::{self, Change, NAMESPACES};
use crate::{cluster::client, host::binary, random::Random, wait::eventually};

/// Timeout of the test's own requests. Only rules about connections affect them.
const LIMIT: Duration = Duration::from_secs(30);

/// The collection of CRDs.
pub(super) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// `pilothouse apiserver`, and a client of it.
pub(super) struct Server {
    client: Client,
    url: http::Uri,
    kubeconfig: PathBuf,
    /// Killed when dropped.
    _process: Process,
}

impl Server {
    /// Starts it, with its files in `folder`.
    pub(super) async fn start(folder: &Path) -> Result<Self> {
        let kubeconfig: PathBuf = folder.join("kubeconfig");
        let mut command = Command::new(binary()?);
        command.args(["apiserver", "--port", "0", "--kubeconfig-out"]).arg(&kubeconfig);
        let mut process = Process::start("the API server", command, &folder.join("apiserver.log"))?;
        let url = eventually("the API server answers", async || {
            ensure!(process.exited().is_none(), "it ended: {}", process.last_lines(10));
            let config = kube::config::Kubeconfig::read_from(&kubeconfig).context("no kubeconfig yet")?;
            let options = kube::config::KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(config, &options).await;
            let url = config.context("no whole kubeconfig yet")?.cluster_url;
            client(kube::Config::new(url.clone()))?.apiserver_version().await.context("no answer yet")?;
            Ok(url)
        })
        .await?;
        Ok(Self { client: client(kube::Config::new(url.clone()))?, url, kubeconfig, _process: process })
    }

    /// The file with which the host finds it.
    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The server's address.
    pub(super) fn url(&self) -> &http::Uri {
        &self.url
    }

    /// Creates namespaces and CRDs.
    pub(super) async fn prepare(&self, namespaces: &[&str], definitions: &[Value]) -> Result<()> {
        for name in namespaces {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            self.wanted(Method::POST, "/api/v1/namespaces", Some(&namespace)).await?;
        }
        for definition in definitions {
            self.wanted(Method::POST, DEFINITIONS, Some(definition)).await?;
        }
        Ok(())
    }

    /// Creates the namespaces, the CRD and the first objects.
    pub(super) async fn fill(&self, random: &mut Random) -> Result<()> {
        self.prepare(&NAMESPACES, &[world::definition()]).await?;
        for change in world::first(random) {
            eventually("a first object is there", async || self.write(&change).await).await?;
        }
        Ok(())
    }

    /// Makes a change, whether the object exists or not, and returns the object after it.
    pub(super) async fn write(&self, change: &Change) -> Result<Option<Value>> {
        let Change { collection, name, object } = change;
        let path = format!("{collection}/{name}");
        let Some(object) = object else {
            let (code, text) = self.ask(Method::DELETE, &path, None).await?;
            ensure!(matches!(code, 200 | 202 | 404), "DELETE {path} is answered with {code}: {text}");
            return Ok(None);
        };
        let (code, text) = self.ask(Method::PATCH, &path, Some(object)).await?;
        let (code, text) = match code {
            404 => self.ask(Method::POST, collection, Some(&without_nulls(object))).await?,
            _ => (code, text),
        };
        ensure!(matches!(code, 200 | 201), "writing {path} is answered with {code}: {text}");
        Ok(Some(serde_json::from_str(&text).with_context(|| format!("{path} is no JSON"))?))
    }

    /// Returns an object, or `None` if it does not exist.
    pub(super) async fn get(&self, collection: &str, name: &str) -> Result<Option<Value>> {
        let path = format!("{collection}/{name}");
        eventually("an object is read", async || {
            let (code, text) = self.ask(Method::GET, &path, None).await?;
            ensure!(matches!(code, 200 | 404), "GET {path} is answered with {code}: {text}");
            Ok((code == 200).then(|| serde_json::from_str(&text)).transpose()?)
        })
        .await
    }

    /// Sends a request that may fail, and returns the body of the answer.
    pub(super) async fn try_to(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let (code, text) = self.ask(method.clone(), path, body).await?;
        ensure!((200..300).contains(&code), "{method} {path} is answered with {code}: {text}");
        Ok(serde_json::from_str(&text)?)
    }

    /// Lists the objects of a collection that match the selectors.
    pub(super) async fn list(&self, collection: &str, labels: &str, fields: &str) -> Result<Vec<Value>> {
        let [labels, fields] =
            [labels, fields].map(|text| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>());
        let path = format!("{collection}?labelSelector={labels}&fieldSelector={fields}");
        let mut list = self.wanted(Method::GET, &path, None).await?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => anyhow::bail!("the list of {collection} has no items"),
        }
    }

    /// Adds a fault rule and returns its number.
    pub(super) async fn add(&self, rule: &Rule) -> Result<u64> {
        let rule = serde_json::to_value(rule).context("a rule is JSON")?;
        let answer = self.wanted(Method::POST, "/debug/faults", Some(&rule)).await?;
        answer["id"].as_u64().with_context(|| format!("a rule without a number: {answer}"))
    }

    /// Returns how often each rule was applied, by number.
    pub(super) async fn hits(&self) -> Result<Vec<(u64, u64)>> {
        let list = self.wanted(Method::GET, "/debug/faults", None).await?;
        let rules = list.as_array().context("the rules are no list")?.iter();
        Ok(rules.filter_map(|rule| Some((rule["id"].as_u64()?, rule["hits"].as_u64()?))).collect())
    }

    pub(super) async fn remove(&self, rule: u64) -> Result<()> {
        self.wanted(Method::DELETE, &format!("/debug/faults/{rule}"), None).await.map(drop)
    }

    /// Removes every rule.
    pub(super) async fn clear(&self) -> Result<()> {
        self.wanted(Method::DELETE, "/debug/faults", None).await.map(drop)
    }

    /// Deletes a snapshot.
    pub(super) async fn forget(&self, snapshot: &str) -> Result<()> {
        self.wanted(Method::DELETE, &format!("/debug/snapshots/{snapshot}"), None).await.map(drop)
    }

    /// Sends a request to `/debug/`.
    pub(super) async fn order(&self, path: &str, body: &Value) -> Result<()> {
        self.wanted(Method::POST, &format!("/debug/{path}"), Some(body)).await.map(drop)
    }

    /// Sends a request and returns the body of a successful answer, with text as a JSON string.
    async fn wanted(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let (code, text) =
            eventually("the API server answers", async || self.ask(method.clone(), path, body).await).await?;
        ensure!((200..300).contains(&code), "{method} {path} is answered with {code}: {text}");
        Ok(serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(u16, String)> {
        let content = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let what = format!("{method} {path}");
        let request = Request::builder().method(method).uri(path).header("content-type", content);
        let request = request.header("accept", "application/json");
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = request.body(Body::from(body)).context("cannot ask for that path")?;
        let exchange = async {
            let response = self.client.send(request).await.with_context(|| format!("no answer to {what}"))?;
            let code = response.status().as_u16();
            let body = response.into_body().collect().await.with_context(|| format!("half an answer to {what}"))?;
            Ok((code, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
        };
        tokio::time::timeout(LIMIT, exchange).await.with_context(|| format!("no answer to {what} in time"))?
    }
}

/// Turns a merge patch into an object.
fn without_nulls(patch: &Value) -> Value {
    match patch {
        Value::Object(members) => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            members.map(|(name, value)| (name.clone(), without_nulls(value))).collect()
        }
        other => other.clone(),
    }
}
