//! Compares the grants in an administrator's file with the permissions in a manifest.

use std::{collections::BTreeSet, fmt};

use serde::Deserialize;
use serde_json::Value;

use super::script::{part, verb};
use crate::contract::exports::pilothouse::plugin::controller::Permission;

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

/// # Errors
/// Fails with every permission that is not granted, and every grant that is not asked for.
pub(super) fn compare(permissions: &[Permission], file: &Value) -> Result<(), String> {
    let grants = BTreeSet::<Grant>::deserialize(&file["grants"]);
    let granted = grants.map_err(|error| format!("the file has no valid grants: {error}"))?;
    let asked: BTreeSet<Grant> = permissions.iter().map(Grant::asked).collect();
    let missing = asked.difference(&granted).map(|grant| format!("asked and not granted: {grant}"));
    let surplus = granted.difference(&asked).map(|grant| format!("granted and not asked: {grant}"));
    let problems: Vec<String> = missing.chain(surplus).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}
