//! Runs Kubernetes operators as sandboxed WebAssembly plugins in one process.
//!
//! ```text
//! API server ─► informer ─► routes ─► workqueue ─► dispatch ─► plugin (wasm)
//!                  ▲                                   │
//!                  └────────── the answers ◄─── writer ◄┘
//! ```
//!
//! Layers, each using only those before it: `yaml` (administrators' files), [`name`] (of a plugin), [`acting`] (whether this process may act), [`guests`] (the threads that plugins run on), [`cluster`] (the API
//! server), [`informer`] (what is cached of it) and [`wasm`] (the sandbox), [`writer`] and [`plugin`] (files to revisions), [`dispatch`]
//! (keys to calls, outcomes to writes), [`admin`], [`app`], [`cli`].

pub mod acting;
pub mod admin;
pub mod allocator;
pub mod app;
pub mod cli;
pub mod cluster;
pub mod dispatch;
pub mod guests;
pub mod informer;
pub mod name;
pub mod plugin;
mod prompt;
#[cfg(test)]
mod testing;
pub mod wasm;
pub mod writer;
mod yaml;
