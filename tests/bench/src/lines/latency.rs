//! Latency from an event on the wire to the reconcile that it causes, on an idle machine.

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

use super::Peer;
use crate::{
    awake::awake,
    controllers::{
        Called, PAUSE, Program, Stage,
        host::{self, Says},
        kube_runtime, reader,
    },
    peers::go,
    processes,
    statistics::percentile,
};

/// Number of changes, one after another.
const CHANGES: usize = 500;

/// Controllers of other libraries. Ours should not be slower.
pub(super) const PEERS: &[Peer] = &[
    Peer {
        name: "kube-runtime 5 Controller",
        prepare: || Ok(()),
        measure: measure_kube_runtime,
        allows: &[("latency", 1.0)],
    },
    Peer {
        name: "controller-runtime 0.25",
        prepare: go::build,
        measure: measure_controller_runtime,
        allows: &[("latency", 1.0)],
    },
];

/// The same controllers while the cores stay awake.
pub(super) const PEERS_AWAKE: &[Peer] = &[
    Peer {
        name: "kube-runtime 5 Controller",
        prepare: || Ok(()),
        measure: || awake(measure_kube_runtime),
        allows: &[("latency-awake", 1.0)],
    },
    Peer {
        name: "controller-runtime 0.25",
        prepare: go::build,
        measure: || awake(measure_controller_runtime),
        allows: &[("latency-awake", 1.0)],
    },
];

/// Latency of an event of a 4 kB ConfigMap, in microseconds from just before it is written to the host's connection:
///
/// - until the author's function is entered, in a fresh instance, with the object parsed: median and 99th percentile;
/// - until the plugin's `reconcile` is entered, with the object's text: median;
/// - until a thread that only reads the same events has it: median;
/// - the difference of the last two: from when the event is read until the reconcile is entered.
///
/// The end is the time in the plugin's log, in whole microseconds. It includes the guest's call to log.
pub(super) fn measure() -> Result<Vec<f64>> {
    let [median, most] = measure_host(Says::Typed)?;
    let [entered, _] = measure_host(Says::Entered)?;
    let read = measure_reader()?;
    Ok(vec![median, most, entered, read, entered - read])
}

/// The same while the cores stay awake.
///
/// On an idle machine cores sleep between two changes. Each thread that is woken, the reader and the caller, waits
/// until its core is up. The difference to `latency` is that wait. The budgets are for an idle host, so `latency` has
/// them.
pub(super) fn measure_awake() -> Result<Vec<f64>> {
    awake(measure)
}

fn measure_reader() -> Result<f64> {
    let [median, _] = measure_program(reader::NAME, || processes::command(reader::NAME))?;
    Ok(median)
}

fn measure_host(says: Says) -> Result<[f64; 2]> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let stage = Stage::set().await?;
        let mut host = host::Host::start(&stage, says, &[])?;
        host.serves(1).await?;
        percentiles(stage, host).await
    })
}

/// The same until its reconcile function is entered, with a typed object.
fn measure_kube_runtime() -> Result<Vec<f64>> {
    measure_program(kube_runtime::NAME, || processes::command(kube_runtime::NAME)).map(Vec::from)
}

/// The same until `Reconcile` is entered, with a key.
fn measure_controller_runtime() -> Result<Vec<f64>> {
    measure_program("controller-runtime", || go::command("controller", &[])).map(Vec::from)
}

fn measure_program(name: &str, command: impl FnOnce() -> Result<tokio::process::Command>) -> Result<[f64; 2]> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let stage = Stage::set().await?;
        let program = Program::start(name, command()?, &stage.wire.url()).await?;
        percentiles(stage, program).await
    })
}

async fn percentiles(mut stage: Stage, mut controller: impl Called) -> Result<[f64; 2]> {
    stage.settles(&mut controller).await?;
    let latencies = stage.latencies(&mut controller, CHANGES, PAUSE).await?;
    let at = |percent| percentile(&latencies, percent).context("nothing was measured");
    Ok([at(50.0)?, at(99.0)?])
}
