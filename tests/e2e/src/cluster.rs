//! The API server of a test: the embedded one, or the real one, behind one face.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use http::header;
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use pilothouse_real::Versions;
use serde_json::{Value, json};

use crate::{embedded::Embedded, metrics::Metrics, wait::eventually};

/// Which API server the tests run against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The one of `pilothouse dev`, served in this process.
    Embedded,
    /// etcd and kube-apiserver.
    Real,
}

/// Where an embedded server is told how to fail.
const FAULTS: &str = "/debug/faults";

/// Chooses the API server: `embedded`, which is the default, or `real`.
pub const VARIABLE: &str = "PILOTHOUSE_E2E";

impl Kind {
    /// What the environment asks for.
    ///
    /// # Errors
    /// `PILOTHOUSE_E2E` is neither of the two words.
    pub fn chosen() -> Result<Self> {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "embedded") => Ok(Self::Embedded),
            Ok("real") => Ok(Self::Real),
            Ok(other) => anyhow::bail!("{VARIABLE} is `{other}`: say `embedded` or `real`"),
        }
    }
}

/// A running API server, and a client that may do anything.
pub struct Cluster {
    server: Server,
    client: Client,
}

#[derive(Debug)]
enum Server {
    Embedded(Box<Embedded>),
    Real(Box<pilothouse_real::Cluster>),
}

impl Cluster {
    /// Starts one.
    ///
    /// # Errors
    /// It does not start: says why.
    pub async fn start(kind: Kind) -> Result<Self> {
        Ok(match kind {
            Kind::Embedded => {
                let server = Box::new(Embedded::start().await?);
                Self { client: server.client()?, server: Server::Embedded(server) }
            }
            Kind::Real => {
                let server = Box::new(pilothouse_real::Cluster::start().await?);
                Self { client: server.client().await?, server: Server::Real(server) }
            }
        })
    }

    /// Which one it is.
    pub fn kind(&self) -> Kind {
        match self.server {
            Server::Embedded(_) => Kind::Embedded,
            Server::Real(_) => Kind::Real,
        }
    }

    /// A client that may do anything.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// From now on an embedded server never answers the host's questions for one ConfigMap, which of our guests only `waiting` asks. A real one
    /// answers each at once.
    ///
    /// # Errors
    /// It does not take the rule.
    pub async fn hang(&self) -> Result<()> {
        if self.kind() == Kind::Embedded {
            let on = json!({"resource": "configmaps", "verbs": ["get"], "userAgent": "pilothouse"});
            let rule = json!({"on": on, "fault": "hang"}).to_string().into_bytes();
            let _rule: Value = self.faults(http::Request::post(FAULTS).body(rule)).await?;
        }
        Ok(())
    }

    /// From now on an embedded server shows the host no change of a resource: watches stay open, and are silent. A real one shows them.
    ///
    /// # Errors
    /// It does not take the rule.
    pub async fn hold(&self, resource: &str) -> Result<()> {
        if self.kind() == Kind::Embedded {
            let on = json!({"resource": resource, "verbs": ["watch"], "userAgent": "pilothouse"});
            let rule = json!({"on": on, "fault": "hold"}).to_string().into_bytes();
            let _rule: Value = self.faults(http::Request::post(FAULTS).body(rule)).await?;
        }
        Ok(())
    }

    /// Succeeds if the host has met what [`hang`](Self::hang) asked for.
    ///
    /// # Errors
    /// The embedded server has answered all.
    pub async fn has_hung(&self) -> Result<()> {
        if self.kind() == Kind::Embedded {
            let rules: Value = self
                .faults(http::Request::get(FAULTS).header(header::ACCEPT, "application/json").body(Vec::new()))
                .await?;
            let mut hits = rules.as_array().into_iter().flatten().filter_map(|rule| rule["hits"].as_u64());
            ensure!(hits.any(|hits| hits > 0), "the server has answered all: {rules}");
        }
        Ok(())
    }

    async fn faults(&self, request: http::Result<http::Request<Vec<u8>>>) -> Result<Value> {
        let request = request.context("cannot write the request")?;
        self.client.request(request).await.context("the server takes no faults")
    }

    /// A kubeconfig file for the host under test and for kubectl.
    pub fn kubeconfig(&self) -> PathBuf {
        match &self.server {
            Server::Embedded(server) => server.kubeconfig(),
            Server::Real(server) => server.kubeconfig(),
        }
    }

