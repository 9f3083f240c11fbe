//! A key through the workqueue: add, get, done.

use std::{hint::black_box, time::Duration};

use anyhow::{Result, ensure};
use pilothouse_core::{
    key::Key,
    workqueue::{CHANGE, Workqueue},
};

use super::Peer;
use crate::{
    clock::{cpu_time, micros_each},
    peers::go,
    statistics::median,
};

/// Number of queued keys.
const KEYS: usize = 10_000;
const PASSES: usize = 50;

/// The queues of controllers in Go, old and new, each with its lock, by the wall clock.
pub(super) const PEERS: &[Peer] = &[
    Peer { name: "client-go 0.37 workqueue", prepare: go::build, measure: || go::queue("workqueue"), allows: &[] },
    Peer {
        name: "controller-runtime 0.25 priority queue",
        prepare: go::build,
        measure: || go::queue("priority"),
        allows: &[],
    },
];

/// Adds all keys, then takes and gives back each. The lock and the notification around the queue, which are the host's,
/// are not included.
pub(super) fn measure() -> Result<Vec<f64>> {
    let keys: Vec<Key> = (0..KEYS).map(|n| Key::new(Some("orders-production"), &format!("apple-{n:05}"))).collect();
    let mut queue = Workqueue::default();
    let mut passes = Vec::with_capacity(PASSES);
    let mut handed_out = 0;
    for pass in 0..PASSES {
        let now = Duration::from_secs(pass as u64);
        let time = cpu_time(|| {
            for key in &keys {
                queue.add(now, black_box(key.clone()), CHANGE);
            }
            while let Some(item) = queue.get(now) {
                black_box(queue.done(now, &item.key));
                handed_out += 1;
            }
        });
        passes.push(micros_each(time, KEYS));
    }
    ensure!(handed_out == KEYS * PASSES, "{handed_out} keys were handed out");
    Ok(median(&passes).into_iter().collect())
}
