//! The server's data is restored from a backup while a host watches.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use pilothouse_e2e::{Plugin, Scene, cluster::Kind, eventually, suite::NotHere, wait::within};
use pilothouse_real::Versions;
use serde_json::{from_value, json};

/// Number of versions that the restore loses. A starting server writes by itself, leases for example. If it passes the
/// host's version before the host looks, nothing seems to have gone back.
const LOST: usize = 500;

/// kube-controller-manager's garbage collector looks for kinds every 30 s, and starts again after a restore.
const COLLECTED: Duration = Duration::from_secs(120);

pub(crate) async fn invariant_4_a_server_whose_versions_went_back_is_followed(scene: Scene) -> Result<()> {
    is_followed(&scene, Versions::Back, "went_back").await
}

pub(crate) async fn invariant_4_a_server_whose_versions_were_raised_is_followed(scene: Scene) -> Result<()> {
    if scene.cluster.kind() == Kind::Embedded {
        return Err(NotHere("the embedded API server has no versions to raise").into());
    }
    is_followed(&scene, Versions::Raised, "expired").await
}

async fn is_followed(scene: &Scene, versions: Versions, reason: &str) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let [painted, scaled, deleted, late] = ["painted", "scaled", "deleted", "late"].map(|name| scene.apple(name));
    for apple in [&painted, &scaled, &deleted] {
        apple.create(2).await?.settles().await?;
    }

    scene.cluster.save().await?;
    pass_versions(scene).await?;
    painted.set(json!({"color": "red"})).await?;
    scaled.scale(4).await?;
    deleted.delete().await?;
    late.create(3).await?;
    for apple in [&painted, &scaled, &late] {
        apple.settles().await?;
    }
    scene.is_cached(&mut host).await?;

    scene.cluster.restore(versions).await?;
    // A host that still believed it to be red would not repair a red child.
    painted.edit_child(0, json!({"color": "red"})).await?;
    for apple in [&painted, &scaled, &deleted] {
        apple.settles().await?;
    }
    ensure!(late.get().await.is_err(), "the server has what was created after the copy");
    // The informer of ConfigMaps may recover before that of MyApples. Then children of a lost owner come back for a
    // while.
    within(COLLECTED, "what was created after the copy has no children", async || {
        let left = late.maps.list(&ListParams::default()).await?;
        let left: Vec<_> = left.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("late-")).collect();
        ensure!(left.is_empty(), "{left:?} are left");
        Ok(())
    })
    .await?;
    eventually("both kinds were listed anew", async || {
        let metrics = host.metrics().await?;
        for kind in ["MyApple", "ConfigMap"] {
            let relists = metrics.sum("pilothouse_informer_relists_total", &[("kind", kind), ("reason", reason)]);
            ensure!(relists >= 1.0, "no relist of {kind} because of {reason}: {:?}", host.informers().await?);
        }
        Ok(())
    })
    .await?;
    scene.is_cached(&mut host).await?;

    // The host sees deletions and creations as well.
    deleted.scale(1).await?;
    let new = scene.apple("new");
    new.create(1).await?.settles().await?;
    deleted.settles().await?;
    host.ready().await
}

/// Makes changes that concern no plugin.
async fn pass_versions(scene: &Scene) -> Result<()> {
    let maps = scene.config_maps();
    let map: ConfigMap = from_value(json!({"metadata": {"name": "counter"}})).context("it is a ConfigMap")?;
    maps.create(&PostParams::default(), &map).await.context("cannot create a ConfigMap")?;
    for count in 0..LOST {
        let patch = Patch::Merge(json!({"data": {"count": count.to_string()}}));
        maps.patch("counter", &PatchParams::default(), &patch).await.context("cannot change the ConfigMap")?;
    }
    Ok(())
}
