//! Nothing to do means nothing sent.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
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

pub(crate) async fn what_the_server_keeps_otherwise_than_it_was_sent_is_sent_once(scene: Scene) -> Result<()> {
    let plugins = [Plugin::myapple()?.confined_to("nowhere"), Plugin::guest("deploying")?];
    let mut host = scene.with(&plugins)?.host().await?;
    let gala = scene.apple("gala");
    gala.create(2).await?.status_is("2", |status| status["available"] == 2).await?;
    let deployments: Api<Deployment> = Api::namespaced(scene.client(), &scene.namespace);
    let replicas = async || -> Result<Option<i32>> {
        let deployment = deployments.get("gala-juice").await?;
        let spec = deployment.spec.context("it has no spec")?;
        let container = spec.template.spec.and_then(|pod| pod.containers.into_iter().next()).context("no container")?;
        let reference = container.env.and_then(|mut env| env.pop()?.value_from?.field_ref).context("no reference")?;
        ensure!(reference.api_version.is_some(), "the server has added nothing");
        Ok(spec.replicas)
    };
    ensure!(replicas().await? == Some(2));

    let (applied, skipped) = (applies(&mut host, "success").await?, applies(&mut host, "skipped").await?);
    let rounds = 5;
    for round in 1..=rounds {
        let reconciled = reconciles(&mut host).await?;
        // As the Deployment's own controller writes one at each step of a rollout.
        let status = json!({"status": {"observedGeneration": round}});
        deployments.patch_status("gala-juice", &PatchParams::default(), &Patch::Merge(status)).await?;
        eventually("its owner is reconciled once more", async || {
            ensure!(reconciles(&mut host).await? > reconciled, "not yet");
            idle(&mut host).await
        })
        .await?;
    }
    let applied = applies(&mut host, "success").await? - applied;
    ensure!(applied == 0.0, "{applied} applies in {rounds} reconciles");
    let skipped = applies(&mut host, "skipped").await? - skipped;
    ensure!(skipped >= 2.0 * f64::from(rounds), "{skipped} applies were left out");

    // What somebody changes is set back all the same.
    let less = json!({"spec": {"replicas": 1}});
    deployments.patch("gala-juice", &PatchParams::default(), &Patch::Merge(less)).await?;
    eventually("there are two again", async || {
        let replicas = replicas().await?;
        ensure!(replicas == Some(2), "there are {replicas:?}");
        Ok(())
    })
    .await
}

async fn applies(host: &mut Host, result: &str) -> Result<f64> {
    let labels = [("plugin", "deploying"), ("verb", "apply"), ("result", result)];
    Ok(host.metrics().await?.sum("pilothouse_writes_total", &labels))
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
