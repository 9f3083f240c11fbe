//! Several hosts that share the plugins.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt, api::ListParams};
use pilothouse_e2e::{Host, Plugin, Scene, apple::Apple, eventually};
use serde_json::{Value, json};

/// Leases whose time does not pass within a test.
const PATIENT: [u32; 3] = [600, 500, 2];
/// Leases that others remove after four seconds.
const QUICK: [u32; 3] = [4, 3, 1];

/// The plugins that hosts share, each with a MyApple of its own.
struct Orchard {
    /// By plugin.
    apples: BTreeMap<String, Apple>,
}

impl Orchard {
    /// Puts this many plugins into the folder, each confined to a namespace of its own.
    async fn plant(scene: &Scene, count: usize) -> Result<Self> {
        let mut apples = BTreeMap::new();
        for number in 0..count {
            let (plugin, namespace) = (format!("tree-{number}"), format!("{}-{number}", scene.namespace));
            scene.create_namespace(&namespace).await?;
            let tree = Plugin::myapple()?.named(&plugin).confined_to(&namespace);
            scene.with(&[tree])?;
            apples.insert(plugin, scene.apple_in(&namespace, "gala"));
        }
        Ok(Self { apples })
    }

    async fn create(&self, quantity: u32) -> Result<()> {
        for apple in self.apples.values() {
            apple.create(quantity).await?;
        }
        self.settles().await
    }

    async fn scale(&self, quantity: u32) -> Result<()> {
        for apple in self.apples.values() {
            apple.scale(quantity).await?;
        }
        self.settles().await
    }

    async fn settles(&self) -> Result<()> {
        for apple in self.apples.values() {
            apple.settles().await?;
        }
        Ok(())
    }

    /// Waits until each plugin has one host that acts for it, all hosts say so, and each of them has one at least.
    async fn is_shared(&self, hosts: &mut [&mut Host]) -> Result<()> {
        eventually("the plugins are shared", async || {
            let mut acting = BTreeMap::<String, usize>::new();
            let mut shown = BTreeSet::new();
            for host in &mut *hosts {
                let its = acts_for(host).await?;
                ensure!(!its.is_empty(), "{} acts for nothing", host.id());
                its.into_iter().for_each(|plugin| *acting.entry(plugin).or_default() += 1);
                shown.insert(owners(host).await?);
            }
            let one_each = self.apples.keys().map(|plugin| (plugin.clone(), 1)).collect();
            ensure!(acting == one_each, "hosts that act, by plugin: {acting:?}");
            ensure!(shown.len() == 1, "hosts say different things: {shown:?}");
            let owners: BTreeSet<_> = shown.iter().flatten().map(|(_, owner)| owner).collect();
            ensure!(owners.len() == hosts.len(), "{shown:?}");
            Ok(())
        })
        .await
    }
}

/// Returns the plugins for which a host acts.
async fn acts_for(host: &mut Host) -> Result<Vec<String>> {
    let metrics = host.metrics().await?;
    let name = "pilothouse_plugin_acting";
    let plugins = metrics.values(name, "plugin").into_iter();
    Ok(plugins.filter(|plugin| metrics.sum(name, &[("plugin", plugin)]) > 0.0).collect())
}

/// Returns the owner of each plugin, as `/debug/plugins` has it. Fails while one moves.
async fn owners(host: &mut Host) -> Result<Vec<(String, String)>> {
    let plugins = host.plugins().await?;
    let owner = |row: &Value| {
        ensure!(row["moving_to"].is_null(), "it moves: {row}");
        let text = |member: &str| row[member].as_str().map(str::to_owned);
        text("plugin").zip(text("owner")).with_context(|| format!("it has no owner: {row}"))
    };
    plugins.iter().map(owner).collect()
}

/// Reconciles of a host, by plugin.
async fn reconciles(host: &mut Host, plugin: &str) -> Result<f64> {
    let is_its = |of: &str| of.split('/').next() == Some(plugin);
    Ok(host.metrics().await?.sum_where("controller_runtime_reconcile_total", |label| is_its(&label("controller"))))
}

/// Writes that were sent for plugins.
async fn writes(host: &mut Host) -> Result<f64> {
    Ok(host.metrics().await?.sum_where("pilothouse_writes_total", |label| label("result") != "skipped"))
}

