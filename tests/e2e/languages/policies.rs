//! The same webhooks and observer in each language whose SDK has them: `tests/languages/policy-python` and its sister.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pilothouse_e2e::{Plugin, Scene, eventually};
use serde_json::{from_value, json};

use crate::toolchains::{self, root};

pub(crate) async fn python_reviews_and_observes(scene: Scene) -> Result<()> {
    reviews_and_observes(scene, toolchains::python(&root().join("tests/languages/policy-python"))?).await
}

pub(crate) async fn typescript_reviews_and_observes(scene: Scene) -> Result<()> {
    let project = root().join("tests/languages/policy-typescript");
    toolchains::types_of(&project)?;
    reviews_and_observes(scene, toolchains::javascript(&project)?).await
}

/// A forbidden word is denied, by a policy that is read from the cache. Other ConfigMaps are marked, and those with a
/// label observed.
async fn reviews_and_observes(mut scene: Scene, wasm: Vec<u8>) -> Result<()> {
    scene.serve_webhooks(&[])?;
    create(&scene, "policy", "policy", json!({ "forbidden": "bad" }), false).await?;
    let yaml = json!({
        "config": { "namespace": scene.namespace },
        "webhooks": ["words", "marks"],
        "grants": [{ "apiVersion": "v1", "kind": "ConfigMap", "verbs": ["read"], "namespaces": [scene.namespace] }],
    });
    let name = format!("policy-{}", scene.namespace);
    let host = scene.with(&[Plugin { name, wasm, yaml: Some(yaml.to_string()) }])?.host().await?;
    let attempt = async |name: &str, word: &str, dry_run: bool| {
        create(&scene, name, "watched", json!({ "word": word }), dry_run).await
    };
    eventually("both webhooks are in force", async || {
        if attempt("probe", "bad", true).await.is_ok() {
            bail!("a forbidden word is accepted");
        }
        let map = attempt("probe", "good", true).await?;
        ensure!(marked(&map) == Some("dry"), "{map:?}");
        Ok(())
    })
    .await?;
    let refused = attempt("loud", "bad", false).await.err().context("a forbidden word is accepted")?;
    let Some(kube::Error::Api(status)) = refused.downcast_ref() else { return Err(refused) };
    ensure!(status.code == 422 && status.message.contains("bad is forbidden"), "{status:?}");

    let map = attempt("first", "good", false).await?;
    ensure!(marked(&map) == Some("yes"), "{map:?}");
    host.logs(&[&format!("seen: {}/first with good", scene.namespace)]).await?;
    let changed = Patch::Merge(json!({ "data": { "word": "fails" } }));
    scene.config_maps().patch("first", &PatchParams::default(), &changed).await.context("cannot change it")?;
    host.warns(&[&format!("cannot observe v1/ConfigMap {}/first: no pears left", scene.namespace)]).await?;
    scene.config_maps().delete("first", &DeleteParams::default()).await.context("cannot delete it")?;
    host.logs(&[&format!("gone: {}/first", scene.namespace)]).await?;
    Ok(())
}

fn marked(map: &ConfigMap) -> Option<&str> {
    map.metadata.labels.as_ref()?.get("marked").map(String::as_str)
}

async fn create(scene: &Scene, name: &str, label: &str, data: serde_json::Value, dry_run: bool) -> Result<ConfigMap> {
    let map = from_value(json!({ "metadata": { "name": name, "labels": { label: "yes" } }, "data": data }))?;
    Ok(scene.config_maps().create(&PostParams { dry_run, field_manager: None }, &map).await?)
}
