//! Where the API server reaches this host's webhooks.

use std::{fmt, sync::Arc};

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::name::PluginName;

/// The address of the webhooks, as their configurations name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `https://HOST:PORT`, for a host outside the cluster.
    Url(String),
    /// A Service of the cluster.
    Service {
        /// Its namespace, which is the host's own.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            Self::Service { namespace, name, port } => write!(f, "Service {namespace}/{name}:{port}"),
        }
    }
}

/// The address of the webhooks, and the certificates of the authorities that the API server must trust. Clones share
/// them.
#[derive(Clone, Debug)]
pub struct Endpoint {
    address: Address,
    /// In base64. `None` until the certificates are there.
    bundle: Arc<watch::Sender<Option<Arc<str>>>>,
    /// The certificates that all configurations have.
    confirmed: Arc<watch::Sender<Option<Arc<str>>>>,
}

impl Endpoint {
    /// Creates an endpoint whose certificates are not there yet.
    pub fn new(address: Address) -> Self {
        let none = || Arc::new(watch::Sender::new(None));
        Self { address, bundle: none(), confirmed: none() }
    }

    /// Returns the address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Replaces the certificates of the authorities, in base64.
    pub fn trust(&self, bundle: impl Into<Arc<str>>) {
        let bundle = Some(bundle.into());
        self.bundle.send_if_modified(|now| {
            let differs = *now != bundle;
            *now = bundle;
            differs
        });
    }

    /// Returns a receiver of the certificates.
    pub fn bundle(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.bundle.subscribe()
    }

    /// Records that all configurations at the API server have these certificates.
    pub fn confirm(&self, bundle: Arc<str>) {
        self.confirmed.send_replace(Some(bundle));
    }

    /// Returns a receiver of the certificates that all configurations have.
    pub fn confirmed(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.confirmed.subscribe()
    }

    /// Returns the `clientConfig` of a webhook. Waits until the certificates are there.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn client_config(&self, path: &str) -> Value {
        let mut receiver = self.bundle.subscribe();
        let bundle = match receiver.wait_for(Option::is_some).await {
            Ok(bundle) => bundle.clone(),
            Err(_) => None,
        };
        let mut config = self.address_of(path);
        config["caBundle"] = json!(bundle.as_deref());
        config
    }

    /// Returns the `spec.conversion.webhook` of a definition that a plugin brings. Waits until the certificates are
    /// there.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn conversion(&self, plugin: &PluginName) -> Value {
        let client_config = self.client_config(&format!("/conversion/{plugin}")).await;
        json!({ "clientConfig": client_config, "conversionReviewVersions": ["v1"] })
    }

    /// Returns `true` if a `clientConfig` names this host.
    pub fn is_named_by(&self, config: &Value) -> bool {
        let of = |config: &Value| match &self.address {
            Address::Url(url) => config["url"].as_str().is_some_and(|named| named.starts_with(&format!("{url}/"))),
            Address::Service { namespace, name, .. } => {
                config["service"]["namespace"] == **namespace && config["service"]["name"] == **name
            }
        };
        of(config)
    }

    fn address_of(&self, path: &str) -> Value {
        match &self.address {
            Address::Url(url) => json!({ "url": format!("{url}{path}") }),
            Address::Service { namespace, name, port } => {
                json!({ "service": { "namespace": namespace, "name": name, "port": port, "path": path } })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn client_config_names_the_host_and_its_certificates() {
        let endpoint = Endpoint::new(Address::Url("https://127.0.0.1:9443".to_owned()));
        endpoint.trust("Q0E=");
        let config = endpoint.client_config("/admission/a/b").await;
        assert_eq!(config, json!({"url": "https://127.0.0.1:9443/admission/a/b", "caBundle": "Q0E="}));
        assert!(endpoint.is_named_by(&config));
        assert!(!endpoint.is_named_by(&json!({"url": "https://127.0.0.1:94430/admission/a/b"})));
        let service = Address::Service { namespace: "n".to_owned(), name: "s".to_owned(), port: 443 };
        let service = Endpoint::new(service);
        service.trust("Q0E=");
        let config = service.client_config("/x").await;
        let expected =
            json!({"service": {"namespace": "n", "name": "s", "port": 443, "path": "/x"}, "caBundle": "Q0E="});
        assert_eq!(config, expected);
        assert!(service.is_named_by(&config) && !endpoint.is_named_by(&config));
    }
}
