//! The custom resource `Bundle`: its CustomResourceDefinition is derived from these types.

#![expect(clippy::duplicated_attributes, reason = "several printer columns have the same type")]

use kube::CustomResource;
use pilothouse_sdk::Conditions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where configuration comes from. Everything is looked for in the Bundle's own namespace; what comes later wins.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "config.example.com",
    version = "v1",
    kind = "Bundle",
    namespaced,
    status = "BundleStatus",
    derive = "PartialEq",
    doc = "Configuration from many places in one ConfigMap",
    printcolumn(name = "Sources", type_ = "integer", json_path = ".status.sources"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Checksum", type_ = "string", json_path = ".status.checksum", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct BundleSpec {
    /// The name of a ConfigMap that must be there, with the defaults.
    pub config_map: String,
    /// A label selector: the ConfigMaps that it matches come next, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The name of a Secret that must be there. Its content is part of the checksum, and is not copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BundleStatus {
    /// How many ConfigMaps and Secrets are in it.
    #[serde(default)]
    pub sources: u32,
    /// SHA-256 of all that is in it, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// `Ready`: whether everything that it names is there.
    #[serde(default)]
    pub conditions: Conditions,
    /// The `metadata.generation` that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
