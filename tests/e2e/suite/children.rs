//! The children of a MyApple, from creation to deletion.

use anyhow::{Context, Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use pilothouse_e2e::{Plugin, Scene, eventually};
use serde_json::json;

pub(crate) async fn a_myapple_gets_its_children_and_its_status(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    scene.apple("gala").create(3).await?.settles().await?;
    // The stale status, which counts no child yet, is not written.
    let deferred = host.metrics().await?.sum("pilothouse_writes_total", &[("result", "deferred")]);
    ensure!(deferred == 1.0, "{deferred} statuses were left to the next call");
    Ok(())
}

pub(crate) async fn more_are_added_and_the_surplus_is_removed(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;
    let first = gala.maps.get(&gala.child(0)).await?.uid();

    gala.scale(5).await?;
    gala.settles().await?;
    gala.scale(1).await?;
    gala.settles().await?;
    ensure!(gala.maps.get(&gala.child(0)).await?.uid() == first, "the first child was made anew");
    Ok(())
}

pub(crate) async fn a_changed_spec_changes_every_child(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;
    gala.set(json!({"color": "red", "size": "large"})).await?;
    gala.settles().await
}

pub(crate) async fn an_edited_child_is_set_back(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;
    gala.edit_child(1, json!({"color": "rotten"})).await?;
    gala.settles().await?;
    gala.edit_child(2, json!({"color": null, "size": null})).await?;
    gala.settles().await
}

pub(crate) async fn a_field_that_the_plugin_does_not_name_is_left_alone(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(1).await?.settles().await?;
    gala.edit_child(0, json!({"color": "rotten", "note": "mine"})).await?;
    eventually("the color is set back, and the note is still there", async || {
        let data = gala.maps.get(&gala.child(0)).await?.data.unwrap_or_default();
        ensure!(data.get("color").is_some_and(|color| color == "green"), "the child has {data:?}");
        ensure!(data.get("note").is_some_and(|note| note == "mine"), "the child has {data:?}");
        Ok(())
    })
    .await
}

pub(crate) async fn a_deleted_child_returns(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;
    let gone = gala.maps.get(&gala.child(1)).await?.uid();
    gala.maps.delete(&gala.child(1), &DeleteParams::default()).await.context("cannot delete the child")?;
    gala.settles().await?;
    ensure!(gala.maps.get(&gala.child(1)).await?.uid() != gone, "the child was not deleted at all");
    Ok(())
}

pub(crate) async fn children_go_with_their_myapple(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;
    gala.delete().await?;
    no_child_is_left(&scene, "gala").await?;

    // A change that came after the deletion has been reconciled, and no child has come back.
    scene.apple("fuji").create(2).await?.settles().await?;
    no_child_is_left(&scene, "gala").await
}

pub(crate) async fn a_myapple_of_the_same_name_gets_children_of_its_own(scene: Scene) -> Result<()> {
    let _host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;
    gala.delete().await?;
    // The old children, owned by the deleted MyApple, may still exist.
    gala.create(2).await?.settles().await
}

async fn no_child_is_left(scene: &Scene, apple: &str) -> Result<()> {
    eventually(&format!("no child of {apple} is left"), async || {
        let maps = scene.config_maps().list(&ListParams::default()).await?;
        let left: Vec<String> =
            maps.iter().map(ResourceExt::name_any).filter(|name| name.starts_with(&format!("{apple}-"))).collect();
        ensure!(left.is_empty(), "{left:?} are left");
        Ok(())
    })
    .await
}
