//! Runs Kubernetes operators as sandboxed WebAssembly plugins in one process.
//!
//! ```text
//! API server ─► informer ─► routes ─► workqueue ─► dispatch ─► plugin (wasm)
//!                  ▲                                   │
//!                  └────────── the answers ◄─── writer ◄┘
//! ```
//!
//! # Layers
//!
//! A module imports only modules that stand before it in this list; `tests/layers.rs` checks it.
//!
//! 1. `yaml`, [`name`], [`allocator`], `prompt`, [`acting`], `metrics`: administrators' files, plugins' names, memory that is returned to
//!    the system, priorities of threads, whether this process may act, families of samples
//! 2. [`guests`]: the threads that plugins run on
//! 3. [`cluster`]: the API server
//! 4. [`informer`]: what is cached of the cluster
//! 5. [`wasm`]: the sandbox
//! 6. `writer`: outcomes to requests
//! 7. [`plugin`]: files to revisions
//! 8. `dispatch`: keys to calls, outcomes to writes
//! 9. `admin`: the HTTP server for health, metrics and figures
//! 10. [`app`]: the parts put together
//! 11. [`cli`]: the commands
//!
//! Public is what the binary, `tests/bench` and `tests/e2e` use, and [`acting`].

pub mod acting;
#[allow(unreachable_pub, reason = "`pub` is what a room offers to the others")]
mod admin;
pub mod allocator;
pub mod app;
pub mod cli;
pub mod cluster;
#[allow(unreachable_pub, reason = "`pub` is what a room offers to the others")]
mod dispatch;
pub mod guests;
pub mod informer;
mod metrics;
pub mod name;
pub mod plugin;
mod prompt;
#[cfg(test)]
mod testing;
pub mod wasm;
#[allow(unreachable_pub, reason = "`pub` is what a room offers to the others")]
mod writer;
mod yaml;
