//! The host denies what a plugin was not granted.

use anyhow::{Result, ensure};
use kube::api::ListParams;
use pilothouse_e2e::{Plugin, Scene, eventually, plugin::Permission};

use crate::hostile::{other_apples, others_go_on, serves_beside_myapple, while_they_fail};

pub(crate) async fn a_plugin_without_a_yaml_is_refused_with_what_to_write(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?.without_yaml()])?.starting_host()?;
    host.warns(&["myapple.yaml", "grants"]).await?;
    eventually("the host is ready, and its plugin is not", async || {
        let (code, detail) = host.get("/readyz").await?;
        ensure!(code == 200 && !detail.contains("myapple"), "/readyz answers {code}: {detail}");
        let (code, detail) = host.get("/readyz/plugins/myapple").await?;
        ensure!(
            code == 503 && detail.contains("[-]plugin myapple"),
            "/readyz/plugins/myapple answers {code}: {detail}"
        );
        Ok(())
    })
    .await?;

    // The administrator writes the grants, and the plugin runs.
    scene.with(&[Plugin::myapple()?])?;
    scene.apple("gala").create(2).await?.settles().await?;
    host.ready().await
}

pub(crate) async fn a_disabled_plugin_does_nothing(scene: Scene) -> Result<()> {
    let plugin = Plugin::myapple()?;
    let yaml = plugin.yaml.clone().unwrap_or_default().replace("enabled: true", "enabled: false");
    ensure!(yaml.contains("enabled: false"), "the example's file does not say whether it is enabled: {yaml}");
    let before = scene.cluster.writes_of(&["customresourcedefinitions"]).await?;
    let mut host = scene.with(&[plugin.clone().with_yaml(yaml)])?.host().await?;
    let told = host.readiness_of("myapple").await?;
    ensure!(told.contains("disabled"), "/readyz says: {told}");
    ensure!(scene.cluster.writes_of(&["customresourcedefinitions"]).await? == before, "its CRD was installed");

    scene.with(&[plugin])?;
    scene.apple("gala").create(2).await?.settles().await
}

pub(crate) async fn invariant_7_a_write_that_is_not_granted_is_not_sent(scene: Scene) -> Result<()> {
    let [itself, status, _] = Permission::of_myapple();
    let read_only = Permission::to(&["read"], "v1", "ConfigMap");
    let plugin = Plugin::myapple()?.granted(&[itself, status, read_only, Permission::of_its_crd()]);
    let mut host = scene.with(&[plugin])?.starting_host()?;
    let gala = scene.apple("gala");
    let before = scene.cluster.writes_of(&["configmaps"]).await?;
    gala.create(2).await?.is_not_ready_because(&["apply", "ConfigMap", "granted"]).await?;

    ensure!(gala.children().await?.is_empty(), "it has children");
    ensure!(scene.cluster.writes_of(&["configmaps"]).await? == before, "a write was sent");

    scene.with(&[Plugin::myapple()?])?;
    gala.settles().await?;
    host.ready().await
}

pub(crate) async fn a_namespace_that_is_not_granted_is_left_alone(scene: Scene) -> Result<()> {
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    let _host = scene.with(&[Plugin::myapple()?.confined_to(&scene.namespace)])?.host().await?;

    let elsewhere = scene.apple_in(&other, "gala");
    elsewhere.create(2).await?;
    // A later object in the granted namespace has been reconciled.
    scene.apple("gala").create(2).await?.settles().await?;
    let alone = elsewhere.get().await?;
    ensure!(alone.data.get("status").is_none(), "it has a status: {}", alone.data["status"]);
    let maps = elsewhere.maps.list(&ListParams::default()).await?;
    ensure!(maps.iter().all(|map| map.metadata.owner_references.is_none()), "it has children");
    Ok(())
}

pub(crate) async fn invariant_7_a_trespasser_is_denied_every_step(scene: Scene) -> Result<()> {
    // Fewer grants than the plugin asks for: it may read ConfigMaps only, and no Secret.
    let [apples, status, _] = Permission::of_myapple();
    let granted = [apples, status, Permission::to(&["read"], "v1", "ConfigMap")].map(|it| it.within(&scene.namespace));
    // The other plugin brings the kind.
    let (mut host, elsewhere) = serves_beside_myapple(&scene, Plugin::guest("trespasser")?.granted(&granted)).await?;
    let gala = scene.apple("gala");
    gala.create(1).await?;
    let status = gala.status_is("what it was told", |status| status["available"] == 1).await?;
    let told = status["conditions"].as_array().cloned().unwrap_or_default();
    ensure!(told.len() == 14, "{} messages: {status}", told.len());
    for condition in &told {
        ensure!(
            condition["status"] == "True" && condition["reason"] == "NotGranted",
            "unexpected condition: {condition}"
        );
    }
    // The host denies every try.
    while_they_fail(&[&gala], others_go_on(&mut host, &other_apples(&scene, &elsewhere))).await?;
    ensure!(scene.config_maps().get_opt("stolen").await?.is_none(), "it made an object");
    Ok(())
}
