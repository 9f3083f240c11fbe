//! A whole cache at work, as a process sees it: ours, and those of the libraries that controllers are written with today.

use anyhow::Result;

use super::Peer;
use crate::keepers::{client_go, host, kube_runtime, measure as measure_keeper};
use crate::processes;

/// What others keep the same pods with. The design's budgets are shares of client-go's bytes.
pub(super) const PEERS: &[Peer] = &[
    Peer {
        name: "client-go typed",
        prepare: client_go::build,
        measure: || measure_keeper("client-go typed", client_go::typed()?),
        share: Some(1.0 / 3.0),
    },
    Peer {
        name: "client-go dynamic",
        prepare: client_go::build,
        measure: || measure_keeper("client-go dynamic", client_go::dynamic()?),
        share: Some(1.0 / 6.0),
    },
    Peer {
        name: "kube-runtime typed",
        prepare: || Ok(()),
        measure: || measure_keeper("kube-runtime typed", processes::command(kube_runtime::TYPED)?),
        share: None,
    },
    Peer {
        name: "kube-runtime dynamic",
        prepare: || Ok(()),
        measure: || measure_keeper("kube-runtime dynamic", processes::command(kube_runtime::DYNAMIC)?),
        share: None,
    },
];

pub(super) fn measure() -> Result<Vec<f64>> {
    measure_keeper("pilothouse", processes::command(host::NAME)?)
}
