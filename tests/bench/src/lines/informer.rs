//! A whole cache at work, as its process sees it: ours and those of today's controller libraries.

use anyhow::Result;

use super::Peer;
use crate::{
    keepers::{host, kube_runtime, measure as measure_keeper},
    peers::go,
    processes,
};

/// Peers that keep the same pods. The design's budgets are shares of client-go's bytes.
pub(super) const PEERS: &[Peer] = &[
    Peer {
        name: "client-go typed",
        prepare: go::build,
        measure: || measure_keeper("client-go typed", go::command("keeper", &["typed"])?),
        allows: &[("cache-settled", 1.0 / 3.0)],
    },
    Peer {
        name: "client-go dynamic",
        prepare: go::build,
        measure: || measure_keeper("client-go dynamic", go::command("keeper", &["dynamic"])?),
        allows: &[("cache-settled", 1.0 / 6.0)],
    },
    Peer {
        name: "kube-runtime typed",
        prepare: || Ok(()),
        measure: || measure_keeper("kube-runtime typed", processes::command(kube_runtime::TYPED)?),
        allows: &[],
    },
    Peer {
        name: "kube-runtime dynamic",
        prepare: || Ok(()),
        measure: || measure_keeper("kube-runtime dynamic", processes::command(kube_runtime::DYNAMIC)?),
        allows: &[],
    },
];

pub(super) fn measure() -> Result<Vec<f64>> {
    measure_keeper("pilothouse", processes::command(host::NAME)?)
}
