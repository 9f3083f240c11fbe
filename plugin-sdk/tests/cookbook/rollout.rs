//! Pods that are replaced when their configuration changes.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::CustomResource;
use pilothouse_sdk::{mock::MockHost, prelude::*};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::named;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Site", namespaced)]
struct SiteSpec {
    image: String,
    /// The name of a ConfigMap.
    config: String,
}

#[plugin]
fn sites() -> Plugin {
    let controller = Controller::of::<Site>()
        .owns::<Deployment>()
        .reads::<ConfigMap>()
        .without_status()
        .reconcile(reconcile);
    Plugin::new("Runs sites.").crd::<Site>().controller(controller)
}

fn reconcile(ctx: &Context, site: &Site) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        return Ok(Outcome::new());
    }
    let Some(config) = ctx.cache().get::<ConfigMap>(ctx.key().beside(&site.spec.config))? else {
        // The old Pods run on. When the ConfigMap appears, it wakes the site, because the call looked for it.
        return Ok(Outcome::new());
    };
    // Maps are ordered, so equal data give an equal text.
    let data = serde_json::to_vec(&(config.data, config.binary_data))?;
    let checksum: String = Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Outcome::new().child(deployment(site, &checksum)?))
}

fn deployment(site: &Site, checksum: &str) -> serde_json::Result<Deployment> {
    let labels = json!({"app": site.name()});
    let container =
        json!({"name": "web", "image": site.spec.image, "envFrom": [{"configMapRef": {"name": site.spec.config}}]});
    serde_json::from_value(json!({
        "metadata": {"name": site.name()},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"example.com/checksum": checksum}},
                "spec": {"containers": [container]},
            },
        },
    }))
}

fn config(color: &str) -> ConfigMap {
    named("colors", ConfigMap { data: Some([("color".into(), color.into())].into()), ..ConfigMap::default() })
}

#[test]
fn another_color_is_another_pod_template() {
    let key = ("default", "blog");
    let spec = SiteSpec { image: "blog:1".into(), config: "colors".into() };
    let mut host = MockHost::new(sites).with(named("blog", Site::new("blog", spec))).with(config("red"));
    let template = |host: &MockHost| host.get::<Deployment>(key).unwrap().spec.unwrap().template;

    host.settle(key).expect("it settles");
    let red = template(&host);
    assert_eq!(host.woken_by(|host| host.put(config("blue"))), [Key::from(key)]);
    host.settle(key).expect("it settles");
    assert_ne!(template(&host), red);
}
