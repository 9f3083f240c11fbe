//! The lines of the report, one module each.
//!
//! A line is a function that measures its figures once. Each round calls it in a new process. Its messages go to
//! standard error.

mod admission;
mod apples;
mod cache;
mod calls;
mod compile;
mod compression;
mod converge;
mod diff;
mod drift;
pub(crate) mod event;
mod filters;
mod hostile;
mod informer;
mod latency;
mod object_bytes;
mod operator;
mod plugins;
mod queue;
mod readers;
mod reads;
mod relist_peak;
mod reload;
mod ring;
mod scene;
mod threads;
mod wake;

use anyhow::Result;

pub(crate) use self::cache::watch_line;
use crate::{
    peers::kube_runtime,
    report::Budget::{self, AtLeast, AtMost},
    toolchains::{JAVASCRIPT, PYTHON},
};

/// Measures each figure of a line once, in the order of [`Line::figures`]. A peer may measure only the first ones.
pub type Measure = fn() -> Result<Vec<f64>>;

/// One line of the report.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Its name in `make bench LINE=…`.
    pub name: &'static str,
    /// Its figures.
    pub figures: &'static [Figure],
    /// Number of rounds, each in its own process.
    pub rounds: usize,
    /// Prepares what it needs, once before its rounds. An error says why it cannot be measured here.
    pub prepare: fn() -> Result<()>,
    /// Measures the figures once.
    pub measure: Measure,
    /// Other programs that do the same.
    pub peers: &'static [Peer],
}

/// One figure of a line.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name in the report.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Its budget.
    pub budget: Option<Budget>,
}

/// Another program that does the same.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its name.
    pub name: &'static str,
    /// Prepares what it needs, once before its rounds. An error says why it cannot be measured here.
    pub prepare: fn() -> Result<()>,
    /// Measures its figures on the same objects.
    pub measure: Measure,
    /// Budgets of our figures as multiples of this peer's, in addition to their own.
    pub allows: &'static [(&'static str, f64)],
}

const fn figure(name: &'static str, unit: &'static str, budget: Option<Budget>) -> Figure {
    Figure { name, unit, budget }
}

/// A peer that is linked into this program.
const fn typed(measure: Measure) -> Peer {
    Peer { name: kube_runtime::NAME, prepare: nothing, measure, allows: &[] }
}

/// A line without preparation.
fn nothing() -> Result<()> {
    Ok(())
}

/// Unit and budget of the 99th percentile beside misbehaving plugins.
const QUIET: &str = "× quiet p99";
const TWICE: Option<Budget> = Some(AtMost(2.0));

