//! The custom resource `Bundle`: its CustomResourceDefinition is derived from these types.

#![expect(clippy::duplicated_attributes, reason = "several printer columns have the same type")]

use kube::CustomResource;
use pilothouse_sdk::Conditions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The sources of the configuration, all in the namespace of the Bundle. Later sources override earlier ones.
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
    /// The name of the ConfigMap with the defaults. It must exist.
    pub config_map: String,
    /// A label selector for ConfigMaps that override the defaults, in the order of their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The name of a Secret. It must exist. Its content is part of the checksum, and is not copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BundleStatus {
    /// The number of ConfigMaps and Secrets that were merged.
    #[serde(default)]
    pub sources: u32,
    /// The SHA-256 of all sources, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// `Ready` is true if all sources exist.
    #[serde(default)]
    pub conditions: Conditions,
    /// The `metadata.generation` that this status belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
