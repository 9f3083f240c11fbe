//! The operator of the pages for people who know another framework.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::CustomResource;
use pilothouse_sdk::{mock::MockHost, prelude::*};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::named;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Web", namespaced, status = "WebStatus")]
struct WebSpec {
    image: String,
    replicas: i32,
    /// The name of a ConfigMap.
    config: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
struct WebStatus {
    conditions: Conditions,
}

#[plugin]
fn webs() -> Plugin {
    let controller = Controller::of::<Web>().owns::<Deployment>().reads::<ConfigMap>().reconcile(reconcile);
    Plugin::new("Runs a Deployment for every Web.").crd::<Web>().controller(controller)
}

fn reconcile(ctx: &Context, web: &Web) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        return Ok(Outcome::new());
    }
    let mut conditions = web.status.clone().unwrap_or_default().conditions;
    let Some(config) = ctx.cache().get::<ConfigMap>(ctx.key().beside(&web.spec.config))? else {
        conditions.set(ctx.condition("Ready", false, "ConfigMissing", "the ConfigMap does not exist"));
        return Ok(Outcome::new().status(WebStatus { conditions }));
    };
    let running = ctx.cache().get::<Deployment>(ctx.key())?.and_then(|found| found.status);
    let available = running.and_then(|status| status.available_replicas).unwrap_or_default();
    let message = format!("{available} of {} replicas are available", web.spec.replicas);
    conditions.set(ctx.condition("Ready", available == web.spec.replicas, "Counted", message));
    Ok(Outcome::new().child(deployment(web, &config)?).status(WebStatus { conditions }))
}

/// The Pods are replaced when the ConfigMap has another version.
fn deployment(web: &Web, config: &ConfigMap) -> serde_json::Result<Deployment> {
    let labels = json!({"app": web.name()});
    let annotations = json!({"example.com/config": config.metadata.resource_version});
    let container =
        json!({"name": "web", "image": web.spec.image, "envFrom": [{"configMapRef": {"name": web.spec.config}}]});
    serde_json::from_value(json!({
        "metadata": {"name": web.name()},
        "spec": {
            "replicas": web.spec.replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": {"containers": [container]},
            },
        },
    }))
}

#[test]
fn a_web_is_ready_when_its_deployment_is() {
    let key = ("default", "blog");
    let spec = WebSpec { image: "blog:1".into(), replicas: 2, config: "env".into() };
    let mut host = MockHost::new(webs).with(named("blog", Web::new("blog", spec)));
    host.settle(key).expect("it settles");
    assert!(host.get::<Deployment>(key).is_none());

    assert_eq!(host.woken_by(|host| host.put(named("env", ConfigMap::default()))), [Key::from(key)]);
    host.settle(key).expect("it settles");
    let available = json!({"availableReplicas": 2});
    host.edit::<Deployment>(key, |found| found.status = serde_json::from_value(available).unwrap());
    let status: WebStatus = host.settle(key).expect("it settles").status();
    assert!(status.conditions.is_true("Ready"));
}
