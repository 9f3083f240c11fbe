//! Kinds that come and go while a plugin for them runs.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use pilothouse_e2e::{Plugin, Scene, eventually, plugin::Permission};

const NAME: &str = "myapples.stable.example.com";

pub(crate) async fn a_kind_that_appears_after_the_plugin_is_served(scene: Scene) -> Result<()> {
    let definition = definition(&scene).await?;
    delete(&scene).await?;

    let plugin = Plugin::myapple()?.granted(&Permission::of_myapple());
    let mut host = scene.with(&[plugin])?.starting_host()?;
    host.logs(&["MyApple", "waiting for the kind to be served"]).await?;
    ensure!(definitions(&scene).get_opt(NAME).await?.is_none(), "it was installed without a grant");

    create(&scene, &definition).await?;
    scene.apple("gala").create(3).await?.settles().await?;
    host.ready().await
}

pub(crate) async fn a_kind_that_is_deleted_and_comes_back_is_served_again(scene: Scene) -> Result<()> {
    let definition = definition(&scene).await?;
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;

    delete(&scene).await?;
    eventually("the children of the deleted MyApple are gone", async || {
        let maps = scene.config_maps().list(&ListParams::default()).await?;
        let left = maps.iter().filter(|map| map.metadata.owner_references.is_some()).count();
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await?;
    let (code, _) = host.get("/healthz").await?;
    ensure!(code == 200, "/healthz answers {code}");

    create(&scene, &definition).await?;
    gala.create(2).await?.settles().await?;
    host.ready().await
}

/// The plugin's CRD, as a person would create it.
async fn definition(scene: &Scene) -> Result<CustomResourceDefinition> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let mut definition =
        eventually("the plugin brings its CRD", async || Ok(definitions(scene).get(NAME).await?)).await?;
    host.terminate().await?;
    definition.metadata = ObjectMeta { name: definition.metadata.name, ..ObjectMeta::default() };
    definition.status = None;
    Ok(definition)
}

async fn create(scene: &Scene, definition: &CustomResourceDefinition) -> Result<()> {
    definitions(scene).create(&PostParams::default(), definition).await.context("cannot create the CRD")?;
    Ok(())
}

async fn delete(scene: &Scene) -> Result<()> {
    definitions(scene).delete(NAME, &DeleteParams::default()).await.context("cannot delete the CRD")?;
    eventually("the CRD is gone", async || {
        ensure!(definitions(scene).get_opt(NAME).await?.is_none(), "it is there");
        Ok(())
    })
    .await
}

fn definitions(scene: &Scene) -> Api<CustomResourceDefinition> {
    Api::all(scene.client())
}
