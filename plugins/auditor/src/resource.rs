//! The custom resource `AuditReport`: its CustomResourceDefinition is derived from these types.

#![expect(clippy::duplicated_attributes, reason = "several printer columns have the same type")]

use kube::CustomResource;
use pilothouse_sdk::Conditions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is audited. The administrator's configuration has the rules.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "audit.example.com",
    version = "v1",
    kind = "AuditReport",
    status = "AuditReportStatus",
    derive = "PartialEq",
    doc = "What an audit of the cluster found",
    printcolumn(name = "Ownerless", type_ = "integer", json_path = ".status.ownerless"),
    printcolumn(name = "Unlabelled", type_ = "integer", json_path = ".status.missingLabels"),
    printcolumn(name = "Drifted", type_ = "integer", json_path = ".status.drift"),
    printcolumn(name = "Clean", type_ = "string", json_path = r#".status.conditions[?(@.type=="Clean")].status"#),
    printcolumn(name = "Audited", type_ = "date", json_path = ".status.auditedAt")
)]
pub struct AuditReportSpec {
    /// Only objects in these namespaces, at most 64. Without any, the whole cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub namespaces: Vec<String>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditReportStatus {
    /// Time of the last audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub audited_at: Option<String>,
    /// The number of objects without an owner.
    #[serde(default)]
    pub ownerless: u32,
    /// The number of objects that lack a label.
    #[serde(default)]
    pub missing_labels: u32,
    /// The number of objects that are no longer as they were applied.
    #[serde(default)]
    pub drift: u32,
    /// The first findings, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// `Clean` is true if nothing was found.
    #[serde(default)]
    pub conditions: Conditions,
    /// The `metadata.generation` that this status belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// An object that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The rule: `Ownerless`, `MissingLabels` or `Drift`.
    pub rule: Rule,
    /// The object's apiVersion.
    pub api_version: String,
    /// The object's kind.
    pub kind: String,
    /// Absent for an object without a namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The object's name.
    pub name: String,
    /// What is wrong.
    pub message: String,
}

// Doc comments on the variants would turn the schema's `enum` into a `oneOf`, which is not structural.
/// A rule of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "see above")]
pub enum Rule {
    Ownerless,
    MissingLabels,
    Drift,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 3] = [Self::Ownerless, Self::MissingLabels, Self::Drift];

    /// Returns the reason of Events, and the label of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ownerless => "Ownerless",
            Self::MissingLabels => "MissingLabels",
            Self::Drift => "Drift",
        }
    }
}
