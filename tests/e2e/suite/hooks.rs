//! The optional exports of a plugin: `mapper` names the objects that a change concerns, and `observer` gets every
//! change.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pilothouse_e2e::{Host, Plugin, Scene, eventually};
use serde_json::{Value, from_value, json};

use crate::{
    contract::served_by,
    hostile::{beside_myapple, other_apples, others_go_on, serves_beside_myapple},
};

pub(crate) async fn each_mapping_wakes_the_keys_that_it_names(scene: Scene) -> Result<()> {
    let (_host, gala) = served_by(&scene, "mapping").await?;
    gala.create_with("red", 1).await?;
    let called = async |times: u32| {
        gala.status_is(&format!("{times} calls"), |status| status["available"] == times).await.map(drop)
    };
    called(1).await?;
    let owner = json!({
        "apiVersion": "stable.example.com/v1", "kind": "MyApple", "name": "gala", "uid": gala.get().await?.metadata.uid,
    });
    for (times, name, metadata) in [
        (2, "gala", json!({"labels": {"by": "same-key"}})),
        (3, "any-1", json!({"labels": {"by": "label", "apple": "gala"}})),
        (4, "any-2", json!({"labels": {"by": "any-owner"}, "ownerReferences": [owner]})),
        (5, "red", json!({"labels": {"by": "index"}})),
        (6, "any-3", json!({"labels": {"by": "function"}, "annotations": {"apples": "fuji gala"}})),
    ] {
        // Before, the change concerned another object.
        let mut other = metadata.clone();
        other["annotations"] = json!({"apples": "fuji"});
        other["labels"]["apple"] = json!("fuji");
        other["ownerReferences"] = json!([]);
        create(&scene, &format!("fuji-{times}"), other).await?;
        create(&scene, name, metadata).await?;
        called(times).await?;
    }
    // An object that it no longer names is woken too.
    let change = Patch::Merge(json!({"metadata": {"labels": {"apple": "fuji"}}}));
    scene.config_maps().patch("any-1", &PatchParams::default(), &change).await?;
    called(7).await
}

pub(crate) async fn invariant_8_a_mapper_that_fails_costs_itself_that_change(scene: Scene) -> Result<()> {
    let ((mut host, elsewhere), gala) = (beside_myapple(&scene, "mapping_badly").await?, scene.apple("gala"));
    gala.create(1).await?.status_is("1 call", |status| status["available"] == 1).await?;
    for mistake in ["trap", "loop", "fail", "flood", "nowhere"] {
        create(&scene, &format!("bad-{mistake}"), json!({"labels": {"mistake": mistake}})).await?;
    }
    create(&scene, "gala", json!({"labels": {"mistake": "none"}})).await?;
    gala.status_is("2 calls", |status| status["available"] == 2).await?;
    while_it_fails(&scene, &mut host, "map", &elsewhere).await
}

pub(crate) async fn an_observer_gets_every_change_in_order(scene: Scene) -> Result<()> {
    create_with(&scene, "there", json!({"labels": {"observed": ""}}), "0").await?;
    let mut host = scene.with(&[Plugin::guest("observing")?])?.host().await?;
    let told = async |lines: &[&str]| {
        eventually(&format!("the observer gets {lines:?}"), async || {
            let map = scene.config_maps().get("told").await?;
            let told = map.data.and_then(|mut data| data.remove("told")).unwrap_or_default();
            ensure!(told.lines().eq(lines.iter().copied()), "unexpected changes: {told:?}");
            Ok(())
        })
        .await
    };
    told(&["added there 0 initial"]).await?;
    create_with(&scene, "new", json!({"labels": {"observed": ""}}), "1").await?;
    told(&["added there 0 initial", "added new 1"]).await?;
    let change = Patch::Merge(json!({"data": {"value": "2"}}));
    scene.config_maps().patch("new", &PatchParams::default(), &change).await?;
    told(&["added there 0 initial", "added new 1", "updated new 1 2"]).await?;

    // A newer revision gets new changes, and none twice.
    scene.with(&[Plugin::guest("observing")?.revision(1)])?;
    eventually("the newer revision serves", async || {
        let reloads = host.metrics().await?.sum("pilothouse_plugin_reloads_total", &[("plugin", "observing")]);
        ensure!(reloads == 1.0, "{reloads} reloads");
        Ok(())
    })
    .await?;
    scene.config_maps().delete("new", &DeleteParams::default()).await?;
    told(&["added there 0 initial", "added new 1", "updated new 1 2", "deleted new 2"]).await
}