/// Every line, in the order of the report.
pub const ALL: [Line; 34] = [
    Line {
        name: "queue",
        figures: &[figure("queue", "µs", Some(AtMost(0.3)))],
        rounds: 5,
        prepare: nothing,
        measure: queue::measure,
        peers: queue::PEERS,
    },
    Line {
        name: "event",
        figures: &[figure("event", "events/s", Some(AtLeast(100_000.0)))],
        rounds: 5,
        prepare: nothing,
        measure: event::measure,
        peers: &[typed(kube_runtime::event)],
    },
    Line {
        name: "object-bytes",
        figures: &[
            figure("object-bytes", "× stripped", Some(AtMost(1.15))),
            figure("object-bytes-counted", "× stripped", Some(AtMost(1.15))),
        ],
        rounds: 3,
        prepare: nothing,
        measure: object_bytes::measure,
        peers: &[typed(kube_runtime::object_bytes)],
    },
    Line {
        name: "relist-peak",
        figures: &[
            figure("relist-peak", "× settled", Some(AtMost(1.2))),
            figure("relist-peak-changed", "× settled", Some(AtMost(1.2))),
        ],
        rounds: 3,
        prepare: nothing,
        measure: relist_peak::measure,
        peers: &[typed(kube_runtime::relist_peak)],
    },
    Line {
        name: "cache",
        figures: &[
            figure("cache-settled", "B/object", None),
            figure("cache-over-json", "× stripped", Some(AtMost(1.15))),
            figure("cache-fill-peak", "B/object", None),
            figure("cache-relist-peak", "× settled", Some(AtMost(1.2))),
            figure("cache-events", "events/s", Some(AtLeast(100_000.0))),
        ],
        rounds: 2,
        prepare: nothing,
        measure: informer::measure,
        peers: informer::PEERS,
    },
    Line {
        name: "readers",
        figures: &[
            figure("readers-write-p50", "µs", None),
            figure("readers-write-p99", "µs", None),
            figure("readers-write-worst", "µs", None),
            figure("readers-list", "objects/s", None),
        ],
        rounds: 3,
        prepare: nothing,
        measure: readers::measure,
        peers: &[],
    },
    Line {
        name: "reads",
        figures: &[
            figure("reads-own", "B/read", None),
            figure("reads-shared", "B/read", None),
            figure("reads-wake-all", "µs", None),
            figure("reads-wake-one", "µs", None),
        ],
        rounds: 3,
        prepare: nothing,
        measure: reads::measure,
        peers: &[],
    },
    Line {
        name: "compression",
        figures: &[
            figure("compression", "× smaller", None),
            figure("compression-alone", "× smaller", None),
            figure("compression-read", "µs", None),
            figure("compression-read-raw", "µs", None),
            figure("compression-object", "B", None),
            figure("compression-object-raw", "B", None),
        ],
        rounds: 3,
        prepare: nothing,
        measure: compression::measure,
        peers: &[],
    },
    Line {
        name: "diff",
        figures: &[figure("diff-configmap", "µs", None), figure("diff-deployment", "µs", None)],
        rounds: 5,
        prepare: nothing,
        measure: diff::measure,
        peers: &[],
    },
    Line {
        name: "filters",
        figures: &[figure("filters", "µs", None), figure("filters-extreme", "µs", None)],
        rounds: 5,
        prepare: nothing,
        measure: filters::measure,
        peers: &[],
    },
    Line {
        name: "empty-call",
        figures: &[
            figure("empty-call", "µs", Some(AtMost(0.5))),
            figure("empty-call-fresh", "µs", None),
            figure("empty-call-parsed", "µs", None),
        ],
        rounds: 5,
        prepare: nothing,
        measure: calls::empty,
        peers: &[calls::ENGINE],
    },
    Line {
        name: "reconcile",
        figures: &[
            figure("reconcile-1.5k", "µs", None),
            figure("reconcile-6k", "µs", Some(AtMost(40.0))),
            figure("reconcile-50k", "µs", None),
        ],
        rounds: 5,
        prepare: nothing,
        measure: calls::reconcile,
        peers: &[calls::NATIVE],
    },
    Line {
        name: "reuse",
        figures: &[
            figure("reused-1.5k", "µs", None),
            figure("reused-6k", "µs", None),
            figure("reused-50k", "µs", None),
            figure("reused-600", "µs", None),
            figure("fresh-1.5k", "µs", None),
            figure("fresh-6k", "µs", None),
            figure("fresh-50k", "µs", None),
            figure("fresh-600", "µs", None),
        ],
        rounds: 3,
        prepare: nothing,
        measure: calls::reuse,
        peers: &[calls::NATIVE],
    },
    Line {
        name: "threads",
        figures: &[
            figure("threads-1", "calls/s", None),
            figure("threads-2", "calls/s", None),
            figure("instances-1", "instances/s", None),
            figure("instances-2", "instances/s", None),
        ],
        rounds: 3,
        prepare: nothing,
        measure: threads::measure,
        peers: &[],
    },
    Line {
        name: "wake",
        figures: &[figure("wake", "ms", Some(AtMost(1.0))), figure("wake-p99", "ms", None)],
        rounds: 3,
        prepare: nothing,
        measure: wake::rust,
        peers: &[],
    },
    Line {
        name: "wake-javascript",
        figures: &[figure("wake-javascript", "ms", Some(AtMost(5.0))), figure("wake-javascript-p99", "ms", None)],
        rounds: 3,
        prepare: || JAVASCRIPT.build(),
        measure: wake::javascript,
        peers: &[],
    },
    Line {
        name: "wake-python",
        figures: &[figure("wake-python", "ms", Some(AtMost(5.0))), figure("wake-python-p99", "ms", None)],
        rounds: 3,
        prepare: || PYTHON.build(),
        measure: wake::python,
        peers: &[],
    },
    Line {
        name: "compile",
        figures: &[figure("compile", "ms", None), figure("compile-baseline", "ms", None)],
        rounds: 3,
        prepare: nothing,
        measure: compile::measure,
        peers: &[],
    },
    Line {
        name: "latency",
        figures: &[
            figure("latency", "µs", None),
            figure("latency-p99", "µs", Some(AtMost(2_000.0))),
            figure("latency-entered", "µs", None),
            figure("latency-wire", "µs", None),
            figure("latency-from-read", "µs", Some(AtMost(150.0))),
        ],
        rounds: 3,
        prepare: nothing,
        measure: latency::measure,
        peers: latency::PEERS,
    },
    Line {
        name: "latency-awake",
        figures: &[
            figure("latency-awake", "µs", None),
            figure("latency-awake-p99", "µs", None),
            figure("latency-awake-entered", "µs", None),
            figure("latency-awake-wire", "µs", None),
            figure("latency-awake-from-read", "µs", None),
        ],
        rounds: 3,
        prepare: nothing,
        measure: latency::measure_awake,
        peers: latency::PEERS_AWAKE,
    },
    Line {
        name: "crowd",
        figures: &[figure("crowd-added", "ms", None), figure("crowd-added-p99", "ms", Some(AtMost(3.0)))],
        rounds: 3,
        prepare: nothing,
        measure: hostile::crowd,
        peers: &[],
    },
    Line {
        name: "shares",
        figures: &[
            figure("shares-weight-300", "× weight 100", Some(AtLeast(2.8))),
            figure("shares-capped", "cores", Some(AtMost(0.26))),
        ],
        rounds: 3,
        prepare: nothing,
        measure: hostile::shares,
        peers: &[],
    },
    Line {
        name: "hostile-each",
        figures: &[
            figure("hostile-asking", QUIET, TWICE),
            figure("hostile-filling", QUIET, TWICE),
            figure("hostile-flooding", QUIET, TWICE),
            figure("hostile-flooding-requests", QUIET, TWICE),
            figure("hostile-flooding-writes", QUIET, TWICE),
            figure("hostile-garbling", QUIET, TWICE),
            figure("hostile-hoarding", QUIET, TWICE),
            figure("hostile-huge", QUIET, TWICE),
            figure("hostile-hungry", QUIET, TWICE),
            figure("hostile-judging", QUIET, TWICE),
            figure("hostile-looping", QUIET, TWICE),
            figure("hostile-mapping-badly", QUIET, TWICE),
            figure("hostile-naming", QUIET, TWICE),
            figure("hostile-nonsense", QUIET, TWICE),
            figure("hostile-observing-badly", QUIET, TWICE),
            figure("hostile-oversized", QUIET, TWICE),
            figure("hostile-recursing", QUIET, TWICE),
            figure("hostile-recursing-wide", QUIET, TWICE),
            figure("hostile-reentering", QUIET, TWICE),
            figure("hostile-selecting", QUIET, TWICE),
            figure("hostile-sprawling", QUIET, TWICE),
            figure("hostile-tabulating", QUIET, TWICE),
            figure("hostile-tracking", QUIET, TWICE),
            figure("hostile-trapping", QUIET, TWICE),
            figure("hostile-trespasser", QUIET, TWICE),
            figure("hostile-waiting", QUIET, TWICE),
        ],
        rounds: 3,
        prepare: nothing,
        measure: hostile::each,
        peers: &[],
    },
    Line {
        name: "hostile-loading",
        figures: &[
            figure("hostile-describe-loops-loading", QUIET, TWICE),
            figure("hostile-describe-oversized-loading", QUIET, TWICE),
            figure("hostile-describe-unexported-loading", QUIET, TWICE),
            figure("hostile-greedy-loading", QUIET, TWICE),
            figure("hostile-starting-loading", QUIET, TWICE),
            figure("hostile-trapping-loading", QUIET, TWICE),
            figure("hostile-crowded-loading", QUIET, TWICE),
            figure("hostile-thousand-loading", QUIET, TWICE),
            figure("hostile-hungry-loading", QUIET, TWICE),
            figure("hostile-tabular-loading", QUIET, TWICE),
            figure("hostile-tabling-loading", QUIET, TWICE),
            figure("hostile-roomy-loading", QUIET, TWICE),
            figure("hostile-named-loading", QUIET, TWICE),
        ],
        rounds: 3,
        prepare: nothing,
        measure: hostile::loading,
        peers: &[],
    },
    Line {
        name: "hostile-three",
        figures: &[
            figure("hostile-asking-three", QUIET, None),
            figure("hostile-filling-three", QUIET, None),
            figure("hostile-flooding-three", QUIET, None),
            figure("hostile-flooding-requests-three", QUIET, None),
            figure("hostile-flooding-writes-three", QUIET, None),
            figure("hostile-garbling-three", QUIET, None),
            figure("hostile-hoarding-three", QUIET, None),
            figure("hostile-huge-three", QUIET, None),
            figure("hostile-hungry-three", QUIET, None),
            figure("hostile-judging-three", QUIET, None),
            figure("hostile-looping-three", QUIET, None),
            figure("hostile-mapping-badly-three", QUIET, None),
            figure("hostile-naming-three", QUIET, None),
            figure("hostile-nonsense-three", QUIET, None),
            figure("hostile-observing-badly-three", QUIET, None),
            figure("hostile-oversized-three", QUIET, None),
            figure("hostile-recursing-three", QUIET, None),
            figure("hostile-recursing-wide-three", QUIET, None),
            figure("hostile-reentering-three", QUIET, None),
            figure("hostile-selecting-three", QUIET, None),
            figure("hostile-sprawling-three", QUIET, None),
            figure("hostile-tabulating-three", QUIET, None),
            figure("hostile-tracking-three", QUIET, None),
            figure("hostile-trapping-three", QUIET, None),
            figure("hostile-trespasser-three", QUIET, None),
            figure("hostile-waiting-three", QUIET, None),
        ],
        rounds: 1,
        prepare: nothing,
        measure: hostile::three,
        peers: &[],
    },
    Line {
        name: "hostile",
        figures: &[
            figure("hostile-lasting", QUIET, None),
            figure("hostile-failing", QUIET, None),
            figure("hostile-lasting-p50", "µs", None),
            figure("hostile-lasting-p99", "µs", None),
            figure("hostile-failing-p50", "µs", None),
            figure("hostile-failing-p99", "µs", None),
            figure("hostile-quiet-p50", "µs", None),
            figure("hostile-quiet-p99", "µs", None),
        ],
        rounds: 3,
        prepare: nothing,
        measure: hostile::together,
        peers: &[],
    },
    Line {
        name: "converge",
        figures: &[figure("converge", "s", None), figure("converge-memory", "MiB", None)],
        rounds: 3,
        prepare: nothing,
        measure: converge::measure,
        peers: &[],
    },
    Line {
        name: "drift",
        figures: &[figure("drift", "ms", Some(AtMost(5.0))), figure("drift-p99", "ms", None)],
        rounds: 3,
        prepare: nothing,
        measure: drift::measure,
        peers: &[],
    },
    Line {
        name: "reload",
        figures: &[figure("reload", "ms", Some(AtMost(300.0))), figure("reload-longest", "ms", None)],
        rounds: 3,
        prepare: nothing,
        measure: reload::measure,
        peers: &[],
    },
    Line {
        name: "ring",
        figures: &[figure("ring-hop", "ms", Some(AtMost(1.5))), figure("ring-memory", "MiB", Some(AtMost(40.0)))],
        rounds: 3,
        prepare: nothing,
        measure: ring::measure,
        peers: &[],
    },
    Line {
        name: "operator",
        figures: &[
            figure("operator-cpu", "ms/change", None),
            figure("operator-memory", "MiB", None),
            figure("operator-held", "MiB", None),
            figure("operator-latency", "ms", None),
            figure("operator-latency-p99", "ms", None),
            figure("operator-fill", "s", None),
        ],
        rounds: 3,
        prepare: operator::prepare,
        measure: operator::measure,
        peers: operator::PEERS,
    },
    Line {
        name: "admission",
        figures: &[
            figure("admission-p50", "ms", None),
            figure("admission-p99", "ms", None),
            figure("admission-cpu", "ms/review", None),
            figure("admission-memory", "MiB", None),
        ],
        rounds: 3,
        prepare: nothing,
        measure: admission::measure,
        peers: admission::PEERS,
    },
    Line {
        name: "plugins",
        figures: &[
            figure("plugins-1", "MiB", None),
            figure("plugins-100", "kB/plugin", Some(AtMost(100.0))),
            figure("plugins-1000", "kB/plugin", Some(AtMost(100.0))),
            figure("plugins-1000-all", "MiB", Some(AtMost(150.0))),
            figure("plugins-1000-resident", "MiB", None),
            figure("plugins-1000-first", "s", None),
            figure("plugins-1000-start", "s", None),
        ],
        rounds: 2,
        prepare: nothing,
        measure: plugins::same,
        peers: &[],
    },
    Line {
        name: "plugins-different",
        figures: &[
            figure("plugins-different-100", "kB/plugin", Some(AtMost(100.0))),
            figure("plugins-different-1000", "kB/plugin", Some(AtMost(100.0))),
            figure("plugins-different-1000-all", "MiB", Some(AtMost(150.0))),
            figure("plugins-different-1000-first", "s", None),
            figure("plugins-different-1000-start", "s", None),
        ],
        rounds: 1,
        prepare: nothing,
        measure: plugins::different,
        peers: &[],
    },
];