pub(crate) async fn hosts_share_plugins_and_one_that_joins_gets_some(mut scene: Scene) -> Result<()> {
    let namespace = scene.namespace.clone();
    scene.spread(&namespace, PATIENT);
    let orchard = Orchard::plant(&scene, 5).await?;
    let mut first = scene.host().await?;
    orchard.create(2).await?;
    let mut second = scene.host().await?;
    orchard.is_shared(&mut [&mut first, &mut second]).await?;
    let mut third = scene.host().await?;
    orchard.is_shared(&mut [&mut first, &mut second, &mut third]).await?;
    let (_, detail) = third.get("/readyz?verbose").await?;
    ensure!(detail.contains("[+]spread ok: this host is ") && detail.contains("one of 3"), "{detail}");

    // Each is reconciled by its owner alone.
    let mut before = Vec::new();
    for host in [&mut first, &mut second, &mut third] {
        let its = acts_for(host).await?;
        for plugin in orchard.apples.keys().filter(|plugin| !its.contains(plugin)) {
            before.push((host.id(), plugin.clone(), reconciles(host, plugin).await?));
        }
    }
    orchard.scale(4).await?;
    let mut after = Vec::new();
    for (id, plugin, _) in &before {
        let hosts = [&mut first, &mut second, &mut third].into_iter();
        let host = hosts.into_iter().find(|host| host.id() == *id).context("it is one of them")?;
        after.push((*id, plugin.clone(), reconciles(host, plugin).await?));
    }
    ensure!(before == after, "a host that does not own a plugin has reconciled: {before:?}, {after:?}");

    first.terminate().await?;
    orchard.is_shared(&mut [&mut second, &mut third]).await?;
    orchard.scale(1).await?;
    let leases: Api<Lease> = Api::namespaced(scene.client(), &scene.namespace);
    let names = || async {
        let leases = leases.list(&ListParams::default()).await?;
        anyhow::Ok(leases.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>())
    };
    ensure!(names().await?.len() == 3, "two hosts and the table: {:?}", names().await?);
    second.terminate().await?;
    third.terminate().await?;
    ensure!(names().await? == ["pilothouse"], "{:?}", names().await?);
    let spec = leases.get("pilothouse").await?.spec.context("it has a spec")?;
    ensure!(spec.holder_identity.as_deref() == Some(""), "the table was not given up: {spec:?}");
    Ok(())
}

pub(crate) async fn plugins_of_a_killed_host_are_others_when_its_lease_has_expired(mut scene: Scene) -> Result<()> {
    let namespace = scene.namespace.clone();
    scene.spread(&namespace, QUICK);
    let orchard = Orchard::plant(&scene, 3).await?;
    let (mut first, mut second) = (scene.host().await?, scene.host().await?);
    orchard.create(2).await?;
    orchard.is_shared(&mut [&mut first, &mut second]).await?;
    first.crash();
    for apple in orchard.apples.values() {
        apple.edit_child(0, json!({"color": "rotten"})).await?;
    }
    orchard.scale(3).await?;
    orchard.is_shared(&mut [&mut second]).await
}

pub(crate) async fn a_stopped_host_writes_nothing_for_plugins_that_are_others_meanwhile(
    mut scene: Scene,
) -> Result<()> {
    let namespace = scene.namespace.clone();
    scene.spread(&namespace, QUICK);
    let orchard = Orchard::plant(&scene, 3).await?;
    let (mut first, mut second) = (scene.host().await?, scene.host().await?);
    orchard.create(2).await?;
    orchard.is_shared(&mut [&mut first, &mut second]).await?;
    let before = writes(&mut first).await?;
    first.suspend();
    for apple in orchard.apples.values() {
        apple.edit_child(0, json!({"color": "rotten"})).await?;
    }
    orchard.scale(4).await?;
    orchard.is_shared(&mut [&mut second]).await?;
    first.resume();
    // It has lost its Lease, joins again, and gets some back. There is nothing left to write then.
    first.logs(&["this host has lost its Lease"]).await?;
    orchard.is_shared(&mut [&mut first, &mut second]).await?;
    orchard.settles().await?;
    let after = writes(&mut first).await?;
    ensure!(after == before, "it sent {} writes more", after - before);
    orchard.scale(1).await
}

pub(crate) async fn hosts_that_share_and_hosts_that_elect_one_do_not_act_at_once(mut scene: Scene) -> Result<()> {
    let namespace = scene.namespace.clone();
    scene.elect(&namespace, PATIENT);
    let orchard = Orchard::plant(&scene, 3).await?;
    let mut leader = scene.host().await?;
    orchard.create(2).await?;
    scene.spread(&namespace, PATIENT);
    let mut sharer = scene.host().await?;
    let (_, detail) = sharer.get("/readyz?verbose").await?;
    ensure!(detail.contains("[+]spread ok: standby: "), "{detail}");
    ensure!(acts_for(&mut sharer).await?.is_empty() && acts_for(&mut leader).await?.len() == 3, "the leader acts");
    leader.terminate().await?;
    orchard.scale(3).await?;
    orchard.is_shared(&mut [&mut sharer]).await?;

    scene.elect(&namespace, PATIENT);
    let mut leader = scene.host().await?;
    let (_, detail) = leader.get("/readyz?verbose").await?;
    ensure!(detail.contains("[+]leader election ok: standby: (spread) holds the Lease"), "{detail}");
    sharer.terminate().await?;
    orchard.scale(1).await?;
    ensure!(acts_for(&mut leader).await?.len() == 3, "the leader acts");
    Ok(())
}
