//! Keeps a ConfigMap with a message for every {{kind}}.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::CustomResource;
use pilothouse_sdk::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a user asks for. The CustomResourceDefinition is derived from these types.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "{{group}}",
    version = "{{version}}",
    kind = "{{kind}}",
    plural = "{{plural}}",
    singular = "{{singular}}",
    namespaced,
    status = "{{kind}}Status",
    printcolumn(name = "Message", type_ = "string", json_path = ".spec.message"),
    printcolumn(name = "Ready", json_path = r#".status.conditions[?(@.type=="Ready")].status"#, type_ = "string")
)]
pub struct {{kind}}Spec {
    /// The message in the ConfigMap.
    pub message: String,
}

/// What there is.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct {{kind}}Status {
    /// `Ready` is true if the ConfigMap exists.
    #[serde(default)]
    pub conditions: Conditions,
    /// The `metadata.generation` that this status belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Declares what the plugin needs. The host calls it when it loads the file.
#[plugin]
pub fn {{crate}}() -> Plugin {
    Plugin::new("Keeps a ConfigMap with a message for every {{kind}}.")
        .crd::<{{kind}}>()
        .controller(Controller::of::<{{kind}}>().owns::<ConfigMap>().reconcile(reconcile))
}

/// Returns what should exist. It changes nothing itself: the host applies the result.
///
/// # Errors
/// Fails if the cache cannot be read. The host tries again later.
pub fn reconcile(ctx: &Context, object: &{{kind}}) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        // The garbage collector deletes the children with their owner.
        return Ok(Outcome::new());
    }
    let child = config_map(object);

    // The host runs this function again when something changes that it read.
    let exists = ctx.cache().get::<ConfigMap>(ctx.key().beside(child.name()))?.is_some();
    let mut conditions = object.status.clone().unwrap_or_default().conditions;
    let (reason, message) = if exists { ("Exists", "the ConfigMap exists") } else { ("Creating", "no ConfigMap yet") };
    conditions.set(ctx.condition("Ready", exists, reason, message));
    let status = {{kind}}Status { conditions, observed_generation: object.metadata.generation };

    Ok(Outcome::new().child(child).status(status))
}

/// Returns the ConfigMap of an object. The host adds the namespace and the owner reference.
fn config_map(object: &{{kind}}) -> ConfigMap {
    let mut child = ConfigMap::default();
    child.metadata.name = Some(format!("{}-message", object.name()));
    child.data = Some([("message".to_owned(), object.spec.message.clone())].into());
    child
}
