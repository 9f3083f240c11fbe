//! Metrics that plugins declare.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use pilothouse_e2e::{Host, Plugin, Scene, eventually, metrics::Metrics};

use crate::hostile::beside_myapple;

/// The guest's name, which is the label `plugin`.
const PLUGIN: &str = "measuring";

pub(crate) async fn a_plugins_metrics_are_exported_until_it_is_removed(scene: Scene) -> Result<()> {
    let (mut host, _) = beside_myapple(&scene, PLUGIN).await?;
    let green = [("plugin", PLUGIN), ("color", "green")];
    for (apple, quantity) in [("gala", 3), ("fuji", 7)] {
        scene.apple(apple).create(quantity).await?.status_is("served", |status| status["available"] == 1).await?;
    }
    let metrics = exposed(&mut host).await?;
    let of = |name: &str, labels: &[(&str, &str)]| metrics.sum(name, labels);
    let size = [green[0], green[1], ("size", "small")];
    let quantity = of("plugin_apples_quantity", &size);
    ensure!([3.0, 7.0].contains(&quantity), "the last quantity is {quantity}");
    ensure!(metrics.has("plugin_apples_eaten_total"), "a counter without labels is not there from the start");
    ensure!(of("plugin_apples_eaten_total", &[]) == 0.0, "it does not begin at zero");
    let bucket = |le: &str| of("plugin_apples_quantities_bucket", &[("plugin", PLUGIN), ("le", le)]);
    ensure!(bucket("1.0") == 0.0 && bucket("5.0") >= 1.0 && bucket("+Inf") > bucket("5.0"), "{metrics:?}");

    // What a failed call has counted stays.
    scene.apple("bad-1").create(1).await?;
    host.warns(&["reconcile failed", "bad-1", "a bad apple"]).await?;
    counts_each_attempt(&mut host).await?;
    scene.apple("bad-1").delete().await?;

    let before = exposed(&mut host).await?.sum("plugin_apples_seen_total", &green);
    let guest = Plugin::guest(PLUGIN)?.confined_to(&scene.namespace).revision(1);
    scene.plugins.put(&guest)?;
    eventually("another revision serves", async || {
        let reloads = host.metrics().await?.sum("pilothouse_plugin_reloads_total", &[("plugin", PLUGIN)]);
        ensure!(reloads == 1.0, "{reloads} reloads");
        Ok(())
    })
    .await?;
    let after = exposed(&mut host).await?.sum("plugin_apples_seen_total", &green);
    ensure!(after >= before && before > 0.0, "{before} before the reload, {after} after it");
    counts_each_attempt(&mut host).await?;

    scene.plugins.remove(PLUGIN)?;
    eventually("nothing is left", async || {
        let (_, text) = host.get("/metrics").await?;
        ensure!(!text.contains("plugin_apples"), "its metrics are still exported");
        Ok(())
    })
    .await
}

/// Two plugins disagree about the type of a metric. The first by name is exported.
pub(crate) async fn plugins_that_disagree_about_a_metric_leave_the_exposition_valid(scene: Scene) -> Result<()> {
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    let plugins = [
        Plugin::myapple()?.confined_to(&format!("{other}-none")),
        Plugin::guest(PLUGIN)?.confined_to(&scene.namespace),
        Plugin::guest("mismeasuring")?.confined_to(&other),
    ];
    let mut host = scene.with(&plugins)?.host().await?;
    for apple in [scene.apple("gala"), scene.apple_in(&other, "gala")] {
        apple.create(3).await?.status_is("served", |status| status["available"] == 1).await?;
    }
    let metrics = exposed(&mut host).await?;
    ensure!(metrics.values("plugin_apples_quantity", "plugin") == [PLUGIN], "{metrics:?}");
    let hidden = |plugin| metrics.sum("pilothouse_plugin_metrics_hidden", &[("plugin", plugin)]);
    ensure!(hidden("mismeasuring") == 1.0 && hidden(PLUGIN) == 0.0, "the wrong one is hidden");
    host.warns(&["another plugin exports this metric with another type", "apples_quantity"]).await?;
    Ok(())
}

/// Waits until the plugin has counted as many reconciles as the host has.
async fn counts_each_attempt(host: &mut Host) -> Result<()> {
    eventually("each attempt is counted", async || {
        let metrics = host.metrics().await?;
        let seen = metrics.sum("plugin_apples_seen_total", &[("plugin", PLUGIN)]);
        let controller = format!("{PLUGIN}/");
        let all = metrics
            .sum_where("controller_runtime_reconcile_total", |label| label("controller").starts_with(&controller));
        ensure!(seen == all && seen > 0.0, "{seen} are counted by the plugin, and {all} by the host");
        Ok(())
    })
    .await
}

/// Returns what the host exports, after a check that it is valid OpenMetrics text.
pub(crate) async fn exposed(host: &mut Host) -> Result<Metrics> {
    let (code, text) = host.get("/metrics").await?;
    ensure!(code == 200, "/metrics answers {code}");
    let (mut families, mut series, mut family) = (BTreeSet::new(), BTreeSet::new(), "");
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, of) = described.split_once(' ').context("a name and a type")?;
            ensure!(["counter", "gauge", "histogram"].contains(&of), "{line}");
            ensure!(families.insert(name), "{name} is described twice");
            family = name;
        } else if !line.starts_with("# HELP ") && line != "# EOF" {
            let (sample, value) = line.rsplit_once(' ').with_context(|| format!("no sample: {line}"))?;
            let value: f64 = value.parse().with_context(|| format!("no number: {line}"))?;
            ensure!(value.is_finite(), "{line}");
            let name = sample.split('{').next().unwrap_or_default();
            let suffix = name.strip_prefix(family).with_context(|| format!("{name} stands under {family}"))?;
            ensure!(["", "_total", "_sum", "_count", "_bucket"].contains(&suffix), "{line}");
            ensure!(series.insert(sample), "twice: {sample}");
            ensure!(Metrics::parse(line) != Metrics::default(), "{line}");
        }
    }
    ensure!(text.ends_with("# EOF\n"), "the text has no end");
    Ok(Metrics::parse(&text))
}
