//! Reports about a plugin's faults name their reason.

use anyhow::{Context, Result, ensure};
use pilothouse_e2e::{Plugin, Scene, eventually};
use serde_json::Value;

/// Two plugins: one fails on every object, and one has an object that never stops changing.
pub(crate) async fn quarantine_failing_keys_and_storms_are_shown_with_their_reasons(scene: Scene) -> Result<()> {
    const BAD: usize = 3;

    let failing = format!("{}-failing", scene.namespace);
    scene.create_namespace(&failing).await?;
    let stormy = Plugin::myapple()?.confined_to(&scene.namespace);
    let mut host = scene.with(&[stormy, Plugin::guest("trapping")?.confined_to(&failing)])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(1).await?;
    for number in 0..BAD {
        scene.apple_in(&failing, &format!("bad-{number}")).create(1).await?;
    }

    eventually("the plugin is quarantined", async || {
        let row = row(&host.plugins().await?, "trapping")?;
        let quarantine = &row["quarantine"];
        let why = quarantine["why"].as_str().with_context(|| format!("it is not: {row}"))?;
        ensure!(why.contains("a bad apple") && quarantine["times"].as_u64() >= Some(1), "{quarantine}");
        let metrics = host.metrics().await?;
        for (plugin, quarantined) in [("trapping", true), ("myapple", false)] {
            let sum = |name| metrics.sum(name, &[("plugin", plugin)]);
            let (now, times) = (sum("pilothouse_plugin_quarantined"), sum("pilothouse_plugin_quarantines_total"));
            ensure!((now == 1.0, times >= 1.0) == (quarantined, quarantined), "{plugin}: {now}, {times} times");
        }
        let controller = &row["controllers"][0];
        let keys = controller["failing"].as_array().context("no keys")?;
        ensure!(keys.len() == BAD && controller["keys_failing"] == BAD, "{controller}");
        for key in keys {
            let named = key["key"].as_str().is_some_and(|key| key.starts_with(&format!("{failing}/bad-")));
            let why = key["error"].as_str().is_some_and(|why| why.contains("a bad apple"));
            ensure!(named && why && key["failures"].as_u64() >= Some(1), "{key}");
        }
        ensure!(row["limits"]["memory_bytes"] == 64 << 20 && row["limits"]["host_calls"] == 100_000, "{row}");
        let (code, table) = host.get("/debug/plugins").await?;
        let lines = ["quarantined (delay", "fails for"];
        ensure!(code == 200 && lines.iter().all(|line| table.contains(line)), "{code}: {table}");
        Ok(())
    })
    .await?;

    let mut quantity = 1;
    let storm = eventually("the object is slowed down", async || {
        for _ in 0..50 {
            quantity = quantity % 5 + 1;
            gala.scale(quantity).await?;
        }
        let row = self::row(&host.plugins().await?, "myapple")?;
        let controller = &row["controllers"][0];
        ensure!(controller["breakers_open"] == 1, "{controller}");
        Ok(controller["storms"][0].clone())
    })
    .await?;
    ensure!(storm["key"] == format!("{}/gala", scene.namespace), "{storm}");
    ensure!(storm["cause"].is_string() && storm["reconciles"].as_u64() > Some(60), "{storm}");
    let metrics = host.metrics().await?;
    for name in ["pilothouse_breakers_open", "pilothouse_breakers_opened_total"] {
        let [calm, open] = ["trapping", "myapple"]
            .map(|plugin| metrics.sum_where(name, |label| label("controller").starts_with(&format!("{plugin}/"))));
        ensure!((calm, open) == (0.0, 1.0), "{name}: {calm} of what is calm, {open} of what is not");
    }
    host.warns(&["gala", "is reconciled over and over"]).await?;

    let (code, table) = host.get("/debug/plugins").await?;
    ensure!(code == 200 && table.contains("is reconciled over and over"), "{code}: {table}");
    // The last state is still reached.
    gala.settles().await
}

fn row(rows: &[Value], plugin: &str) -> Result<Value> {
    let row = rows.iter().find(|row| row["plugin"] == plugin);
    row.cloned().with_context(|| format!("{plugin} has no row"))
}
