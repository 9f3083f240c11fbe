//! Nothing to do means nothing sent.

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use pilothouse_e2e::{Host, Plugin, Scene, eventually};
use serde_json::json;

/// Everything that the host could have written.
const WRITTEN: [&str; 4] = ["configmaps", "myapples", "customresourcedefinitions", "events"];
const WRITING: [&str; 4] = ["POST", "PUT", "PATCH", "DELETE"];

pub(crate) async fn a_restarted_host_sends_no_write_request(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let names = ["gala", "fuji", "idared", "elstar", "braeburn"];
    for name in names {
        scene.apple(name).create(3).await?.settles().await?;
    }
    host.terminate().await?;
    let before = scene.cluster.writes_of(&WRITTEN).await?;
    ensure!(before > 0.0, "the API server does not count writes");

    host.start_again()?;
    host.ready().await?;
    eventually("every MyApple was reconciled, and the queue is empty", async || {
        let reconciles = reconciles(&mut host).await?;
        ensure!(reconciles >= 5.0, "{reconciles} reconciles");
        idle(&mut host).await
    })
    .await?;
    let sent = host
        .metrics()
        .await?
        .sum_where("rest_client_requests_total", |label| WRITING.contains(&label("method").as_str()));
    ensure!(sent == 0.0, "the host counts {sent} writes");
    let after = scene.cluster.writes_of(&WRITTEN).await?;
    ensure!(after == before, "the API server counts {} writes", after - before);
    Ok(())
}

pub(crate) async fn a_reconcile_that_changes_nothing_sends_no_request(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;
    eventually("the queue is empty", async || idle(&mut host).await).await?;
    let requests = requests(&mut host).await?;
    ensure!(requests > 0.0, "the host does not count requests");
    let before = scene.cluster.writes_of(&WRITTEN).await?;

    let rounds = 20;
    for round in 0..rounds {
        let reconciled = reconciles(&mut host).await?;
        let note = json!({"metadata": {"annotations": {"round": round.to_string()}}});
        gala.apples.patch("gala", &PatchParams::default(), &Patch::Merge(note)).await?;
        eventually("it is reconciled once more", async || {
            ensure!(reconciles(&mut host).await? > reconciled, "not yet");
            idle(&mut host).await
        })
        .await?;
    }
    let sent = self::requests(&mut host).await? - requests;
    ensure!(sent == 0.0, "the host sent {sent} requests in {rounds} reconciles");
    let written = scene.cluster.writes_of(&WRITTEN).await? - before;
    ensure!(written == f64::from(rounds), "{written} writes, of which {rounds} are the test's");
    Ok(())
}

async fn reconciles(host: &mut Host) -> Result<f64> {
    Ok(host.metrics().await?.sum("controller_runtime_reconcile_total", &[("result", "success")]))
}

async fn requests(host: &mut Host) -> Result<f64> {
    Ok(host.metrics().await?.sum("rest_client_requests_total", &[]))
}

/// Fails while keys wait or are at work.
async fn idle(host: &mut Host) -> Result<()> {
    let metrics = host.metrics().await?;
    let waiting = metrics.sum("workqueue_depth", &[]);
    let working = metrics.sum("controller_runtime_active_workers", &[]);
    ensure!(waiting == 0.0 && working == 0.0, "{waiting} keys wait, {working} are at work");
    Ok(())
}
