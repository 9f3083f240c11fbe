//! What `client` has beside single objects: lists, scales, reviews, batches, evictions and logs.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use pilothouse_e2e::{Plugin, Scene, eventually, plugin::Permission};
use serde_json::{from_value, json};

use crate::hostile::serves_beside_myapple;

pub(crate) async fn a_plugin_lists_scales_reviews_evicts_and_reads_logs_within_its_grants(scene: Scene) -> Result<()> {
    let granted = [
        Permission::to(&["read"], "stable.example.com/v1", "MyApple"),
        Permission::to(&["apply"], "stable.example.com/v1", "MyApple/status"),
        Permission::to(&["read"], "v1", "ConfigMap"),
        Permission::to(&["read", "patch"], "apps/v1", "Deployment/scale"),
        Permission::to(&["create"], "v1", "Pod/eviction"),
        Permission::to(&["read"], "v1", "Pod/log"),
    ];
    let mut granted: Vec<Permission> = granted.into_iter().map(|grant| grant.within(&scene.namespace)).collect();
    granted.push(Permission::to(&["create"], "authorization.k8s.io/v1", "SelfSubjectAccessReview"));
    let (_host, _) = serves_beside_myapple(&scene, Plugin::guest("reaching")?.granted(&granted)).await?;

    for number in 0..7 {
        let map: ConfigMap =
            from_value(json!({"metadata": {"name": format!("gala-{number}"), "labels": {"of": "gala"}}}))?;
        scene.config_maps().create(&PostParams::default(), &map).await?;
    }
    let labels = json!({"app": "web"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    let web: Deployment = from_value(json!({
        "metadata": {"name": "gala-web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }))?;
    let deployments: Api<Deployment> = Api::namespaced(scene.client(), &scene.namespace);
    deployments.create(&PostParams::default(), &web).await.context("cannot create the Deployment")?;
    let pods: Api<Pod> = Api::namespaced(scene.client(), &scene.namespace);
    for name in ["free", "guarded"] {
        let pod: Pod = from_value(json!({
            "metadata": {"name": format!("gala-{name}"), "labels": {"pod": name}},
            "spec": {"containers": [{"name": "web", "image": "web"}]},
        }))?;
        pods.create(&PostParams::default(), &pod).await.context("cannot create a Pod")?;
    }
    // A Pod that runs counts for its budget, which allows nothing until a controller has counted.
    let budget: PodDisruptionBudget = from_value(json!({
        "metadata": {"name": "gala"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"pod": "guarded"}}},
    }))?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(scene.client(), &scene.namespace);
    budgets.create(&PostParams::default(), &budget).await.context("cannot create the budget")?;
    let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
    pods.patch_status("gala-guarded", &PatchParams::default(), &running).await.context("cannot run a Pod")?;

    let gala = scene.apple("gala");
    gala.create(1).await?;
    let status = gala.status_is("1", |status| status["available"] == 1).await?;
    let told = |name: &str| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        conditions.filter(|condition| condition["type"] == name).find_map(|condition| condition["message"].as_str())
    };
    for (name, expected) in [
        ("Listed", "gala-0 gala-1 gala-2 gala-3 gala-4 gala-5 gala-6"),
        ("ListedEverywhere", "not granted"),
        ("Batch", "7 NotFound"),
        ("Scaled", "2 3"),
        ("Reviewed", "Some(true)"),
        ("Log", "ok"),
        ("LogOfNone", "NotFound"),
        ("Evicted", "ok"),
        ("EvictedGuarded", "TooManyRequests"),
        ("ReadPod", "not granted"),
    ] {
        ensure!(told(name) == Some(expected), "{name} is {:?}: {status}", told(name));
    }
    eventually("the evicted Pod is gone", async || {
        let pod = pods.get_opt("gala-free").await?;
        ensure!(pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()), "it is there");
        Ok(())
    })
    .await?;
    let guarded = pods.get("gala-guarded").await?;
    ensure!(guarded.metadata.deletion_timestamp.is_none(), "the other Pod is not protected");
    Ok(())
}
