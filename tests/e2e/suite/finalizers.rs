//! The finalizer of a controller: added before the first call, and removed after the cleanup.

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pilothouse_e2e::{Apple, Host, Plugin, Scene, eventually, plugin::Permission};
use serde_json::{from_value, json};

use crate::contract::served_by;

const OWN: &str = "example.com/cleaning";
const FOREIGN: &str = "example.com/other";

pub(crate) async fn an_object_has_the_finalizer_before_its_first_call_and_goes_after_its_cleanup(
    scene: Scene,
) -> Result<()> {
    let (mut host, gala) = served_by(&scene, "cleaning").await?;
    gala.create(1).await?;
    let status = gala.status_is("1", |status| status["available"] == 1).await?;
    ensure!(status["conditions"][0]["status"] == "True", "the first call did not see the finalizer: {status}");
    set_finalizers(&gala, &[OWN, FOREIGN]).await?;
    raise_wall(&gala).await?;

    // The cleanup fails, and everything stays.
    gala.delete().await?;
    host.warns(&["reconcile failed", "the wall is there"]).await?;
    ensure!(finalizers(&gala).await? == [OWN, FOREIGN], "a finalizer went before the cleanup");
    ensure!(has_map(&gala, "outside").await?, "the cleanup is done");

    // It is retried, and leaves the finalizer of somebody else.
    gala.maps.delete(&map(&gala, "wall"), &DeleteParams::default()).await?;
    eventually("the finalizer is removed", async || {
        let left = finalizers(&gala).await?;
        ensure!(left == [FOREIGN], "there are {left:?}");
        Ok(())
    })
    .await?;
    ensure!(!has_map(&gala, "outside").await?, "the cleanup was not done");
    let errors = errors(&mut host).await?;
    set_finalizers(&gala, &[]).await?;
    is_gone(&gala).await?;

    // A later object has been reconciled, and no call was about the gone one.
    scene.apple("fuji").create(1).await?.status_is("1", |status| status["available"] == 1).await?;
    ensure!(self::errors(&mut host).await? == errors, "there was a call about a gone object");
    Ok(())
}

pub(crate) async fn an_object_that_was_deleted_while_no_host_ran_is_cleaned_up(scene: Scene) -> Result<()> {
    let (mut host, gala) = served_by(&scene, "cleaning").await?;
    let fuji = scene.apple("fuji");
    for apple in [&gala, &fuji] {
        apple.create(1).await?.status_is("1", |status| status["available"] == 1).await?;
    }
    raise_wall(&fuji).await?;
    fuji.delete().await?;
    host.warns(&["reconcile failed", "the wall is there"]).await?;
    host.terminate().await?;
    gala.delete().await?;
    fuji.maps.delete(&map(&fuji, "wall"), &DeleteParams::default()).await?;
    ensure!(finalizers(&gala).await? == [OWN], "the finalizer is not there");
    host.start_again()?;
    for apple in [&gala, &fuji] {
        is_gone(apple).await?;
        ensure!(!has_map(apple, "outside").await?, "the cleanup was not done");
    }
    Ok(())
}

pub(crate) async fn invariant_7_a_finalizer_that_is_not_granted_is_not_written_and_nothing_is_called(
    scene: Scene,
) -> Result<()> {
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    let granted = [
        Permission::to(&["read"], "stable.example.com/v1", "MyApple"),
        Permission::to(&["apply"], "stable.example.com/v1", "MyApple/status"),
        Permission::to(&["read", "create", "delete"], "v1", "ConfigMap"),
    ];
    let plugins = [Plugin::myapple()?.confined_to(&other), Plugin::guest("cleaning")?.granted(&granted)];
    let host = scene.with(&plugins)?.host().await?;
    let gala = scene.apple("gala");
    gala.create(1).await?;
    host.warns(&["reconcile failed", "cannot add the finalizer example.com/cleaning", "not granted: patch"]).await?;
    ensure!(finalizers(&gala).await?.is_empty(), "it was written");
    ensure!(!has_map(&gala, "outside").await?, "the plugin was called");
    // The administrator grants it.
    scene.with(&[Plugin::guest("cleaning")?])?;
    gala.status_is("1", |status| status["available"] == 1).await?;
    Ok(())
}

pub(crate) async fn objects_that_keep_the_finalizer_of_a_removed_plugin_are_named(scene: Scene) -> Result<()> {
    let (mut host, gala) = served_by(&scene, "cleaning").await?;
    gala.create(1).await?.status_is("1", |status| status["available"] == 1).await?;
    scene.plugins.remove("cleaning")?;
    let line = host.warns(&["objects keep a finalizer of this plugin", OWN]).await?;
    let first = format!("{}/gala", scene.namespace);
    ensure!(line.field("first") == Some(&first), "{line:?}");
    eventually("/debug/plugins names them, too", async || {
        let rows = host.plugins().await?;
        let row = rows.iter().find(|row| row["plugin"] == "cleaning").context("it has no row")?;
        let warnings = row["warnings"].to_string();
        let told = format!("leaves the finalizer {OWN} on 1 objects of stable.example.com/v1 MyApple (first: {first})");
        ensure!(warnings.contains(&told), "{warnings}");
        Ok(())
    })
    .await?;
    // As docs/operating.md says.
    gala.delete().await?;
    set_finalizers(&gala, &[]).await?;
    is_gone(&gala).await
}

fn map(apple: &Apple, name: &str) -> String {
    format!("{}-{name}", apple.name)
}

async fn raise_wall(apple: &Apple) -> Result<()> {
    let wall = from_value(json!({"metadata": {"name": map(apple, "wall")}}))?;
    apple.maps.create(&PostParams::default(), &wall).await.context("cannot create the wall")?;
    Ok(())
}

async fn has_map(apple: &Apple, name: &str) -> Result<bool> {
    Ok(apple.maps.get_opt(&map(apple, name)).await?.is_some())
}

async fn finalizers(apple: &Apple) -> Result<Vec<String>> {
    Ok(apple.get().await?.metadata.finalizers.unwrap_or_default())
}

async fn set_finalizers(apple: &Apple, finalizers: &[&str]) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    apple.apples.patch(&apple.name, &PatchParams::default(), &patch).await.context("cannot set the finalizers")?;
    Ok(())
}

async fn is_gone(apple: &Apple) -> Result<()> {
    eventually("the object is gone", async || {
        let left = apple.apples.get_opt(&apple.name).await?;
        ensure!(left.is_none(), "it has {:?}", left.map(|left| left.metadata.finalizers));
        Ok(())
    })
    .await
}

/// Failed reconciles of the guest.
async fn errors(host: &mut Host) -> Result<f64> {
    let labels = [("controller", "cleaning/myapple"), ("result", "error")];
    Ok(host.metrics().await?.sum("controller_runtime_reconcile_total", &labels))
}
