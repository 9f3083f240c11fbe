//! From an event on the wire to the reconcile that it causes, while nobody has anything else to do.

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

/// One after another.
const CHANGES: usize = 500;

/// What others make controllers with: ours is to be no slower.
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

/// The same while the cores stay awake.
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

/// Microseconds from just before an event of a ConfigMap of 4 kB is written to the host's connection until the plugin's own function is
/// entered, in a fresh instance and with the object parsed: the median and the 99th percentile. The median until the plugin's `reconcile` is
/// entered, with the object's text; the median of a thread that does nothing but read the same events; and the difference of these two,
/// which is from when the event is read until the reconcile is entered.
///
/// The end is read off the plugin's log, in whole microseconds; what it takes a guest to log is in it.
pub(super) fn measure() -> Result<Vec<f64>> {
    let [median, most] = measure_host(Says::Typed)?;
    let [entered, _] = measure_host(Says::Entered)?;
    let read = measure_reader()?;
    Ok(vec![median, most, entered, read, entered - read])
}

/// The same while the cores stay awake. Where nothing else runs on a machine, a core sleeps between two changes, and each thread that is
/// woken, the one that reads and the one that calls, waits until it is up: how much of `latency` that is. The budgets are for an idle host, and
/// stand there.
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

/// The same until the function that it was given is entered, with a typed object.
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
