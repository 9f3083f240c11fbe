//! Watches that reconciles ask for at run time.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams},
};
use pilothouse_e2e::{Apple, Host, Plugin, Scene, eventually};
use serde_json::{from_value, json};

use crate::contract::served_by;

const PEARS: &str = "example.com/v1 Pear";

pub(crate) async fn a_kind_that_an_object_names_is_cached_and_wakes_it_until_it_names_another(
    scene: Scene,
) -> Result<()> {
    let (mut host, gala) = served_by(&scene, "pointing").await?;
    gala.create_with("example.com/v1/Pear", 1).await?;
    counts(&gala, "not cached").await?;
    runs(&mut host, true).await?;
    // A definition that appears later.
    define(&scene).await?;
    counts(&gala, "0").await?;
    grow(&scene, "williams").await?;
    counts(&gala, "1").await?;
    // The watch stays while a newer revision goes on to ask for it.
    scene.with(&[Plugin::guest("pointing")?.revision(1)])?;
    eventually("the newer revision serves", async || {
        let reloads = host.metrics().await?.sum("pilothouse_plugin_reloads_total", &[("plugin", "pointing")]);
        ensure!(reloads == 1.0, "{reloads} reloads");
        Ok(())
    })
    .await?;
    grow(&scene, "conference").await?;
    counts(&gala, "2").await?;

    // A definition that goes, and comes back.
    definitions(&scene).delete("pears.example.com", &DeleteParams::default()).await.context("cannot delete the CRD")?;
    counts(&gala, "0").await?;
    eventually("the CRD is gone", async || {
        ensure!(definitions(&scene).get_opt("pears.example.com").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    define(&scene).await?;
    grow(&scene, "comice").await?;
    counts(&gala, "1").await?;

    // A restarted host caches it again, because the first reconcile asks for it.
    host.terminate_and_restart().await?;
    grow(&scene, "abate").await?;
    counts(&gala, "2").await?;
    runs(&mut host, true).await?;

    // What is no longer asked for stops.
    gala.set(json!({"color": "none"})).await?;
    counts(&gala, "nothing").await?;
    runs(&mut host, false).await?;
    gala.set(json!({"color": "example.com/v1/Pear"})).await?;
    counts(&gala, "2").await?;
    gala.delete().await?;
    runs(&mut host, false).await
}

pub(crate) async fn invariant_7_a_kind_that_is_asked_for_and_not_granted_is_refused_in_words(
    scene: Scene,
) -> Result<()> {
    let (mut host, gala) = served_by(&scene, "pointing").await?;
    gala.create_with("v1/Secret", 1).await?;
    counts(&gala, "not granted: read v1 Secret").await?;
    let informers = host.informers().await?;
    ensure!(informers.iter().all(|informer| informer["kind"] != "v1 Secret"), "Secrets are cached: {informers:?}");
    // The administrator grants them.
    let guest = Plugin::guest("pointing")?;
    let yaml = guest.yaml.clone().unwrap_or_default() + "  - {apiVersion: v1, kind: Secret, verbs: [read]}\n";
    scene.with(&[guest.with_yaml(yaml)])?;
    counts(&gala, "0").await
}

/// Waits until the message of the condition `Counted` contains this.
async fn counts(gala: &Apple, what: &str) -> Result<()> {
    gala.status_is(&format!("{what:?}"), |status| {
        let conditions = status["conditions"].as_array();
        let counted = conditions.into_iter().flatten().find(|condition| condition["type"] == "Counted");
        let message = counted.and_then(|condition| condition["message"].as_str()).unwrap_or_default();
        if what.parse::<u32>().is_ok() { message == what } else { message.contains(what) }
    })
    .await
    .map(drop)
}

/// Waits until an informer of Pears runs, or none does.
async fn runs(host: &mut Host, does: bool) -> Result<()> {
    eventually("the informer of Pears is as it should be", async || {
        let informers = host.informers().await?;
        let runs = informers.iter().any(|informer| informer["kind"] == PEARS);
        ensure!(runs == does, "{informers:?}");
        Ok(())
    })
    .await
}

async fn define(scene: &Scene) -> Result<()> {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition: CustomResourceDefinition = from_value(json!({
        "metadata": {"name": "pears.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Pear", "plural": "pears", "singular": "pear", "listKind": "PearList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    }))?;
    definitions(scene).create(&PostParams::default(), &definition).await.context("cannot create the CRD")?;
    Ok(())
}

async fn grow(scene: &Scene, name: &str) -> Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Pear"));
    let pears: Api<DynamicObject> = Api::namespaced_with(scene.client(), &scene.namespace, &resource);
    eventually("the API server serves Pears", async || {
        pears.create(&PostParams::default(), &DynamicObject::new(name, &resource)).await?;
        Ok(())
    })
    .await
}

fn definitions(scene: &Scene) -> Api<CustomResourceDefinition> {
    Api::all(scene.client())
}
