//! What the host tells about itself over HTTP: whether it lives, whether it is ready and what is missing, and its metrics.
//!
//! ```text
//! $ curl -s 'localhost:8080/readyz?verbose'
//! [+]plugin directory ok
//! [+]informers ok
//! [+]API server ok
//! readyz check passed
//!
//! What follows concerns single plugins, and not whether the host is ready:
//! [-]plugin apples failed: cannot compile: not a WebAssembly module
//! [+]informer stable.example.com/v1 MyApple ok
//! ```
//!
//! What is checked comes through [`Readiness`], what is measured through [`Metrics`], what is looked into through [`Inspect`]; all are
//! filled by others. The one thing that can be done through it is to end a plugin's quarantine, by [`Control`].

mod connections;
mod debug;
pub mod metrics;
mod plugins;
mod server;

pub use debug::{InformerRow, Inspect, LeaseRow};
pub use metrics::Metrics;
pub use plugins::{
    BacklogRow, ControllerRow, FailedCallRow, FailingRow, GivenUpRow, GoneRow, HookFailureRow, InstancesRow, LimitsRow,
    LoadFailureRow, PluginRow, QuarantineRow, ServingRow, StormRow,
};
#[cfg(test)]
use server::serve;
pub use server::{State, start};

/// One thing that is as it should be, or is not.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// What is checked, such as `informer stable.example.com/v1 MyApple`.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// Why not, and what to do; or a remark. May be empty, may have several lines.
    pub detail: String,
}

/// What the readiness of the host is made of. Called for each request, on a thread that may wait for a lock.
pub trait Readiness: Send + Sync + 'static {
    /// What concerns the whole host. It is ready if all are ok.
    fn host(&self) -> Vec<Check>;

    /// Plugins, their files and informers, one by one. One of them that is not ok costs the others nothing, and the host is ready
    /// without it.
    fn parts(&self) -> Vec<Check>;

    /// One plugin; none where there is none of that name.
    fn plugin(&self, name: &str) -> Option<Check>;
}

/// What can be done by hand.
pub trait Control: Send + Sync + 'static {
    /// Hands out the plugin's keys again, though its calls came to nothing.
    fn release(&self, plugin: &str) -> Release;
}

/// What came of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    /// It was quarantined, and is not any more.
    Released,
    /// It was not quarantined.
    Free,
    /// No plugin of that name is at work, but these.
    Unknown(Vec<String>),
}

#[cfg(test)]
mod tests;
