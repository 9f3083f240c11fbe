//! Benchmarks: what things cost, beside the budget they have and, where there is one, a peer in the same run.
//!
//! ```text
//! make bench ─► main ── for each line, and each round of it ──► itself as a child process: measure ─► values
//!                 └─ median of the rounds ─► table on standard output, target/bench.json
//! ```
//!
//! Each round has a process of its own, so that no line sees another's heap, and hash seeds and address layout vary as they do
//! between two starts of the host. Times of pure code are CPU times of the measuring thread, since a machine is seldom idle; what
//! spans threads or processes is taken by the wall clock. A budget that is not held is shown, and fails nothing.

mod awake;
mod child;
pub mod clock;
mod controllers;
mod keepers;
pub mod lines;
mod manifests;
mod many;
pub mod memory;
pub mod objects;
mod peers;
pub mod processes;
pub mod report;
mod server;
pub mod statistics;
mod toolchains;

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// Where cargo builds: `target`, or what `CARGO_TARGET_DIR` says.
///
/// # Errors
/// There is no such folder.
pub fn target() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = env::var_os("CARGO_TARGET_DIR").filter(|target| !target.is_empty());
    let path = root.join(target.unwrap_or_else(|| "target".into()));
    path.canonicalize().with_context(|| format!("nothing was built into {}", path.display()))
}
