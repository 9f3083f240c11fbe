//! Configurations that refer to Secrets and ConfigMaps.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use pilothouse_e2e::{Plugin, Scene, eventually};
use serde_json::json;

pub(crate) async fn a_configuration_follows_the_secret_that_it_refers_to_and_no_log_has_its_value(
    scene: Scene,
) -> Result<()> {
    let place = |name: &str, key: &str| json!({"namespace": scene.namespace, "name": name, "key": key});
    let config = json!({
        "motd": {"valueFrom": {"secretKeyRef": place("texts", "motd")}},
        "signature": {"valueFrom": {"configMapKeyRef": {
            "namespace": scene.namespace, "name": "names", "key": "signature", "optional": true,
        }}},
    });
    let configured = Plugin::guest("configured")?.confined_to(&scene.namespace).with("config", &config)?;
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    let mut host = scene.with(&[Plugin::myapple()?.confined_to(&other), configured])?.starting_host()?;
    let missing = format!("Secret {}/texts", scene.namespace);
    eventually("the host says what is missing", async || {
        let plugins = serde_json::to_string(&host.plugins().await?)?;
        ensure!(plugins.contains(&missing) && plugins.contains("there is no such object"), "{plugins}");
        Ok(())
    })
    .await?;

    let gala = scene.apple("gala");
    gala.create(1).await?;
    let secrets: Api<Secret> = Api::namespaced(scene.client(), &scene.namespace);
    let maps: Api<ConfigMap> = scene.config_maps();
    let apply = PatchParams::apply("test").force();
    let copied = async |motd: &str, signature: &str| {
        eventually("the child has the values", async || {
            let data = maps.get("gala-motd").await?.data.context("no data")?;
            ensure!(data.get("motd").is_some_and(|found| found == motd), "{data:?}");
            ensure!(data.get("signature").is_some_and(|found| found == signature), "{data:?}");
            Ok(())
        })
        .await
    };
    let motd = async |text: &str| {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "texts"}, "stringData": {"motd": text},
        });
        secrets.patch("texts", &apply, &Patch::Apply(&secret)).await.map(drop)
    };
    motd("hidden-1").await?;
    copied("hidden-1", "").await?;
    motd("hidden-2").await?;
    copied("hidden-2", "").await?;
    let names =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "names"}, "data": {"signature": "W."}});
    maps.patch("names", &apply, &Patch::Apply(&names)).await?;
    copied("hidden-2", "W.").await?;

    // A Secret that goes leaves the plugin as it is.
    secrets.delete("texts", &DeleteParams::default()).await?;
    eventually("the host says that it is missing again", async || {
        let plugins = serde_json::to_string(&host.plugins().await?)?;
        ensure!(plugins.contains(&missing), "{plugins}");
        Ok(())
    })
    .await?;
    gala.scale(2).await?;
    gala.status_is("it is served", |status| status["available"] == 1).await?;
    copied("hidden-2", "W.").await?;
    let told = format!("{:?} {:?}", host.log()?, host.plugins().await?);
    ensure!(!told.contains("hidden-"), "a value is shown: {told}");
    Ok(())
}
