//! Instances that serve many calls, for plugins that ask for reuse.

use anyhow::{Context, Result, ensure};
use pilothouse_e2e::{Apple, Host, Plugin, Scene};

use crate::contract::served_by;

pub(crate) async fn an_instance_that_is_kept_remembers_and_that_of_another_revision_does_not(
    scene: Scene,
) -> Result<()> {
    let (mut host, gala) = served_by(&scene, "remembering").await?;
    gala.create(1).await?;
    answers(&gala, 101).await?;
    gala.scale(2).await?;
    answers(&gala, 202).await?;
    gala.scale(3).await?;
    answers(&gala, 303).await?;
    let reused = figure(&mut host, "instances_reused_total").await?;
    ensure!(reused == 2.0, "{reused} calls were served by an instance that had served before");
    let memory = figure(&mut host, "memory_bytes").await?;
    let pages = figure(&mut host, "memory_peak_bytes").await?;
    ensure!(pages >= 65_536.0 && pages % 65_536.0 == 0.0, "the memory of an instance had {pages} bytes");
    // Besides, it has a small table, a thousand functions and some globals.
    let besides = memory - pages;
    ensure!((1.0..262_144.0).contains(&besides), "an instance had {besides} bytes besides its memory");
    // Every object is reconciled again.
    scene.plugins.put(&Plugin::guest("remembering")?.revision(1))?;
    answers(&gala, 103).await?;
    gala.scale(4).await?;
    answers(&gala, 204).await
}

async fn answers(apple: &Apple, available: u32) -> Result<()> {
    apple.status_is(&format!("available {available}"), |status| status["available"] == available).await.map(drop)
}

async fn figure(host: &mut Host, name: &str) -> Result<f64> {
    let name = format!("pilothouse_plugin_{name}");
    let metrics = host.metrics().await?;
    metrics.has(&name).then(|| metrics.sum(&name, &[("plugin", "remembering")])).with_context(|| format!("no {name}"))
}