    /// A kubeconfig file of a user who was granted nothing; none where the server does not know users.
    pub fn kubeconfig_of_nobody(&self) -> Option<PathBuf> {
        match &self.server {
            Server::Embedded(_) => None,
            Server::Real(server) => Some(server.kubeconfig_of_nobody()),
        }
    }

    /// A kubeconfig file of the ordinary user [`OPERATOR`](pilothouse_real::OPERATOR), who was granted nothing yet; none where the server
    /// does not know users.
    pub fn kubeconfig_of_operator(&self) -> Option<PathBuf> {
        match &self.server {
            Server::Embedded(_) => None,
            Server::Real(server) => Some(server.kubeconfig_of_operator()),
        }
    }

    /// Ends the server without a farewell: connections are cut, new ones are refused.
    pub async fn kill(&self) {
        match &self.server {
            Server::Embedded(server) => server.stop().await,
            Server::Real(server) => server.kill_apiserver(),
        }
    }

    /// Starts a killed server again, on its data and its port.
    ///
    /// # Errors
    /// It does not start: says why.
    pub async fn restart(&self) -> Result<()> {
        match &self.server {
            Server::Embedded(server) => server.restart().await,
            Server::Real(server) => server.restart_apiserver().await,
        }
    }

    /// Ends etcd as a crash does and starts it again, on its data and its port; returns when the API server has found it. Nothing
    /// happens where there is none.
    ///
    /// # Errors
    /// It does not start: says why.
    pub async fn restart_etcd(&self) -> Result<()> {
        match &self.server {
            Server::Embedded(_) => Ok(()),
            Server::Real(server) => {
                server.restart_etcd().await?;
                self.is_ready().await
            }
        }
    }

    /// Keeps a copy of all data, for [`Cluster::restore`].
    ///
    /// # Errors
    /// It cannot be copied, or the server does not come back from it.
    pub async fn save(&self) -> Result<()> {
        match &self.server {
            Server::Embedded(server) => server.save().await,
            Server::Real(server) => server.save().await?,
        }
        self.is_ready().await
    }

    /// Stops the server, takes its data back to what was saved, and starts it again. The embedded one knows only
    /// [`Versions::Back`].
    ///
    /// # Errors
    /// Nothing was saved, or the server does not start.
    pub async fn restore(&self, versions: Versions) -> Result<()> {
        match &self.server {
            Server::Embedded(server) => server.restore().await,
            Server::Real(server) => server.restore(versions).await,
        }
    }

    async fn is_ready(&self) -> Result<()> {
        eventually("the API server is ready", async || {
            let (code, text) = get(&self.client, "/readyz").await?;
            anyhow::ensure!(code == 200, "/readyz answers {code}: {text}");
            Ok(())
        })
        .await
    }

    /// What the server says on `/metrics`.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn metrics(&self) -> Result<Metrics> {
        let (code, text) = get(&self.client, "/metrics").await?;
        anyhow::ensure!(code == 200, "the API server answered {code} to /metrics");
        Ok(Metrics::parse(&text))
    }

    /// How many requests that write one of `resources` (in plural, as in URLs) the server has answered so far, successful
    /// or not, from whomever they came.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn writes_of(&self, resources: &[&str]) -> Result<f64> {
        let reads = ["GET", "LIST", "WATCH"];
        Ok(self.metrics().await?.sum_where("apiserver_request_total", |label| {
            resources.contains(&label("resource").as_str()) && !reads.contains(&label("verb").as_str())
        }))
    }

    /// The server's last log lines, where it has a log.
    pub fn last_lines(&self, count: usize) -> String {
        match &self.server {
            Server::Embedded(_) => String::new(),
            Server::Real(server) => server.last_lines(count),
        }
    }
}

/// A client that tells what the server said: kube's own would send a request again where the answer is 429, 503 or 504.
pub(crate) fn client(mut config: kube::Config) -> Result<Client> {
    config.default_retry = false;
    Client::try_from(config).context("cannot make a client")
}

/// The status and the body of a GET, whatever the status is.
pub(crate) async fn get(client: &Client, path: &str) -> Result<(u16, String)> {
    let request = http::Request::get(path).body(Body::empty()).context("cannot ask for that path")?;
    let response = client.send(request).await.with_context(|| format!("no answer to GET {path}"))?;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.with_context(|| format!("the answer to GET {path} broke off"))?;
    Ok((code, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
}
