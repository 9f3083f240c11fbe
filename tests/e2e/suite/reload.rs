//! Plugin files that appear, change, break and disappear while a host runs.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use pilothouse_e2e::{Apple, Host, Plugin, Scene, eventually};
use serde_json::json;

pub(crate) async fn invariant_9_a_plugin_replaced_under_load_loses_no_change_and_fails_no_reconcile(
    scene: Scene,
) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let apples: Vec<Apple> = (0..20).map(|index| scene.apple(&format!("apple-{index}"))).collect();
    for apple in &apples {
        apple.create(3).await?;
    }
    try_join_all(apples.iter().map(Apple::settles)).await?;

    let load = async {
        // 100 changes a second for as long as revisions are replaced, which takes some seconds.
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        let mut change = 0;
        loop {
            ticks.tick().await;
            let spec = json!({"color": format!("color-{change}"), "quantity": 1 + change % 5});
            apples[change % apples.len()].set(spec).await?;
            change += 1;
        }
    };
    let replacements = async {
        for mark in 1..=5 {
            let reconciles = reconciles(&mut host, "success").await?;
            let reloads = reloads(&mut host).await?;
            scene.plugins.put(&Plugin::myapple()?.revision(mark))?;
            eventually("the new revision serves", async || {
                ensure!(self::reloads(&mut host).await? > reloads, "no revision was loaded yet");
                Ok(())
            })
            .await?;
            eventually("it has reconciled a hundred times", async || {
                let now = self::reconciles(&mut host, "success").await?;
                ensure!(now >= reconciles + 100.0, "{} times", now - reconciles);
                Ok(())
            })
            .await?;
        }
        Ok(())
    };
    tokio::select! {
        done = replacements => { let done: Result<()> = done; done? }
        broken = load => { let broken: Result<()> = broken; broken? }
    }
    try_join_all(apples.iter().map(Apple::settles)).await?;
    let failed = reconciles(&mut host, "error").await?;
    ensure!(failed == 0.0, "{failed} reconciles failed");
    Ok(())
}

pub(crate) async fn a_new_revision_takes_effect_on_every_object(scene: Scene) -> Result<()> {
    let first = Plugin::myapple()?;
    let second = Plugin { wasm: Plugin::guest("second")?.wasm, ..first.clone() };
    let _host = scene.with(std::slice::from_ref(&first))?.host().await?;
    let apples = [scene.apple("gala"), scene.apple("fuji"), scene.apple("idared")];
    for apple in &apples {
        apple.create(2).await?.settles().await?;
    }

    scene.plugins.put(&second)?;
    for apple in &apples {
        eventually("every child was made by the second revision", async || {
            for child in apple.children().await? {
                let data = child.data.unwrap_or_default();
                ensure!(data.get("revision").is_some_and(|revision| revision == "2"), "a child has {data:?}");
            }
            Ok(())
        })
        .await?;
    }
    scene.plugins.put(&first)?;
    try_join_all(apples.iter().map(Apple::settles)).await?;
    Ok(())
}

pub(crate) async fn invariant_9_garbage_in_place_of_a_plugin_is_reported_and_the_old_revision_goes_on(
    scene: Scene,
) -> Result<()> {
    let plugin = Plugin::myapple()?;
    let mut host = scene.with(std::slice::from_ref(&plugin))?.host().await?;
    scene.apple("gala").create(2).await?.settles().await?;

    let garbage = Plugin { wasm: b"this is no plugin".to_vec(), ..plugin.clone() };
    scene.plugins.put(&garbage)?;
    is_reported(&mut host).await?;
    scene.apple("fuji").create(2).await?.settles().await?;

    scene.plugins.put(&plugin.revision(1))?;
    is_no_longer_reported(&mut host).await?;
    scene.apple("idared").create(2).await?.settles().await
}

pub(crate) async fn a_half_written_plugin_is_reported_until_it_is_whole(scene: Scene) -> Result<()> {
    let plugin = Plugin::myapple()?;
    let mut host = scene.with(std::slice::from_ref(&plugin))?.host().await?;
    scene.apple("gala").create(2).await?.settles().await?;

    let next = plugin.revision(1);
    scene.plugins.put_first_bytes(&next, next.wasm.len() / 2)?;
    is_reported(&mut host).await?;
    scene.apple("fuji").create(2).await?.settles().await?;

    scene.plugins.put_first_bytes(&next, next.wasm.len())?;
    is_no_longer_reported(&mut host).await?;
    scene.apple("idared").create(2).await?.settles().await
}

pub(crate) async fn a_removed_plugin_stops_and_the_others_go_on(scene: Scene) -> Result<()> {
    let west = format!("{}-west", scene.namespace);
    scene.create_namespace(&west).await?;
    let east = Plugin::myapple()?.named("east").confined_to(&scene.namespace);
    let west_plugin = Plugin::myapple()?.named("west").confined_to(&west);
    // The same operator twice, each for its own namespace.
    let mut host = scene.with(&[east.clone(), west_plugin])?.host().await?;
    let eastern = scene.apple("gala");
    eastern.create(2).await?.settles().await?;
    scene.apple_in(&west, "gala").create(2).await?.settles().await?;

    scene.plugins.remove("east")?;
    eventually("the plugin is gone", async || {
        let controllers = host.metrics().await?.values("controller_runtime_max_concurrent_reconciles", "controller");
        ensure!(!controllers.iter().any(|controller| controller.contains("east")), "{controllers:?} are at work");
        Ok(())
    })
    .await?;
    let before = eastern.get().await?;
    eastern.scale(4).await?;
    // The other plugin has reconciled a later change.
    scene.apple_in(&west, "fuji").create(2).await?.settles().await?;
    ensure!(eastern.children().await?.len() == 2, "the removed plugin still makes children");
    ensure!(eastern.get().await?.data["status"] == before.data["status"], "the removed plugin still writes status");

    scene.plugins.put(&east)?;
    eastern.settles().await
}

pub(crate) async fn a_new_plugin_starts_without_a_restart(scene: Scene) -> Result<()> {
    let mut host = scene.host().await?;
    scene.with(&[Plugin::myapple()?])?;
    scene.apple("gala").create(3).await?.settles().await?;
    host.ready().await
}

/// Checks the log, the metrics, and the details of `/readyz`.
async fn is_reported(host: &mut Host) -> Result<()> {
    eventually("the failure is counted", async || {
        let failures = host.metrics().await?.sum("pilothouse_plugin_load_failures_total", &[("plugin", "myapple")]);
        ensure!(failures > 0.0, "no failure is counted");
        Ok(())
    })
    .await?;
    host.warns(&["myapple", "cannot bring the plugin up"]).await?;
    // `/readyz` shows it last.
    eventually("/readyz says so", async || {
        let told = host.readiness_of("myapple").await?;
        ensure!(told.contains("failed to compile") && told.contains("goes on"), "it says: {told}");
        Ok(())
    })
    .await
}

async fn is_no_longer_reported(host: &mut Host) -> Result<()> {
    eventually("/readyz is at peace again", async || {
        let told = host.readiness_of("myapple").await?;
        ensure!(!told.contains("failed"), "it says: {told}");
        Ok(())
    })
    .await?;
    host.ready().await
}

async fn reconciles(host: &mut Host, result: &str) -> Result<f64> {
    Ok(host.metrics().await?.sum("controller_runtime_reconcile_total", &[("result", result)]))
}

async fn reloads(host: &mut Host) -> Result<f64> {
    Ok(host.metrics().await?.sum("pilothouse_plugin_reloads_total", &[("plugin", "myapple")]))
}
