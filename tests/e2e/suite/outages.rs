//! Hosts and API servers that stop and come back.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, future::try_join_all, stream};
use pilothouse_e2e::{Apple, Plugin, Scene};
use serde_json::json;

pub(crate) async fn an_unreachable_api_server_is_waited_for(scene: Scene) -> Result<()> {
    scene.cluster.kill().await;
    let mut host = scene.with(&[Plugin::myapple()?])?.starting_host()?;
    host.warns(&["API server"]).await?;
    let (code, _) = host.get("/healthz").await?;
    ensure!(code == 200, "/healthz answers {code}");
    let (code, detail) = host.get("/readyz").await?;
    ensure!(code == 503, "/readyz answers {code}: {detail}");

    scene.cluster.restart().await?;
    scene.apple("gala").create(3).await?.settles().await?;
    host.ready().await
}

pub(crate) async fn a_restarted_api_server_is_found_again(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let (gala, fuji) = (scene.apple("gala"), scene.apple("fuji"));
    gala.create(3).await?.settles().await?;
    fuji.create(2).await?.settles().await?;

    scene.cluster.kill().await;
    scene.cluster.restart().await?;
    gala.scale(5).await?;
    gala.settles().await?;
    fuji.edit_child(0, json!({"color": "rotten"})).await?;
    fuji.settles().await?;

    // In the middle of its work.
    let many = create_many(&scene, 20).await?;
    scene.cluster.kill().await;
    scene.cluster.restart().await?;
    all_settle(&many).await?;
    host.ready().await
}

pub(crate) async fn a_restart_of_api_server_or_etcd_begins_no_more_than_a_list_of_each_kind(
    scene: Scene,
) -> Result<()> {
    const RESTARTS: u32 = 4;
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let (gala, fuji) = (scene.apple("gala"), scene.apple("fuji"));
    gala.create(3).await?.settles().await?;
    fuji.create(2).await?.settles().await?;
    let before = relists(&mut host).await?;
    for restart in 0..RESTARTS {
        // The host's last version is older than the server's first, so its watches expire.
        scene.create_namespace(&format!("{}-{restart}", scene.namespace)).await?;
        if restart % 2 == 0 {
            scene.cluster.kill().await;
            scene.cluster.restart().await?;
        } else {
            scene.cluster.restart_etcd().await?;
        }
        gala.scale(restart + 1).await?;
        gala.settles().await?;
        fuji.edit_child(0, json!({"color": "rotten"})).await?;
        fuji.settles().await?;
    }
    scene.is_cached(&mut host).await?;
    let informers = host.informers().await?;
    let (relists, most) = (relists(&mut host).await? - before, f64::from(RESTARTS) * informers.len() as f64);
    ensure!(relists <= most, "{relists} relists after {RESTARTS} restarts, of {informers:?}");
    host.ready().await
}

async fn relists(host: &mut pilothouse_e2e::Host) -> Result<f64> {
    Ok(host.metrics().await?.sum("pilothouse_informer_relists_total", &[]))
}

pub(crate) async fn a_host_killed_in_the_middle_loses_nothing(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let many = create_many(&scene, 20).await?;
    host.crash_and_restart()?;
    all_settle(&many).await
}

pub(crate) async fn a_host_terminated_in_the_middle_loses_nothing(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let many = create_many(&scene, 20).await?;
    host.terminate_and_restart().await?;
    all_settle(&many).await
}

pub(crate) async fn invariant_5_what_changes_while_the_host_is_down_is_made_good(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let (gala, fuji, idared) = (scene.apple("gala"), scene.apple("fuji"), scene.apple("idared"));
    gala.create(3).await?.settles().await?;
    fuji.create(2).await?.settles().await?;

    host.terminate().await?;
    gala.scale(1).await?;
    fuji.edit_child(1, json!({"color": "rotten"})).await?;
    idared.create(2).await?;
    host.start_again()?;
    all_settle(&[gala, fuji, idared]).await
}

pub(crate) async fn invariant_10_sigterm_under_load_ends_with_success(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let many = create_many(&scene, 20).await?;
    let load = async {
        // 100 changes a second.
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        for change in 0_usize.. {
            ticks.tick().await;
            many[change % many.len()].set(json!({"color": format!("color-{change}")})).await?;
        }
        Ok(())
    };
    let end = async {
        all_busy(&mut host).await?;
        host.terminate().await?;
        anyhow::Ok(host)
    };
    let mut host = tokio::select! {
        ended = end => ended?,
        broken = load => {
            let broken: Result<()> = broken;
            broken?;
            anyhow::bail!("the load ended by itself");
        }
    };
    host.start_again()?;
    all_settle(&many).await
}

/// Waits until reconciles run.
async fn all_busy(host: &mut pilothouse_e2e::Host) -> Result<()> {
    let before = host.metrics().await?.sum("controller_runtime_reconcile_total", &[]);
    pilothouse_e2e::eventually("a hundred more reconciles", async || {
        let now = host.metrics().await?.sum("controller_runtime_reconcile_total", &[]);
        ensure!(now >= before + 100.0, "{} more", now - before);
        Ok(())
    })
    .await
}

async fn create_many(scene: &Scene, count: usize) -> Result<Vec<Apple>> {
    let many: Vec<Apple> = (0..count).map(|index| scene.apple(&format!("apple-{index}"))).collect();
    stream::iter(&many).map(Ok).try_for_each_concurrent(5, async |apple| apple.create(3).await.map(drop)).await?;
    Ok(many)
}

async fn all_settle(many: &[Apple]) -> Result<()> {
    try_join_all(many.iter().map(Apple::settles)).await?;
    Ok(())
}
