//! The custom resource `ResourceWatch`: its CustomResourceDefinition is derived from these types.

#![expect(clippy::duplicated_attributes, reason = "several printer columns have the same type")]

use kube::CustomResource;
use pilothouse_sdk::Conditions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is counted.
///
/// Cluster-scoped, because its status shows names of objects in any namespace. So only those who may create
/// cluster-scoped objects can look.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "watch.example.com",
    version = "v1",
    kind = "ResourceWatch",
    plural = "resourcewatches",
    shortname = "rw",
    status = "ResourceWatchStatus",
    derive = "PartialEq",
    doc = "Counts and lists objects of any kinds",
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.total"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Kinds", type_ = "string", json_path = ".status.resources[*].kind"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ResourceWatchSpec {
    /// The kinds, at most 16, each once.
    #[schemars(
        length(min = 1, max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["apiVersion", "kind"])
    )]
    pub resources: Vec<Selected>,
    /// How many names of each kind the status lists, at most 100.
    #[serde(default = "ten")]
    #[schemars(range(min = 0, max = 100))]
    pub list: u32,
}

fn ten() -> u32 {
    10
}

/// A kind, and which of its objects count.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Selected {
    /// Such as `apps/v1`.
    #[schemars(length(min = 1, max = 317))]
    pub api_version: String,
    /// Such as `Deployment`. It need not be defined yet.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Z][A-Za-z0-9]*$"))]
    pub kind: String,
    /// A label selector, such as `app=web,tier!=cache`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<String>,
    /// Only objects in these namespaces, at most 16. Without any, all objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub namespaces: Vec<String>,
}

/// What there is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceWatchStatus {
    /// The number of all objects.
    #[serde(default)]
    pub total: u32,
    /// Each kind, in the order of the spec.
    #[serde(default)]
    pub resources: Vec<Counted>,
    /// `Ready` is true if all kinds are counted.
    #[serde(default)]
    pub conditions: Conditions,
    /// The `metadata.generation` that this status belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// The objects of a kind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Counted {
    /// As in the spec.
    pub api_version: String,
    /// As in the spec.
    pub kind: String,
    /// How many there are. Absent while they cannot be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// The first of them by namespace and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<String>,
    /// Why they cannot be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