/// Finds a line by name.
pub fn named(name: &str) -> Option<&'static Line> {
    ALL.iter().find(|line| line.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_line_and_every_figure_has_a_name_of_its_own() {
        let lines: HashSet<_> = ALL.iter().map(|line| line.name).collect();
        assert_eq!(lines.len(), ALL.len());
        let figures: Vec<_> = ALL.iter().flat_map(|line| line.figures).map(|figure| figure.name).collect();
        assert_eq!(figures.iter().collect::<HashSet<_>>().len(), figures.len());
    }

    #[test]
    fn every_figure_that_a_peer_allows_something_of_is_in_a_line_with_that_peer() {
        let with =
            |peer: &'static str| ALL.iter().filter(move |line| line.peers.iter().any(|other| other.name == peer));
        let allowed: Vec<_> = ALL
            .iter()
            .flat_map(|line| line.peers)
            .flat_map(|peer| peer.allows.iter().map(|(name, _)| (peer.name, *name)))
            .collect();
        assert!(!allowed.is_empty());
        for (peer, name) in allowed {
            assert!(with(peer).flat_map(|line| line.figures).any(|figure| figure.name == name), "{name} of {peer}");
        }
    }

    #[test]
    fn a_line_is_found_by_its_name_alone() {
        assert!(ALL.iter().all(|line| named(line.name).is_some_and(|found| found.name == line.name)));
        assert!(named("").is_none());
        assert!(named("que").is_none());
    }
}
