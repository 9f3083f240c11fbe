//! The custom resource `Website`: its CustomResourceDefinition is derived from these types.

#![expect(clippy::duplicated_attributes, reason = "several printer columns have the same type")]

use kube::CustomResource;
use pilothouse_sdk::Conditions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the website runs, and where people find it.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "web.example.com",
    version = "v1",
    kind = "Website",
    namespaced,
    status = "WebsiteStatus",
    derive = "PartialEq",
    doc = "A website that runs in Pods, with a Service and an Ingress",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Host", type_ = "string", json_path = ".spec.host"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableReplicas"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct WebsiteSpec {
    /// The container image of the web server.
    pub image: String,
    /// The number of Pods.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// The port on which the container listens.
    #[serde(default = "http")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// The host name in URLs. Without one, the website has no Ingress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The name of a ConfigMap whose keys become environment variables. It must exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<String>,
    /// The name of a Secret whose keys become environment variables. It must exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

fn one() -> i32 {
    1
}

fn http() -> i32 {
    8080
}

/// What runs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebsiteStatus {
    /// The number of Pods that exist.
    #[serde(default)]
    pub replicas: i32,
    /// The number of Pods that serve requests.
    #[serde(default)]
    pub available_replicas: i32,
    /// The label selector of the Pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The host name that is at the registrar, or is about to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// `Ready` is true if all Pods serve the newest spec. `Registered` is true if the registrar knows the host name.
    #[serde(default)]
    pub conditions: Conditions,
    /// The `metadata.generation` that this status belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
