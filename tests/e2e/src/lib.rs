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
//! The same tests run against both servers; `PILOTHOUSE_E2E=real` selects the real one. The tests are in `suite/`, and
//! this library is their toolbox. Tests wait for each fact with [`wait::eventually`]. None asserts how long something
//! takes.

pub mod account;
pub mod admin;
pub mod aggregated;
pub mod apple;
#[cfg(test)]
mod cases;
pub mod cluster;
#[cfg(test)]
mod docs;
mod embedded;
pub mod examples;
pub mod failover;
pub mod far_end;
pub mod host;
pub mod image;
pub mod install;
pub mod kubectl;
pub mod metrics;
pub mod plugin;
pub mod proxy;
mod random;
pub mod relay;
pub mod reviewer;
pub mod scene;
pub mod soak;
pub mod suite;
pub mod wait;

pub use account::ServiceAccount;
pub use aggregated::Aggregated;
pub use apple::Apple;
pub use cluster::{Cluster, Kind};
pub use far_end::FarEnd;
pub use host::{Environment, Host, Pod};
pub use image::Image;
pub use install::Installation;
pub use plugin::{Plugin, Plugins};
pub use reviewer::Reviewer;
pub use scene::Scene;
pub use wait::eventually;
