//! End-to-end tests: the host as a process, plugins as files, and an API server, embedded or real.
//!
//! ```text
//!   test ──► Scene ──► Host ───── target/debug/pilothouse, as a process
//!              │         │  ▲
//!              │         ▼  │
//!              ├──► Plugins (a folder of .wasm and .yaml)
//!              └──► Cluster ───── embedded (in this process) │ etcd + kube-apiserver
//! ```
//!
//! One body of tests runs against both servers: `PILOTHOUSE_E2E=real` chooses the real one. The tests themselves are in
//! `suite/`; this library is what they speak with. Every fact is waited for with [`wait::eventually`]; nothing asserts how
//! long something takes.

pub mod admin;
pub mod apple;
pub mod cluster;
#[cfg(test)]
mod docs;
mod embedded;
pub mod host;
pub mod kubectl;
pub mod metrics;
pub mod plugin;
pub mod proxy;
pub mod relay;
pub mod scene;
pub mod soak;
pub mod suite;
pub mod wait;

pub use apple::Apple;
pub use cluster::{Cluster, Kind};
pub use host::{Host, Pod};
pub use plugin::{Plugin, Plugins};
pub use scene::Scene;
pub use wait::eventually;
