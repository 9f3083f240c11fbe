//! The CustomResourceDefinitions that a plugin brings.

use std::time::Duration;

use pilothouse_core::{
    diff,
    key::{Key, TypeMeta},
    manifest::Verb,
    object::Object,
};
use serde_json::Value;
use tracing::info;

use super::{basis::Basis, endpoint::Endpoint, error::Error, handle::Writer};
use crate::cluster;

/// Time for a definition to be established. The API server needs some tens of milliseconds.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(10);

/// Why a plugin's definitions are not in place.
#[derive(Debug, thiserror::Error)]
pub enum CrdError {
    /// It is not a definition. It is the plugin's mistake.
    #[error("definition {at} that the plugin brings {why}")]
    Invalid {
        /// Its position in the manifest.
        at: usize,
        /// What is wrong.
        why: String,
    },
    /// The API server rejected it, or did not answer.
    #[error("cannot install CustomResourceDefinition {name}")]
    Install {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: Error,
    },
    /// The API server accepted it, and does not serve its kind.
    #[error("CustomResourceDefinition {name} is not served {after} s after it was installed: {why}", after = ESTABLISHED_WITHIN.as_secs())]
    NotEstablished {
        /// Its name.
        name: String,
        /// The conditions' messages.
        why: String,
    },
}

impl Writer {
    /// Applies the definitions that differ from what the server has, and waits until their kinds are served. A
    /// definition that the plugin may not install is skipped: its informers wait until somebody else installs it.
    ///
    /// Definitions with the conversion strategy `Webhook` get the address of this host.
    ///
    /// # Errors
    /// Returns the first reason why a definition is not in place. Those before it are.
    pub async fn install(&self, definitions: &[String], webhooks: Option<&Endpoint>) -> Result<(), CrdError> {
        let of = TypeMeta::new("apiextensions.k8s.io/v1", "CustomResourceDefinition");
        for (at, text) in definitions.iter().enumerate() {
            let invalid = |why: &str| CrdError::Invalid { at, why: why.to_owned() };
            let mut desired: Value =
                serde_json::from_str(text).map_err(|error| invalid(&format!("is not valid JSON: {error}")))?;
            if desired["apiVersion"] != *of.api_version || desired["kind"] != *of.kind {
                return Err(invalid(&format!("is not of {of}")));
            }
            let name = desired["metadata"]["name"].as_str().ok_or_else(|| invalid("has no metadata.name"))?.to_owned();
            if let Err(denied) = self.grants.load().check(Verb::Apply, &of, None, None, Some(&name)) {
                info!(plugin = %self.identity.plugin(), definition = name, reason = %denied, "skipped a CustomResourceDefinition that the plugin may not install");
                continue;
            }
            if let Some(object) = desired.as_object_mut() {
                object.remove("status");
            }
            if desired["spec"]["conversion"]["strategy"] == "Webhook" {
                let Some(webhooks) = webhooks else {
                    return Err(invalid(
                        "converts objects by a webhook, and this host serves none: start it with --webhook-service or --webhook-url",
                    ));
                };
                desired["spec"]["conversion"]["webhook"] = webhooks.conversion(self.identity.plugin()).await;
            }
            let key = Key::new(None, &name);
            let installing = |source| CrdError::Install { name: name.clone(), source };
            let request =
                |source| installing(Error::Request { verb: "read", of: of.clone(), key: key.clone(), source });
            let live = match self.cluster.get(&of, None, &name).await {
                Ok(body) => Some(
                    Object::parse(&body, &of)
                        .map_err(|why| installing(Error::Unreadable { of: of.clone(), key: key.clone(), why }))?,
                ),
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(request(error)),
            };
            let changed = !live.as_ref().is_some_and(|live| diff::holds(live, self.manager(), None, &desired));
            if changed {
                // If somebody else changes it meanwhile, the server answers 409, and the installation begins again.
                let basis = live.map_or(Basis::Anything, |live| Basis::Version(live.resource_version()));
                basis.name_in(&mut desired);
                self.apply(&of, &key, &desired, None, basis.takes_fields()).await.map_err(installing)?;
                info!(plugin = %self.identity.plugin(), definition = name, "installed a CustomResourceDefinition");
            }
            self.established(&of, &name).await.map_err(|problem| match problem {
                NotYet::Request(error) => request(error),
                NotYet::Refused(why) => CrdError::NotEstablished { name: name.clone(), why },
            })?;
            if changed {
                self.informers.look_for_kinds();
            }
        }
        Ok(())
    }

    /// Waits until the server serves the kind of a definition.
    async fn established(&self, of: &TypeMeta, name: &str) -> Result<(), NotYet> {
        let deadline = tokio::time::Instant::now() + ESTABLISHED_WITHIN;
        let mut pause = Duration::from_millis(10);
        loop {
            let body = self.cluster.get(of, None, name).await.map_err(NotYet::Request)?;
            let live: Value = serde_json::from_slice(&body).unwrap_or_default();
            let conditions = live["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            if conditions.iter().any(|condition| condition["type"] == "Established" && condition["status"] == "True") {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                let messages: Vec<_> =
                    conditions.iter().filter_map(|condition| condition["message"].as_str()).collect();
                return Err(NotYet::Refused(messages.join("; ")));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }
}

enum NotYet {
    Request(cluster::Error),
    Refused(String),
}