pub(crate) async fn invariant_8_an_observer_that_fails_holds_up_nobody(scene: Scene) -> Result<()> {
    // The deadline of a call that never returns is short. `describe` has the same deadline.
    let limits = json!({"timeoutMs": 1000});
    let guest = Plugin::guest("observing_badly")?.confined_to(&scene.namespace).limited(&limits)?;
    let ((mut host, elsewhere), gala) = (serves_beside_myapple(&scene, guest).await?, scene.apple("gala"));
    for mistake in ["trap", "loop", "fail", "relief"] {
        create(&scene, &format!("bad-{mistake}"), json!({"labels": {"mistake": mistake}})).await?;
    }
    errors_are(&mut host, "observe", 3.0).await?;
    gala.create(1).await?.status_is("good", |status| status["available"] == 1).await?;
    // Changes that failed are delivered as soon as the export works. Those that always fail keep waiting.
    create(&scene, "bad-relief-relief", json!({})).await?;
    eventually("the observer gets one more change", async || {
        let waiting = host.metrics().await?.sum("pilothouse_backlog_objects", &[("export", "observe")]);
        ensure!(waiting == 3.0, "{waiting} wait");
        Ok(())
    })
    .await?;
    while_it_fails(&scene, &mut host, "observe", &elsewhere).await
}

/// Each of these changes makes the plugin fail in another way, again and again. The other plugin's objects are
/// reconciled all the while.
async fn while_it_fails(scene: &Scene, host: &mut Host, export: &str, elsewhere: &str) -> Result<()> {
    let maps = scene.config_maps();
    let changes = async {
        for value in 0.. {
            for mistake in ["trap", "loop", "fail"] {
                let change = Patch::Merge(json!({"data": {"value": value.to_string()}}));
                maps.patch(&format!("bad-{mistake}"), &PatchParams::default(), &change).await?;
            }
        }
        Ok(())
    };
    let served = async {
        let before = errors(host, export).await?;
        others_go_on(host, &other_apples(scene, elsewhere)).await?;
        errors_are(host, export, before + 3.0).await
    };
    tokio::select! {
        served = served => served,
        ended = changes => ended,
    }
}

/// Counts the failed calls of an export.
async fn errors(host: &mut Host, export: &str) -> Result<f64> {
    Ok(host.metrics().await?.sum("pilothouse_hooks_total", &[("export", export), ("result", "error")]))
}

async fn errors_are(host: &mut Host, export: &str, least: f64) -> Result<()> {
    eventually("its failures are counted", async || {
        let errors = errors(host, export).await?;
        ensure!(errors >= least, "{errors} errors");
        Ok(())
    })
    .await
}

async fn create(scene: &Scene, name: &str, metadata: Value) -> Result<()> {
    create_with(scene, name, metadata, "").await
}

/// Creates a ConfigMap whose `data.value` is `value`.
async fn create_with(scene: &Scene, name: &str, mut metadata: Value, value: &str) -> Result<()> {
    metadata["name"] = json!(name);
    let map: ConfigMap = from_value(json!({"metadata": metadata, "data": {"value": value}}))?;
    let created = scene.config_maps().create(&PostParams::default(), &map).await;
    created.with_context(|| format!("cannot create {name}"))?;
    Ok(())
}
