//! Properties of the API server on which the other tests rely.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use pilothouse_e2e::Scene;
use serde_json::{from_value, json};

pub(crate) async fn a_killed_api_server_comes_back_with_its_data(scene: Scene) -> Result<()> {
    let maps = scene.config_maps();
    let kept = maps.create(&PostParams::default(), &map("kept")?).await?;
    scene.cluster.kill().await;
    ensure!(maps.get("kept").await.is_err(), "a killed server answers");
    scene.cluster.restart().await?;
    ensure!(maps.get("kept").await? == kept, "the data is not the same");
    Ok(())
}

pub(crate) async fn writes_are_counted_and_reads_are_not(scene: Scene) -> Result<()> {
    let maps = scene.config_maps();
    let before = scene.cluster.writes_of(&["configmaps"]).await?;
    maps.create(&PostParams::default(), &map("counted")?).await?;
    maps.create(&PostParams::default(), &map("counted")?).await.expect_err("it is there already");
    let patch = json!({"data": {"color": "red"}});
    maps.patch("counted", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    let apply = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"size": "large"}});
    maps.patch("counted", &PatchParams::apply("test"), &Patch::Apply(&apply)).await?;
    maps.get("counted").await?;
    maps.list(&ListParams::default()).await?;
    maps.delete("counted", &DeleteParams::default()).await?;
    let counted = scene.cluster.writes_of(&["configmaps"]).await? - before;
    ensure!(counted == 5.0, "{counted} writes are counted, 5 were sent");
    Ok(())
}

fn map(name: &str) -> Result<ConfigMap> {
    Ok(from_value(json!({"metadata": {"name": name}, "data": {"color": "green"}}))?)
}
