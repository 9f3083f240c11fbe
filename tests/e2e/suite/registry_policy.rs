//! The example plugin `registry-policy`.

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::CronJob,
    core::v1::{ConfigMap, Pod},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use pilothouse_e2e::{Kind, Plugin, Scene, eventually};
use serde_json::{Value, from_value, json};

const ALLOWED: &str = "registry.example.com/web:1";

pub(crate) async fn images_of_other_registries_are_denied_through_the_api_server(mut scene: Scene) -> Result<()> {
    scene.serve_webhooks(&[])?;
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    allow(&scene, "registry.example.com").await?;
    let here = format!("kubernetes.io/metadata.name={}", scene.namespace);
    let config = json!({
        "configMap": {"namespace": scene.namespace, "name": "allowed-registries"}, "namespaces": here,
    });
    let read = json!({"apiVersion": "v1", "kind": "ConfigMap", "verbs": ["read"], "namespaces": [scene.namespace]});
    let plugin = Plugin::example("registry-policy")?.with("config", &config)?.with("grants", &json!([read]))?;
    let _host = scene.with(&[plugin])?.host().await?;

    let pods: Api<Pod> = Api::namespaced(scene.client(), &scene.namespace);
    let create = PostParams::default();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let message =
        eventually("the webhook is in force", async || refusal(pods.create(&dry, &pod("nginx")?).await)).await?;
    let place =
        format!("the ConfigMap {}/allowed-registries allows these registries: registry.example.com", scene.namespace);
    let expected = format!("not from an allowed registry: nginx (spec.containers[web]); {place}");
    ensure!(message.contains("images.registry-policy") && message.contains(&expected), "{message}");

    // The API server gives a user the message of a template, too, long before a Pod of it would fail.
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
        "initContainers": [{"name": "setup", "image": "busybox"}], "containers": [{"name": "web", "image": ALLOWED}],
        "restartPolicy": "Always",
    }});
    let deployment: Deployment = from_value(json!({
        "metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
    }))?;
    let deployments: Api<Deployment> = Api::namespaced(scene.client(), &scene.namespace);
    let message = refusal(deployments.create(&create, &deployment).await)?;
    ensure!(message.contains("busybox (spec.template.spec.initContainers[setup])"), "{message}");
    let job = json!({"spec": {"template": {"spec": {
        "containers": [{"name": "web", "image": "acme/job"}], "restartPolicy": "Never",
    }}}});
    let cron: CronJob =
        from_value(json!({"metadata": {"name": "web"}, "spec": {"schedule": "@daily", "jobTemplate": job}}))?;
    let crons: Api<CronJob> = Api::namespaced(scene.client(), &scene.namespace);
    let message = refusal(crons.create(&create, &cron).await)?;
    ensure!(message.contains("acme/job (spec.jobTemplate.spec.template.spec.containers[web])"), "{message}");

    pods.create(&create, &pod(ALLOWED)?).await?;
    let elsewhere: Api<Pod> = Api::namespaced(scene.client(), &other);
    elsewhere.create(&create, &pod("nginx")?).await?;
    // The embedded API server has no ephemeral containers.
    if scene.cluster.kind() == Kind::Real {
        let debug = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox"}]}});
        let added = pods.patch_ephemeral_containers("web", &PatchParams::default(), &Patch::Strategic(debug)).await;
        let message = refusal(added)?;
        ensure!(message.contains("busybox (spec.ephemeralContainers[debug])"), "{message}");
    }

    // An edit of the ConfigMap counts, and what was created before it can still be changed.
    allow(&scene, "docker.io/library").await?;
    eventually("the new policy is in force", async || {
        let mut other = pod("nginx")?;
        other.metadata.name = Some("other".to_owned());
        Ok(pods.create(&dry, &other).await.map(drop)?)
    })
    .await?;
    let label = Patch::Merge(json!({"metadata": {"labels": {"old": "yes"}}}));
    pods.patch("web", &PatchParams::default(), &label).await?;
    let image =
        Patch::Strategic(json!({"spec": {"containers": [{"name": "web", "image": "registry.example.com/web:2"}]}}));
    let message = refusal(pods.patch("web", &PatchParams::default(), &image).await)?;
    ensure!(message.contains("registry.example.com/web:2"), "{message}");
    Ok(())
}

async fn allow(scene: &Scene, registries: &str) -> Result<()> {
    let map: Value = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "allowed-registries"},
        "data": {"registries": registries},
    });
    let maps: Api<ConfigMap> = scene.config_maps();
    maps.patch("allowed-registries", &PatchParams::apply("test").force(), &Patch::Apply(&map)).await?;
    Ok(())
}

fn pod(image: &str) -> Result<Pod> {
    Ok(from_value(json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "image": image}]}}))?)
}

/// Returns the message of a denied request.
fn refusal<T>(answer: kube::Result<T>) -> Result<String> {
    match answer {
        Ok(_) => bail!("the request is not denied"),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(status.message),
        Err(other) => Err(other.into()),
    }
}
