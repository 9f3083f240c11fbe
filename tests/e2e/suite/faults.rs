//! The host's informers on a bad day: the short form of `make soak`.

use std::time::Duration;

use anyhow::{Result, ensure};
use pilothouse_e2e::soak::{Order, run};
use pilothouse_e2e::{Cluster, Scene, cluster::Kind, suite::NotHere};

pub(crate) async fn informers_are_right_after_every_fault(scene: Scene) -> Result<()> {
    let cluster: &Cluster = &scene.cluster;
    if cluster.kind() == Kind::Real {
        return Err(NotHere("faults are of the embedded server").into());
    }
    // Any seed will do: one brings about half of the faults.
    let order = Order { lasts: Duration::from_secs(5), seed: 1, rate: 60, folder: scene.folder().to_owned() };
    let report = run(&order, |_| {}).await?;
    ensure!(report.wrong.is_empty(), "{}", report.table());
    Ok(())
}
