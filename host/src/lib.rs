//! Runs Kubernetes operators as sandboxed WebAssembly plugins in one process.
//!
//! ```text
//! API server ─► informer ─► routes ─► workqueue ─► dispatch ─► plugin (wasm)
//!                  ▲                                   │
//!                  └────────── the answers ◄─── writer ◄┘
//! ```
//!
//! Layers. Each uses only those above it in this list:
//!
//! 1. `yaml` (administrators' files), [`name`] (of a plugin), [`allocator`] (memory that is returned to the system), `prompt` (priorities of
//!    threads), [`acting`] (whether this process may act)
//! 2. [`guests`] (the threads that plugins run on), [`cluster`] (the API server)
//! 3. [`wasm`] (the sandbox), [`informer`] (what is cached of the cluster)
//! 4. [`plugin`] (files to revisions), `writer` (outcomes to requests)
//! 5. `dispatch` (keys to calls, outcomes to writes)
//! 6. `admin` (the HTTP server for health, metrics and figures)
//! 7. [`app`] (the parts put together)
//! 8. [`cli`] (the commands)
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
