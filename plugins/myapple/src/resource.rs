//! The custom resource `MyApple`: its CustomResourceDefinition is derived from these types.

#![expect(clippy::duplicated_attributes, reason = "several printer columns have the same type")]

use kube::CustomResource;
use pilothouse_sdk::Conditions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The wanted apples.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "stable.example.com",
    version = "v1",
    kind = "MyApple",
    namespaced,
    shortname = "ma",
    status = "MyAppleStatus",
    derive = "PartialEq",
    doc = "Apples of one color and size, as many as are wanted",
    scale(spec_replicas_path = ".spec.quantity", status_replicas_path = ".status.available"),
    printcolumn(name = "Color", type_ = "string", json_path = ".spec.color"),
    printcolumn(name = "Size", type_ = "string", json_path = ".spec.size"),
    printcolumn(name = "Quantity", type_ = "integer", json_path = ".spec.quantity"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.available"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct MyAppleSpec {
    /// The color of every apple.
    pub color: String,
    /// The size of every apple.
    pub size: Size,
    /// The number of apples.
    #[schemars(range(min = 1))]
    pub quantity: i32,
}

// Doc comments on the variants would turn the schema's `enum` into a `oneOf`, which is not structural.
/// The size of an apple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "see above")]
pub enum Size {
    Small,
    Medium,
    Large,
}

impl Size {
    /// Returns the value in an object.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
        }
    }
}

/// The existing apples.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MyAppleStatus {
    /// The number of ConfigMaps with the right content.
    #[serde(default)]
    pub available: i32,
    /// `Ready` is true if all apples exist.
    #[serde(default)]
    pub conditions: Conditions,
    /// The `metadata.generation` that this status belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
