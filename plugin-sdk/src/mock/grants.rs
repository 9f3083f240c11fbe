//! Compares the grants in an administrator's file with the permissions in a manifest.

use std::{collections::BTreeSet, fmt};

use serde::Deserialize;
use serde_json::Value;

use super::script::{part, verb};
use crate::contract::exports::pilothouse::plugin::controller::{HttpPermission, Manifest, Permission};

/// A grant, as the file writes it.
#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Grant {
    api_version: String,
    /// With the subresource: `MyApple/status`.
    kind: String,
    #[serde(default)]
    verbs: BTreeSet<String>,
    #[serde(default)]
    namespaces: BTreeSet<String>,
    #[serde(default)]
    names: BTreeSet<String>,
}

impl Grant {
    fn asked(permission: &Permission) -> Self {
        Self {
            api_version: permission.of.api_version.clone(),
            kind: format!("{}{}", permission.of.kind, part(permission.subresource)),
            verbs: permission.verbs.iter().map(|of| verb(*of).to_owned()).collect(),
            namespaces: permission.namespaces.iter().cloned().collect(),
            names: permission.names.iter().cloned().collect(),
        }
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |all: &BTreeSet<String>| all.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        write!(f, "{} {}: {}", self.api_version, self.kind, list(&self.verbs))?;
        if !self.namespaces.is_empty() {
            write!(f, " in namespaces {}", list(&self.namespaces))?;
        }
        if !self.names.is_empty() {
            write!(f, " of names {}", list(&self.names))?;
        }
        Ok(())
    }
}

/// A line of `http`, as the file writes it.
#[derive(Deserialize)]
struct HttpRule {
    hosts: Vec<String>,
    ports: Option<Vec<u16>>,
    methods: Vec<String>,
    #[serde(default)]
    plain: bool,
}

impl HttpRule {
    fn asked(asked: &HttpPermission) -> Self {
        let HttpPermission { host, port, plain, methods } = asked.clone();
        Self { hosts: vec![host], ports: port.map(|port| vec![port]), methods, plain }
    }

    /// Returns each request that the line grants.
    fn requests(&self) -> Vec<String> {
        let (scheme, port) = if self.plain { ("http", 80) } else { ("https", 443) };
        let ports = self.ports.clone().unwrap_or_else(|| vec![port]);
        let mut requests = Vec::new();
        for host in &self.hosts {
            for port in &ports {
                requests.extend(self.methods.iter().map(|method| format!("http {method} to {scheme}://{host}:{port}")));
            }
        }
        requests
    }
}

fn differences<T: Ord + fmt::Display>(asked: &BTreeSet<T>, granted: &BTreeSet<T>) -> Vec<String> {
    let missing = asked.difference(granted).map(|grant| format!("asked and not granted: {grant}"));
    let surplus = granted.difference(asked).map(|grant| format!("granted and not asked: {grant}"));
    missing.chain(surplus).collect()
}

/// # Errors
/// Fails with every permission that is not granted, and every grant that is not asked for.
pub(super) fn compare(manifest: &Manifest, file: &Value) -> Result<(), String> {
    let grants = BTreeSet::<Grant>::deserialize(&file["grants"]);
    let granted = grants.map_err(|error| format!("the file has no valid grants: {error}"))?;
    let asked: BTreeSet<Grant> = manifest.permissions.iter().map(Grant::asked).collect();
    let mut problems = differences(&asked, &granted);
    let rules = Option::<Vec<HttpRule>>::deserialize(&file["http"]);
    let rules = rules.map_err(|error| format!("the file has no valid `http`: {error}"))?.unwrap_or_default();
    let granted: BTreeSet<String> = rules.iter().flat_map(HttpRule::requests).collect();
    let asked: BTreeSet<String> = manifest.http.iter().flat_map(|asked| HttpRule::asked(asked).requests()).collect();
    problems.extend(differences(&asked, &granted));
    let webhooks = Option::<BTreeSet<String>>::deserialize(&file["webhooks"]);
    let webhooks = webhooks.map_err(|error| format!("the file has no valid `webhooks`: {error}"))?.unwrap_or_default();
    let granted: BTreeSet<String> = webhooks.iter().map(|name| format!("webhook {name}")).collect();
    let asked: BTreeSet<String> = manifest.webhooks.iter().map(|asked| format!("webhook {}", asked.name)).collect();
    problems.extend(differences(&asked, &granted));
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}
