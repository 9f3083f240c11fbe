//! Benchmarks: costs beside their budget and, if there is one, a peer in the same run.
//!
//! ```text
//! make bench ─► main ── for each line, and each round of it ──► itself as a child process: measure ─► values
//!                 └─ median of the rounds ─► table on standard output, target/bench.json
//! ```
//!
//! Each round has its own process, so no line sees another's heap, and hash seeds and address layout vary as between
//! two starts of the host. Pure code is measured in CPU time of the measuring thread, because a machine is seldom idle.
//! Work of several threads or processes is measured by the wall clock. A missed budget is shown and fails nothing.

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

/// Returns Cargo's target folder: `target`, or `CARGO_TARGET_DIR`.
///
/// # Errors
/// The folder does not exist.
pub fn target() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = env::var_os("CARGO_TARGET_DIR").filter(|target| !target.is_empty());
    let path = root.join(target.unwrap_or_else(|| "target".into()));
    path.canonicalize().with_context(|| format!("nothing was built into {}", path.display()))
}
