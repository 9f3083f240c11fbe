//! A webhook that reads the cluster to decide.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::CustomResource;
use pilothouse_sdk::{mock::MockHost, prelude::*};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Shop", namespaced)]
struct ShopSpec {
    /// The name of a ConfigMap.
    config: String,
}

#[plugin]
fn guard() -> Plugin {
    let webhook =
        Webhook::of::<ConfigMap>("in-use").operations([Operation::Delete]).reads(Watch::of::<Shop>()).timeout_seconds(3);
    Plugin::new("Keeps ConfigMaps that a shop uses.").validate(webhook, review)
}

fn review(ctx: &AdmissionContext, request: &Review<ConfigMap>) -> Result<Decision, Error> {
    for shop in ctx.cache().list::<Shop>().beside(&request.key) {
        let shop = shop?;
        if shop.spec.config == request.key.name && shop.metadata.deletion_timestamp.is_none() {
            return Ok(Decision::deny(format!("the shop {} uses this ConfigMap", shop.name())));
        }
    }
    Ok(Decision::allow())
}

#[test]
fn a_config_map_that_a_shop_uses_cannot_be_deleted() {
    let host = MockHost::new(guard).with(named("toys", Shop::new("toys", ShopSpec { config: "colors".into() })));
    let delete = |name| host.review("in-use").delete(&named(name, ConfigMap::default())).run().expect("it decides");
    assert_eq!(delete("colors").denied(), Some("the shop toys uses this ConfigMap"));
    assert_eq!(delete("another").denied(), None);
}
