//! What the host measures, by the names that dashboards for controller-runtime read, and by its own (`pilothouse_…`).
//!
//! Events are counted as they happen, through the [`Controller`] or [`Plugin`] they belong to. What mirrors something that
//! lives elsewhere (queues, informers, the process) is read when Prometheus asks: see [`Snapshot`].
//!
//! ```
//! use pilothouse::admin::metrics::{Metrics, Reconciled};
//! use std::time::Duration;
//!
//! let metrics = Metrics::new();
//! metrics.add_controller("myapple/apples");
//! if let Some(controller) = metrics.controller("myapple/apples") {
//!     controller.reconciled(Reconciled::Success, Duration::from_millis(2));
//! }
//! let text = metrics.encode();
//! assert!(text.contains(r#"controller_runtime_reconcile_total{controller="myapple/apples",result="success"} 1"#));
//! ```
//!
//! Series begin at zero when their controller or plugin is added, and end with it. No label grows with the cluster: there are
//! plugins, controllers and kinds among them, and never objects.

mod code;
mod controller;
mod encode;
mod guests;
mod instances;
mod live;
mod plugin;
mod process;
mod requests;
mod routes;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text},
    registry::Registry,
};

pub use self::{
    code::{Code, Compiles},
    controller::{Controller, Reconciled},
    guests::Account,
    instances::Instances,
    live::{Informer, Live, Queue, Snapshot},
    plugin::Plugin,
    requests::Requests,
    routes::{Backlog, HostCalls, Predicates, Routes},
};

/// Everything that is measured.
pub struct Metrics {
    series: Arc<Series>,
    /// Asks `series` at every scrape.
    registry: Registry,
}

#[derive(Default)]
struct Series {
    controllers: RwLock<Entries<Controller>>,
    plugins: RwLock<Entries<Plugin>>,
    /// By code, method and host.
    requests: Mutex<BTreeMap<(String, String, String), u64>>,
    /// Whether the API server ever answered a request, and whether one was ever without an answer.
    answered: AtomicBool,
    unanswered: AtomicBool,
    sources: RwLock<Vec<Box<dyn Snapshot>>>,
}

/// By name, with how many there are of it.
type Entries<T> = BTreeMap<String, (Arc<T>, usize)>;

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Without controllers and plugins.
    pub fn new() -> Self {
        let series = Arc::<Series>::default();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(series.clone()));
        Self { series, registry }
    }

    /// Everything as OpenMetrics text.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.registry).expect("a string takes everything");
        text
    }

    /// Reads `source` at every scrape from now on.
    pub fn read_from(&self, source: impl Snapshot) {
        self.series.sources.write().push(Box::new(source));
    }

    /// Begins a controller's series. The name is the value of the label `controller`, unique in the host: `plugin/controller`.
    ///
    /// They end when [`Self::remove_controller`] was called as often: where a new controller begins before the old one of its
    /// name ended, nothing is lost.
    pub fn add_controller(&self, name: &str) {
        self.series.controllers.write().entry(name.to_owned()).or_default().1 += 1;
    }

    /// See [`Self::add_controller`].
    pub fn remove_controller(&self, name: &str) {
        remove(&mut self.series.controllers.write(), name);
    }

    /// The counters of a controller that was added.
    pub fn controller(&self, name: &str) -> Option<Arc<Controller>> {
        self.series.controllers.read().get(name).map(|(controller, _)| controller.clone())
    }

    /// Begins a plugin's series. Where it has begun already, nothing changes: unlike a controller, a plugin is there once.
    pub fn add_plugin(&self, name: &str) {
        self.series.plugins.write().entry(name.to_owned()).or_default().1 = 1;
    }

    /// Ends a plugin's series.
    pub fn remove_plugin(&self, name: &str) {
        remove(&mut self.series.plugins.write(), name);
    }

    /// The counters of a plugin that was added.
    pub fn plugin(&self, name: &str) -> Option<Arc<Plugin>> {
        self.series.plugins.read().get(name).map(|(plugin, _)| plugin.clone())
    }

    /// Counts a request to the API server. `code` is the HTTP status; none where no answer came.
    pub fn requested(&self, method: &str, host: &str, code: Option<u16>) {
        let seen = if code.is_some() { &self.series.answered } else { &self.series.unanswered };
        // Read at each request, written twice in a host's life.
        if !seen.load(Ordering::Relaxed) {
            seen.store(true, Ordering::Relaxed);
        }
        // The word that client-go uses where there is no code.
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        *self.series.requests.lock().entry((code, method.to_owned(), host.to_owned())).or_default() += 1;
    }
}

impl Metrics {
    /// `true` if the API server was asked, and has not answered a single request.
    pub fn never_answered(&self) -> bool {
        self.series.unanswered.load(Ordering::Relaxed) && !self.series.answered.load(Ordering::Relaxed)
    }
}

fn remove<T>(entries: &mut Entries<T>, name: &str) {
    if let Some((_, uses)) = entries.get_mut(name) {
        *uses -= 1;
        if *uses == 0 {
            entries.remove(name);
        }
    }
}

/// The entries as they are now: nothing is held while they are encoded.
fn listed<T>(entries: &RwLock<Entries<T>>) -> Vec<(String, Arc<T>)> {
    entries.read().iter().map(|(name, (entry, _))| (name.clone(), entry.clone())).collect()
}

impl Collector for Series {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        controller::encode(&mut encoder, &listed(&self.controllers))?;
        plugin::encode(&mut encoder, &listed(&self.plugins))?;
        let requests = self.requests.lock().clone();
        encode::counters(
            &mut encoder,
            "rest_client_requests",
            "Requests to the API server, by HTTP status, method and host",
            requests.iter().map(|((code, method, host), count)| {
                ([("code", code.as_str()), ("method", method), ("host", host)], *count)
            }),
        )?;
        let mut live = Live::default();
        for source in self.sources.read().iter() {
            source.read(&mut live);
        }
        live::encode(&mut encoder, &live)?;
        process::encode(&mut encoder)
    }
}

impl fmt::Debug for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Series").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
