//! The acting one of several hosts ends, is killed, stopped and cut off, while objects change. `make failover` does the same fifty times.

use anyhow::{Result, ensure};
use pilothouse_e2e::{
    Scene,
    cluster::Kind,
    failover::{Order, judge::Fault, run, update},
    suite::NotHere,
};

const NO_LOG: &str = "the embedded API server has no audit log";

pub(crate) async fn an_acting_host_that_is_struck_is_followed_by_one_other_and_nothing_is_lost(
    mut scene: Scene,
) -> Result<()> {
    if scene.cluster.kind() == Kind::Embedded {
        return Err(NotHere(NO_LOG).into());
    }
    let order = Order { rounds: 5, seed: 35, replicas: None, election: Some([6, 4, 1]), objects: 40, rate: 100 };
    let report = run(&mut scene, &order, |_| {}).await?;
    ensure!(report.wrong.is_empty(), "{}", report.table());
    ensure!(report.judged.shared > 0, "no key was written by several hosts: {}", report.table());
    Ok(())
}

pub(crate) async fn without_leader_election_two_hosts_are_found_at_one_key(mut scene: Scene) -> Result<()> {
    if scene.cluster.kind() == Kind::Embedded {
        return Err(NotHere(NO_LOG).into());
    }
    let order = Order { rounds: 0, seed: 35, replicas: Some(2), election: None, objects: 40, rate: 100 };
    let report = run(&mut scene, &order, |_| {}).await?;
    let overlaps = report.faults.iter().filter(|fault| matches!(fault, Fault::Overlap { .. })).count();
    ensure!(overlaps > 0, "the judge finds nothing: {}", report.table());
    Ok(())
}

pub(crate) async fn a_rolling_update_of_hosts_that_share_plugins_moves_each_twice_at_most_and_loses_nothing(
    mut scene: Scene,
) -> Result<()> {
    if scene.cluster.kind() == Kind::Embedded {
        return Err(NotHere(NO_LOG).into());
    }
    let updated = update::run(&mut scene, [6, 4, 1], 100, 35).await?;
    ensure!(updated.wrong.is_empty(), "{updated:#?}");
    ensure!(updated.moves.values().any(|moves| *moves > 0), "no plugin has moved: {updated:#?}");
    ensure!(updated.judged.shared > 0, "no key was written by several hosts: {updated:#?}");
    Ok(())
}
