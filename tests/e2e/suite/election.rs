//! Several hosts on one cluster, of which one acts.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use pilothouse_e2e::{Host, Plugin, Scene, eventually};
use serde_json::json;

/// A Lease whose time does not pass within a test.
const PATIENT: [u32; 3] = [600, 500, 2];
/// A Lease that another host takes after four seconds.
const QUICK: [u32; 3] = [4, 3, 1];

pub(crate) async fn a_standby_is_warm_and_takes_over_when_the_active_host_ends(mut scene: Scene) -> Result<()> {
    let namespace = scene.namespace.clone();
    scene.elect(&namespace, PATIENT);
    let mut first = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;
    let mut second = scene.host().await?;
    let (_, detail) = second.get("/readyz?verbose").await?;
    ensure!(detail.contains("[+]leader election ok: standby: ") && detail.contains("[+]plugin myapple ok"), "{detail}");
    let owners = second.plugins().await?;
    ensure!(owners[0]["owner"].as_str().is_some_and(|owner| owner.contains('_')), "{owners:?}");
    let (_, detail) = first.get("/readyz?verbose").await?;
    ensure!(detail.contains("[+]leader election ok: this host acts"), "{detail}");
    gala.scale(5).await?;
    gala.settles().await?;
    ensure!(is_active(&mut first).await? && !is_active(&mut second).await?, "one of them acts");
    ensure!(reconciles(&mut second).await? == 0.0, "the standby has reconciled");

    first.terminate().await?;
    gala.scale(2).await?;
    gala.settles().await?;
    ensure!(is_active(&mut second).await?, "the second acts");
    let leases: Api<Lease> = Api::namespaced(scene.client(), &scene.namespace);
    let spec = leases.get("pilothouse").await?.spec.context("it has a spec")?;
    ensure!(spec.lease_transitions == Some(1), "{spec:?}");
    second.terminate().await?;
    let spec = leases.get("pilothouse").await?.spec.context("it has a spec")?;
    ensure!(spec.holder_identity.as_deref() == Some(""), "the Lease was not released: {spec:?}");
    Ok(())
}

pub(crate) async fn a_standby_takes_over_when_the_active_host_is_gone(mut scene: Scene) -> Result<()> {
    let namespace = scene.namespace.clone();
    scene.elect(&namespace, QUICK);
    let mut first = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;
    let mut second = scene.host().await?;
    first.crash();
    gala.edit_child(0, json!({"color": "rotten"})).await?;
    gala.scale(4).await?;
    gala.settles().await?;
    ensure!(is_active(&mut second).await?, "the second acts");
    Ok(())
}

pub(crate) async fn a_host_that_was_stopped_writes_nothing_when_it_goes_on(mut scene: Scene) -> Result<()> {
    let namespace = scene.namespace.clone();
    scene.elect(&namespace, QUICK);
    let mut first = scene.with(&[Plugin::myapple()?])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(3).await?.settles().await?;
    let mut second = scene.host().await?;
    let before = writes(&mut first).await?;
    first.suspend();
    // It sees all of this when it goes on.
    gala.edit_child(0, json!({"color": "rotten"})).await?;
    gala.scale(4).await?;
    gala.settles().await?;
    ensure!(is_active(&mut second).await?, "the second acts");
    first.resume();
    eventually("the first stands by", async || {
        let (_, detail) = first.get("/readyz?verbose").await?;
        ensure!(detail.contains("[+]leader election ok: standby: "), "{detail}");
        Ok(())
    })
    .await?;
    // It has seen the last change, and left it alone.
    gala.scale(6).await?;
    gala.settles().await?;
    scene.is_cached(&mut first).await?;
    let after = writes(&mut first).await?;
    ensure!(after == before, "it sent {} writes more", after - before);

    second.crash();
    gala.scale(1).await?;
    gala.settles().await?;
    ensure!(is_active(&mut first).await?, "the first acts again");
    Ok(())
}

pub(crate) async fn a_host_that_may_not_take_the_lease_says_so_and_what_to_do(mut scene: Scene) -> Result<()> {
    let missing = format!("{}-none", scene.namespace);
    scene.elect(&missing, PATIENT);
    let mut host = scene.with(&[Plugin::myapple()?])?.starting_host()?;
    host.warns(&["cannot take or renew the Lease", "not found", "--leader-elect=false"]).await?;
    let (code, detail) = host.get("/readyz?verbose").await?;
    ensure!(code == 503, "it cannot act, and is ready: {detail}");
    ensure!(detail.contains("[-]leader election failed: the Lease"), "{detail}");
    Ok(())
}

async fn is_active(host: &mut Host) -> Result<bool> {
    Ok(host.metrics().await?.sum("leader_election_master_status", &[("name", "pilothouse")]) > 0.0)
}

async fn reconciles(host: &mut Host) -> Result<f64> {
    Ok(host.metrics().await?.sum("controller_runtime_reconcile_total", &[]))
}

/// Writes that were sent for plugins.
async fn writes(host: &mut Host) -> Result<f64> {
    Ok(host.metrics().await?.sum_where("pilothouse_writes_total", |label| label("result") != "skipped"))
}
