//! A thousand plugins at once.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{ResourceExt, api::ListParams};
use pilothouse_e2e::{Apple, Plugin, Scene, wait::within};

const COUNT: usize = 1_000;
const EACH: u32 = 3;

pub(crate) async fn a_thousand_myapples_converge(scene: Scene) -> Result<()> {
    let mut host = scene.with(&[Plugin::myapple()?])?.host().await?;
    let start = Instant::now();
    let apples: Vec<Apple> = (0..COUNT).map(|index| scene.apple(&format!("apple-{index}"))).collect();
    stream::iter(&apples).map(Ok).try_for_each_concurrent(10, async |apple| apple.create(EACH).await.map(drop)).await?;
    let created = start.elapsed();

    let all = &apples[0].apples;
    within(Duration::from_secs(450), "every MyApple has its status", async || {
        let apples = all.list(&ListParams::default()).await?;
        let done = apples.iter().filter(|apple| apple.data["status"]["available"] == EACH).count();
        ensure!(done == COUNT, "{done} of {COUNT}");
        Ok(())
    })
    .await?;
    let converged = start.elapsed();

    let maps = scene.config_maps().list(&ListParams::default()).await?;
    let found: BTreeSet<String> =
        maps.iter().filter(|map| map.metadata.owner_references.is_some()).map(ResourceExt::name_any).collect();
    let wanted: BTreeSet<String> = apples.iter().flat_map(|apple| (0..EACH).map(|index| apple.child(index))).collect();
    ensure!(found == wanted, "{} children, {} wanted", found.len(), wanted.len());

    let resident = host.metrics().await?.sum("process_resident_memory_bytes", &[]) / f64::from(1 << 20);
    println!(
        "1,000 MyApples of 3 on the {:?} server: created in {:.1} s, converged in {:.1} s; the host's memory: {resident:.0} MiB",
        scene.cluster.kind(),
        created.as_secs_f64(),
        converged.as_secs_f64(),
    );
    Ok(())
}
