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

/// What a host logs when the endpoint is open, with its `address`.
const SERVING: &str = "serving health and metrics";

/// A client of it. Clones share it.
#[derive(Clone)]
pub struct Admin(Client);

impl Admin {
    /// Of the host that logged this line as JSON, if it is the one that says where the endpoint is.
    ///
    /// # Errors
    /// It is that line, and there is no address in it.
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

    /// The status and the body of a GET.
    ///
    /// # Errors
    /// No answer.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        get(&self.0, path).await
    }

    /// What the host says on `/metrics`.
    ///
    /// # Errors
    /// No answer, or another than that.
    pub async fn metrics(&self) -> Result<Metrics> {
        let (code, text) = self.get("/metrics").await?;
        ensure!(code == 200, "the host answers {code} to /metrics");
        Ok(Metrics::parse(&text))
    }

    /// Returns when the code of all plugins that are loaded is optimized: nothing is compiled any more.
    ///
    /// # Errors
    /// It is not in time.
    pub async fn code_is_optimized(&self) -> Result<()> {
        eventually("the code of all plugins is optimized", async || {
            let left = self.metrics().await?.sum("pilothouse_code_unoptimized", &[]);
            ensure!(left == 0.0, "that of {left} files is not");
            Ok(())
        })
        .await
    }

    /// Ends a plugin's quarantine, if it is in one.
    ///
    /// # Errors
    /// No answer, or the host does not know the plugin.
    pub async fn release(&self, plugin: &str) -> Result<()> {
        let path = format!("/debug/plugins/{plugin}/release");
        let request = Request::post(&path).body(Vec::new()).context("no request")?;
        let told = self.0.request_text(request).await;
        told.map(drop).with_context(|| format!("the host refuses to POST {path}"))
    }
}
