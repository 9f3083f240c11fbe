//! The API server of a test: one interface over the embedded and the real one.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use http::header;
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use pilothouse_real::{Versions, audit};
use serde_json::{Value, json};

use crate::{embedded::Embedded, metrics::Metrics, wait::eventually};

/// Which API server the tests run against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The server of `pilothouse dev`, in this process.
    Embedded,
    /// etcd and kube-apiserver.
    Real,
}

/// Path of the embedded server at which fault rules are set.
const FAULTS: &str = "/debug/faults";

/// Environment variable that selects the API server: `embedded` (default) or `real`.
pub const VARIABLE: &str = "PILOTHOUSE_E2E";

impl Kind {
    /// Returns the server that the environment selects.
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

/// A running API server with a client that has all permissions.
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
    /// Starts an API server.
    ///
    /// # Errors
    /// The server does not start. The error says why.
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

    /// Which server this is.
    pub fn kind(&self) -> Kind {
        match self.server {
            Server::Embedded(_) => Kind::Embedded,
            Server::Real(_) => Kind::Real,
        }
    }

    /// A client with all permissions.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Makes an embedded server never answer the host's GETs of single ConfigMaps. Of the guests, only `waiting` sends
    /// these. A real server keeps answering.
    ///
    /// # Errors
    /// The server rejects the rule.
    pub async fn hang(&self) -> Result<()> {
        if self.kind() == Kind::Embedded {
            let on = json!({"resource": "configmaps", "verbs": ["get"], "userAgent": "pilothouse"});
            let rule = json!({"on": on, "fault": "hang"}).to_string().into_bytes();
            let _rule: Value = self.faults(http::Request::post(FAULTS).body(rule)).await?;
        }
        Ok(())
    }

    /// Silences an embedded server's watches of a resource: they stay open and send nothing. A real server keeps
    /// sending.
    ///
    /// # Errors
    /// The server rejects the rule.
    pub async fn hold(&self, resource: &str) -> Result<()> {
        if self.kind() == Kind::Embedded {
            let on = json!({"resource": resource, "verbs": ["watch"], "userAgent": "pilothouse"});
            let rule = json!({"on": on, "fault": "hold"}).to_string().into_bytes();
            let _rule: Value = self.faults(http::Request::post(FAULTS).body(rule)).await?;
        }
        Ok(())
    }

    /// Succeeds if [`hang`](Self::hang) held up a request of the host.
    ///
    /// # Errors
    /// The embedded server has answered all requests.
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

    /// A kubeconfig file of a user without any permission; `None` if the server does not know users.
    pub fn kubeconfig_of_nobody(&self) -> Option<PathBuf> {
        match &self.server {
            Server::Embedded(_) => None,
            Server::Real(server) => Some(server.kubeconfig_of_nobody()),
        }
    }

    /// A kubeconfig file of the ordinary user [`OPERATOR`](pilothouse_real::OPERATOR), without any permission yet;
    /// `None` if the server does not know users.
    pub fn kubeconfig_of_operator(&self) -> Option<PathBuf> {
        match &self.server {
            Server::Embedded(_) => None,
            Server::Real(server) => Some(server.kubeconfig_of_operator()),
        }
    }

    /// The server's audit log from now on; `None` if the server has none.
    pub fn audit(&self) -> Option<audit::Log> {
        match &self.server {
            Server::Embedded(_) => None,
            Server::Real(server) => Some(server.audit()),
        }
    }

    /// The real server; `None` if this is an embedded one.
    pub fn real(&self) -> Option<&pilothouse_real::Cluster> {
        match &self.server {
            Server::Embedded(_) => None,
            Server::Real(server) => Some(server),
        }
    }

    /// Kills the server: connections are cut, new ones are refused.
    pub async fn kill(&self) {
        match &self.server {
            Server::Embedded(server) => server.stop().await,
            Server::Real(server) => server.kill_apiserver(),
        }
    }

    /// Starts a killed server again, with its data and port.
    ///
    /// # Errors
    /// The server does not start. The error says why.
    pub async fn restart(&self) -> Result<()> {
        match &self.server {
            Server::Embedded(server) => server.restart().await,
            Server::Real(server) => server.restart_apiserver().await,
        }
    }

    /// Kills etcd and starts it again, with its data and port. Returns when the API server has found it. Does nothing
    /// on an embedded server.
    ///
    /// # Errors
    /// etcd does not start. The error says why.
    pub async fn restart_etcd(&self) -> Result<()> {
        match &self.server {
            Server::Embedded(_) => Ok(()),
            Server::Real(server) => {
                server.restart_etcd().await?;
                self.is_ready().await
            }
        }
    }

    /// Copies all data, for [`Cluster::restore`].
    ///
    /// # Errors
    /// The data cannot be copied, or the server does not come back afterwards.
    pub async fn save(&self) -> Result<()> {
        match &self.server {
            Server::Embedded(server) => server.save().await,
            Server::Real(server) => server.save().await?,
        }
        self.is_ready().await
    }

    /// Stops the server, restores the saved data, and starts the server again. The embedded one supports only
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

    /// Scrapes the server's `/metrics`.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn metrics(&self) -> Result<Metrics> {
        let (code, text) = get(&self.client, "/metrics").await?;
        anyhow::ensure!(code == 200, "the API server answered {code} to /metrics");
        Ok(Metrics::parse(&text))
    }

    /// Counts the write requests for `resources` (plural, as in URLs) that the server has answered so far, from all
    /// clients, successful or not.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn writes_of(&self, resources: &[&str]) -> Result<f64> {
        let reads = ["GET", "LIST", "WATCH"];
        Ok(self.metrics().await?.sum_where("apiserver_request_total", |label| {
            resources.contains(&label("resource").as_str()) && !reads.contains(&label("verb").as_str())
        }))
    }

    /// The server's last log lines, if it has a log.
    pub fn last_lines(&self, count: usize) -> String {
        match &self.server {
            Server::Embedded(_) => String::new(),
            Server::Real(server) => server.last_lines(count),
        }
    }
}

/// Creates a client without retries. kube's own client retries after 429, 503 and 504.
pub(crate) fn client(mut config: kube::Config) -> Result<Client> {
    config.default_retry = false;
    Client::try_from(config).context("cannot make a client")
}

/// Sends a GET and returns the status and the body, whatever the status is.
pub(crate) async fn get(client: &Client, path: &str) -> Result<(u16, String)> {
    let request = http::Request::get(path).body(Body::empty()).context("cannot ask for that path")?;
    let response = client.send(request).await.with_context(|| format!("no answer to GET {path}"))?;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.with_context(|| format!("the answer to GET {path} broke off"))?;
    Ok((code, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
}
