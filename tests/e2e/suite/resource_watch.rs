//! The example plugin `resource-watch`.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use pilothouse_e2e::{Plugin, Scene, eventually};
use serde_json::{Value, from_value, json};

use crate::watches::{clear, define, grow};

pub(crate) async fn kinds_that_a_custom_resource_names_are_counted_and_listed(scene: Scene) -> Result<()> {
    clear(&scene).await?;
    let plugin = Plugin::example("resource-watch")?;
    let yaml =
        plugin.yaml.clone().unwrap_or_default() + "  - {apiVersion: example.com/*, kind: \"*\", verbs: [read]}\n";
    let mut host = scene.with(&[plugin.with_yaml(yaml)])?.host().await?;
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("watch.example.com", "v1", "ResourceWatch"),
        "resourcewatches",
    );
    let watches: Api<DynamicObject> = Api::all_with(scene.client(), &resource);
    let name = scene.namespace.as_str();
    let selected = |api_version: &str, kind: &str, labels: Value| json!({"apiVersion": api_version, "kind": kind, "namespaces": [name], "labels": labels});
    let kinds = [
        selected("v1", "ConfigMap", json!("app=web")),
        selected("example.com/v1", "Pear", Value::Null),
        selected("v1", "Secret", Value::Null),
    ];
    let spec = json!({"spec": {"list": 2, "resources": kinds}});
    eventually("the API server serves ResourceWatches", async || {
        Ok(watches.create(&PostParams::default(), &DynamicObject::new(name, &resource).data(spec.clone())).await?)
    })
    .await?;
    let is = async |what: &str, index: usize, expected: Value| {
        eventually(what, async || {
            let status = watches.get(name).await?.data["status"].clone();
            let mut counted = status["resources"][index].clone();
            drop(counted.as_object_mut().map(|all| (all.remove("apiVersion"), all.remove("kind"))));
            ensure!(counted == expected, "{status}");
            Ok(())
        })
        .await
    };

    is("no ConfigMap is selected", 0, json!({"count": 0})).await?;
    let create = async |map: &str, app: &str| {
        let map: ConfigMap = from_value(json!({"metadata": {"name": map, "labels": {"app": app}}}))?;
        scene.config_maps().create(&PostParams::default(), &map).await?;
        Ok::<(), anyhow::Error>(())
    };
    for map in ["a", "b", "c"] {
        create(map, "web").await?;
    }
    create("d", "other").await?;
    is("three are", 0, json!({"count": 3, "objects": [format!("{name}/a"), format!("{name}/b")]})).await?;
    scene.config_maps().delete("a", &DeleteParams::default()).await?;
    let label = Patch::Merge(json!({"metadata": {"labels": {"app": "other"}}}));
    scene.config_maps().patch("b", &PatchParams::default(), &label).await?;
    is("one left and one is gone", 0, json!({"count": 1, "objects": [format!("{name}/c")]})).await?;

    // A kind that is defined later.
    define(&scene, "Pear").await?;
    is("Pears are counted", 1, json!({"count": 0})).await?;
    grow(&scene, "Pear", "williams").await?;
    is("there is one", 1, json!({"count": 1, "objects": [format!("{name}/williams")]})).await?;

    // What is not granted is reported, and never watched.
    let status = watches.get(name).await?.data["status"].clone();
    let message = status["resources"][2]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("not granted") && status["total"] == 2, "{status}");
    let watched = |informers: &[Value], kind: &str| informers.iter().any(|informer| informer["kind"] == kind);
    let informers = host.informers().await?;
    ensure!(watched(&informers, "v1 ConfigMap") && !watched(&informers, "v1 Secret"), "{informers:?}");

    watches.delete(name, &DeleteParams::default()).await?;
    eventually("nothing is watched any more", async || {
        let informers = host.informers().await?;
        ensure!(!watched(&informers, "v1 ConfigMap") && !watched(&informers, "example.com/v1 Pear"), "{informers:?}");
        Ok(())
    })
    .await
}
