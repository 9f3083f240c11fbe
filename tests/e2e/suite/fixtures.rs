//! Plugins that were built for an earlier or the present version of the contract: `tests/fixtures`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use pilothouse_e2e::{Plugin, Scene, eventually, plugin::Permission};
use serde_json::{Value, from_value, json};

pub(crate) async fn modules_of_each_version_of_the_contract_reconcile_and_review(mut scene: Scene) -> Result<()> {
    reconcile_and_review(&mut scene, "module.wasm").await
}

pub(crate) async fn components_of_each_version_of_the_contract_reconcile_and_review(mut scene: Scene) -> Result<()> {
    reconcile_and_review(&mut scene, "component.wasm").await
}

async fn reconcile_and_review(scene: &mut Scene, file: &str) -> Result<()> {
    for folder in versions()? {
        scene.serve_webhooks(&[])?;
        let wasm = fs::read(folder.join(file)).with_context(|| format!("no {file} in {}", folder.display()))?;
        let plugin = Plugin { name: format!("fixture-{}", scene.namespace), wasm, yaml: None }
            .granted(&[
                Permission::to(&["read", "apply", "delete"], "v1", "ConfigMap"),
                Permission::to(&["read"], "v1", "Secret"),
            ])
            .with("webhooks", &json!(["validates", "mutates"]))?
            // Its configurations outlive the host, and should hold nobody up then.
            .with("config", &json!(scene.namespace))?;
        let mut host = scene.with(&[plugin])?.host().await?;
        eventually("the webhooks are in force", async || match create(scene, "denied", "deny", true).await {
            Ok(_) => bail!("nobody denied it"),
            Err(error) => {
                ensure!(format!("{error:#}").contains("denied is denied"), "{error:#}");
                // The other configuration comes into force on its own.
                let labels = create(scene, "allowed", "allow", true).await?.metadata.labels;
                ensure!(labels.is_some_and(|labels| labels.contains_key("mutated")), "nobody changed it");
                Ok(())
            }
        })
        .await?;
        let name = folder.file_name().and_then(|name| name.to_str()).context("a version is its name")?;
        let map = create(scene, name, "allow", false).await?;
        ensure!(map.metadata.labels.context("it has labels")?["mutated"] == "yes", "it was not changed");
        eventually("its child says what each call answered", async || {
            let child = scene.config_maps().get(&format!("{name}-seen")).await?;
            let seen = json!(child.data);
            // A later version has more.
            let differs = expected().as_object().into_iter().flatten().any(|(name, value)| seen[name] != *value);
            ensure!(!differs, "it has {seen}");
            Ok(())
        })
        .await?;
        host.logs(&[&format!("observed {name}\"")]).await?;
        let metrics = host.admin()?.metrics().await?;
        for sample in ["fixture_calls_total", "fixture_objects", "fixture_bytes_count"] {
            ensure!(metrics.sum(&format!("plugin_{sample}"), &[]) >= 1.0, "{sample} has not changed");
        }
    }
    Ok(())
}

/// Returns what each call of the plugin should answer. What it writes is not granted.
fn expected() -> Value {
    json!({
        "attempt": "1", "phase": "live", "clock.now": "true", "random.bytes": "8",
        "cache.get": "true", "cache.list": "1", "cache.keys": "1",
        "client.get": "ok", "client.list": "ok", "client.send": "ok not-granted",
        "client.create": "not-granted", "client.update": "not-granted", "client.patch": "not-granted",
        "client.apply": "not-granted", "client.delete": "not-granted", "client.evict": "not-granted",
        "client.logs": "not-granted", "http.send": "not-granted", "events.record": "not-granted",
    })
}

async fn create(scene: &Scene, name: &str, label: &str, dry_run: bool) -> Result<ConfigMap> {
    let map: ConfigMap = from_value(json!({
        "metadata": {"name": name, "labels": {"fixture": "yes", label: "yes"}}, "data": {"call": "all", "color": "red"},
    }))?;
    Ok(scene.config_maps().create(&PostParams { dry_run, ..PostParams::default() }, &map).await?)
}

fn versions() -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures"))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.is_dir()).collect())
}
