//! Runs Kubernetes operators as sandboxed WebAssembly plugins in one process.
//!
//! ```text
//! API server ─► informer ─► routes ─► workqueue ─► dispatch ─► plugin (wasm)
//!                  ▲                                   │
//!                  └────────── the answers ◄─── writer ◄┘
//! ```
//!
//! Layers, each using only those before it: [`kube`] and [`informer`] (the cluster and what is cached of it), `wasm` (the
//! sandbox), `plugin` (files to revisions), [`dispatch`] (keys to calls, outcomes to writes), `admin`, [`app`], [`cli`].

pub mod wasm;
