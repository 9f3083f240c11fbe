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
//! 1. What all others may use:
//!    - `causes`, `prompt`, `clock`: errors with their causes, priorities of threads, the time of day
//!    - `yaml`, [`name`]: administrators' files, plugins' names
//!    - [`allocator`]: memory that returns to the system
//!    - `acting`: whether this process may act
//!    - `connections`, `tls`, `proxy`: connections of servers, their certificates, connections through a proxy
//!    - `metrics`: families of samples
//! 2. [`guests`]: the threads that plugins run on
//! 3. [`cluster`]: the API server
//! 4. [`election`], `spread`: which of several hosts acts, and for which plugins
//! 5. [`informer`]: what is cached of the cluster
//! 6. [`wasm`]: the sandbox
//! 7. `outbound`, `references`: requests to other servers, values that administrators' files refer to
//! 8. `writer`: outcomes to requests
//! 9. [`plugin`]: files to revisions
//! 10. `dispatch`: keys to calls, outcomes to writes
//! 11. [`webhook`]: the HTTPS server that the API server calls
//! 12. `admin`: the servers of probes, metrics and figures, and who may use them
//! 13. [`app`]: the parts put together
//! 14. [`cli`]: the commands
//!
//! Public is what the binary, `tests/bench` and `tests/e2e` use.

mod acting;
#[allow(unreachable_pub, reason = "`pub` is what a room offers to the others")]
mod admin;
pub mod allocator;
pub mod app;
mod causes;
pub mod cli;
mod clock;
pub mod cluster;
mod connections;
#[allow(unreachable_pub, reason = "`pub` is what a room offers to the others")]
mod dispatch;
pub mod election;
pub mod guests;
pub mod informer;
mod metrics;
pub mod name;
#[allow(unreachable_pub, reason = "`pub` is what a room offers to the others")]
mod outbound;
pub mod plugin;
mod prompt;
mod proxy;
#[allow(unreachable_pub, reason = "`pub` is what a room offers to the others")]
mod references;
mod spread;
#[cfg(test)]
mod testing;
#[allow(unreachable_pub, reason = "`pub` is what a room offers to the others")]
mod tls;
pub mod wasm;
pub mod webhook;
#[allow(unreachable_pub, reason = "`pub` is what a room offers to the others")]
mod writer;
mod yaml;
