//! Other writers change what a plugin applied.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pilothouse_e2e::{Apple, Plugin, Scene, eventually};
use serde_json::{from_value, json};

pub(crate) async fn an_object_of_somebody_else_is_not_taken_over(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let theirs: ConfigMap =
        from_value(json!({"metadata": {"name": "gala-1"}, "data": {"color": "theirs", "owner": "somebody"}}))?;
    let theirs = scene.config_maps().create(&PostParams::default(), &theirs).await.context("cannot create theirs")?;

    let gala = scene.apple("gala");
    gala.create(3).await?.is_not_ready_because(&["ConfigMap", "gala-1"]).await?;
    ensure!(gala.maps.get("gala-1").await? == theirs, "their object was changed");

    gala.maps.delete("gala-1", &DeleteParams::default()).await.context("cannot delete theirs")?;
    gala.settles().await
}

pub(crate) async fn an_object_that_the_cache_lacks_is_neither_taken_over_nor_collected(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    scene.cluster.hold("configmaps").await?;
    let theirs: ConfigMap = from_value(json!({"metadata": {"name": "gala-1"}, "data": {"precious": "yes"}}))?;
    let theirs = scene.config_maps().create(&PostParams::default(), &theirs).await.context("cannot create theirs")?;

    let gala = scene.apple("gala");
    gala.create(2).await?.is_not_ready_because(&["ConfigMap", "gala-1"]).await?;
    gala.delete().await?;
    eventually("the other child is collected", async || {
        ensure!(gala.maps.get_opt("gala-0").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    ensure!(gala.maps.get("gala-1").await? == theirs, "their object was changed");
    Ok(())
}

pub(crate) async fn a_child_that_somebody_took_away_unseen_is_not_pruned(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(2).await?.settles().await?;
    scene.cluster.hold("configmaps").await?;
    let theirs = Patch::Merge(json!({"metadata": {"ownerReferences": null}, "data": {"precious": "yes"}}));
    gala.maps.patch("gala-1", &PatchParams::default(), &theirs).await.context("cannot take it away")?;

    gala.scale(1).await?;
    // The status is written after the children.
    let generation = gala.get().await?.metadata.generation;
    gala.status_is("of the present spec", |status| {
        status["available"] == 1 && status["observedGeneration"] == json!(generation)
    })
    .await?;
    let data = gala.maps.get("gala-1").await.context("it was deleted")?.data.unwrap_or_default();
    ensure!(data.get("precious").is_some_and(|precious| precious == "yes"), "it has {data:?}");
    Ok(())
}

pub(crate) async fn a_writer_that_keeps_editing_a_child_loses_every_time(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(2).await?.settles().await?;
    for round in 0..20 {
        gala.edit_child(1, json!({"color": format!("rotten-{round}")})).await?;
        is_green_again(&gala).await?;
    }
    gala.settles().await
}

pub(crate) async fn a_manager_that_forces_its_way_loses_too(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(2).await?.settles().await?;
    for round in 0..5 {
        let theirs = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": gala.child(1)},
            "data": {"color": format!("rotten-{round}")},
        });
        let rival = PatchParams::apply("rival").force();
        gala.maps.patch(&gala.child(1), &rival, &Patch::Apply(theirs)).await.context("cannot apply theirs")?;
        is_green_again(&gala).await?;
    }
    gala.settles().await
}

async fn is_green_again(gala: &Apple) -> Result<()> {
    eventually("the child is green again", async || {
        let data = gala.maps.get(&gala.child(1)).await?.data.unwrap_or_default();
        ensure!(data.get("color").is_some_and(|color| color == "green"), "the child has {data:?}");
        Ok(())
    })
    .await
}
