//! A host's admin endpoint.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use http::Request;
use kube::Client;
use serde_json::Value;

use crate::{
    cluster::{client, get},
    metrics::Metrics,
    wait::eventually,
};

/// Log message with the endpoint's `address`.
const SERVING: &str = "serving metrics";

/// A client of the admin endpoint. Clones share its connection.
#[derive(Clone)]
pub struct Admin(Client);

impl Admin {
    /// Creates a client from the log line (JSON) that has the endpoint's address; `None` for any other line.
    ///
    /// # Errors
    /// The line has no address in it.
    pub fn logged(line: &[u8]) -> Result<Option<Self>> {
        let line: Value = serde_json::from_slice(line).unwrap_or_default();
        if line["message"] != SERVING {
            return Ok(None);
        }
        let address = line.get("address").or_else(|| line["fields"].get("address")).and_then(Value::as_str);
        let address: SocketAddr =
            address.and_then(|address| address.parse().ok()).with_context(|| format!("no address in {line}"))?;
        let url = format!("http://{address}").parse().context("cannot make a URL of the admin address")?;
        Ok(Some(Self(client(kube::Config::new(url))?)))
    }

    /// Sends a GET and returns the status and the body.
    ///
    /// # Errors
    /// The host does not answer.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        get(&self.0, path).await
    }

    /// Scrapes the host's `/metrics`.
    ///
    /// # Errors
    /// The host does not answer with 200 and metrics.
    pub async fn metrics(&self) -> Result<Metrics> {
        let (code, text) = self.get("/metrics").await?;
        ensure!(code == 200, "the host answers {code} to /metrics");
        Ok(Metrics::parse(&text))
    }

    /// Waits until the code of all loaded plugins is optimized.
    ///
    /// # Errors
    /// The code is not optimized in time.
    pub async fn code_is_optimized(&self) -> Result<()> {
        eventually("the code of all plugins is optimized", async || {
            let left = self.metrics().await?.sum("pilothouse_code_unoptimized", &[]);
            ensure!(left == 0.0, "that of {left} files is not");
            Ok(())
        })
        .await
    }

    /// Ends a plugin's quarantine, if it is quarantined.
    ///
    /// # Errors
    /// The host does not answer, or does not know the plugin.
    pub async fn release(&self, plugin: &str) -> Result<()> {
        let path = format!("/debug/plugins/{plugin}/release");
        let request = Request::post(&path).body(Vec::new()).context("no request")?;
        let told = self.0.request_text(request).await;
        told.map(drop).with_context(|| format!("the host refuses to POST {path}"))
    }
}
