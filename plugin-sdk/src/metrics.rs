//! The plugin's own metrics, which the host exports for Prometheus.
//!
//! A metric is a `static`, added to the plugin by [`Plugin::metric`](crate::Plugin::metric). The host exports it with the
//! prefix `plugin_` and the label `plugin`, such as `plugin_apples_total{plugin="orchard",color="red"}`.
//!
//! ```
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use pilothouse_sdk::metrics::{Counter, Gauge, Histogram};
//! use pilothouse_sdk::mock::MockHost;
//! use pilothouse_sdk::prelude::*;
//!
//! static SEEN: Counter<1> = Counter::new("settings_seen_total", "Reconciles of settings.").labels(["team"]);
//! static SIZE: Gauge<1> = Gauge::new("settings_keys", "Keys of the settings.").labels(["team"]);
//! static LENGTHS: Histogram = Histogram::new("value_bytes", "Bytes of a value.").buckets(&[10.0, 100.0, 1000.0]);
//!
//! fn reconcile(_: &Context, settings: &ConfigMap) -> Result<Outcome, Error> {
//!     let team = settings.metadata.namespace.as_deref().unwrap_or_default();
//!     let data = settings.data.clone().unwrap_or_default();
//!     SEEN.inc([team]);
//!     SIZE.set([team], data.len() as f64);
//!     data.values().for_each(|value| LENGTHS.observe([], value.len() as f64));
//!     Ok(Outcome::new())
//! }
//!
//! #[plugin]
//! fn settings() -> Plugin {
//!     Plugin::new("Measures settings.")
//!         .metric(&SEEN)
//!         .metric(&SIZE)
//!         .metric(&LENGTHS)
//!         .controller(Controller::of::<ConfigMap>().without_status().reconcile(reconcile))
//! }
//!
//! let mut map = ConfigMap::default();
//! map.metadata.namespace = Some("blue".into());
//! map.metadata.name = Some("web".into());
//! map.data = Some([("color".to_owned(), "red".to_owned())].into());
//! let host = MockHost::new(settings).with(map);
//! host.reconcile(("blue", "web")).expect("it succeeds");
//! assert_eq!(host.metric("settings_seen_total", [("team", "blue")]), Some(1.0));
//! assert_eq!(host.metric("settings_keys", [("team", "blue")]), Some(1.0));
//! assert_eq!(host.metric("value_bytes_count", []), Some(1.0));
//! ```
//!
//! # What to count
//! A change takes effect at once, and stays if the call fails later. The host repeats a failed call, so a counter counts
//! attempts.
//!
//! Use labels with few values, and no names of objects. A plugin has at most 1,000 series, unless the administrator sets
//! `limits.metricSeries`. The host drops what is too much, counts it and logs the first. It cuts a label value after 128 bytes.
//!
//! A clock stands still during a call. So time is measured by the host: see `pilothouse_call_seconds` and
//! `controller_runtime_reconcile_time_seconds`.

use crate::{
    contract::exports::pilothouse::plugin::controller::{Metric as Declaration, MetricType},
    host,
};

host::interface!(metrics {
    fn add(metric: &str, labels: &[String], value: f64);
    fn set(metric: &str, labels: &[String], value: f64);
    fn observe(metric: &str, labels: &[String], value: f64);
});

/// A number that only grows, such as the number of backups. `N` is the number of labels.
///
/// ```
/// use pilothouse_sdk::metrics::Counter;
///
/// static RUNS: Counter = Counter::new("runs_total", "Reconciles.");
/// static BACKUPS: Counter<2> = Counter::new("backups_total", "Backups.").labels(["team", "result"]);
///
/// fn count(team: &str) {
///     RUNS.inc([]);
///     BACKUPS.add([team, "success"], 2.0);
/// }
/// ```
#[derive(Debug)]
pub struct Counter<const N: usize = 0> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
}

/// A number that goes up and down, such as the size of a queue. `N` is the number of labels.
///
/// A series keeps its last value, also when the object that it was about is gone.
///
/// ```
/// use pilothouse_sdk::metrics::Gauge;
///
/// static FREE: Gauge<1> = Gauge::new("free_bytes", "Free space.").labels(["pool"]);
///
/// fn measure(pool: &str) {
///     FREE.set([pool], 4096.0);
///     FREE.add([pool], -1024.0);
/// }
/// ```
#[derive(Debug)]
pub struct Gauge<const N: usize = 0> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
}

/// How many observations were at most as large as each of some numbers. `N` is the number of labels.
///
/// ```
/// use pilothouse_sdk::metrics::Histogram;
///
/// static SIZES: Histogram = Histogram::new("backup_bytes", "Size of a backup.").buckets(&[1e3, 1e6, 1e9]);
///
/// fn measure() {
///     SIZES.observe([], 250_000.0);
/// }
/// ```
#[derive(Debug)]
pub struct Histogram<const N: usize = 0> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
    buckets: &'static [f64],
}

/// A [`Counter`], a [`Gauge`] or a [`Histogram`].
pub trait Metric: sealed::Declared + Sync {}

mod sealed {
    use super::Declaration;

    pub trait Declared {
        /// Returns what the manifest says about it.
        fn declaration(&self) -> Declaration;
    }
}
pub(crate) use sealed::Declared;

impl Counter {
    /// Creates a counter without labels. `name` ends in `_total`; `help` is one sentence, for people.
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help, labels: [] }
    }
}

impl<const N: usize> Counter<N> {
    /// Sets the names of the labels, at most 8. `plugin` and `le` are not allowed.
    #[must_use]
    pub const fn labels<const M: usize>(self, labels: [&'static str; M]) -> Counter<M> {
        Counter { name: self.name, help: self.help, labels }
    }

    /// Adds 1 to the series with these values of the labels.
    pub fn inc(&self, values: [&str; N]) {
        self.add(values, 1.0);
    }

    /// Adds to the series with these values of the labels. The host ignores what is negative.
    pub fn add(&self, values: [&str; N], more: f64) {
        import::add(self.name, &values.map(str::to_owned), more);
    }
}

impl Gauge {
    /// Creates a gauge without labels. `help` is one sentence, for people.
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help, labels: [] }
    }
}

impl<const N: usize> Gauge<N> {
    /// Sets the names of the labels, at most 8. `plugin` and `le` are not allowed.
    #[must_use]
    pub const fn labels<const M: usize>(self, labels: [&'static str; M]) -> Gauge<M> {
        Gauge { name: self.name, help: self.help, labels }
    }

    /// Sets the series with these values of the labels.
    pub fn set(&self, values: [&str; N], value: f64) {
        import::set(self.name, &values.map(str::to_owned), value);
    }

    /// Adds to the series with these values of the labels. What is negative is subtracted.
    pub fn add(&self, values: [&str; N], more: f64) {
        import::add(self.name, &values.map(str::to_owned), more);
    }
}

impl Histogram {
    /// Creates a histogram without labels, with buckets from 0.005 to 10. `help` is one sentence, for people.
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help, labels: [], buckets: &[] }
    }
}

impl<const N: usize> Histogram<N> {
    /// Sets the names of the labels, at most 8. `plugin` and `le` are not allowed.
    #[must_use]
    pub const fn labels<const M: usize>(self, labels: [&'static str; M]) -> Histogram<M> {
        Histogram { name: self.name, help: self.help, labels, buckets: self.buckets }
    }

    /// Sets the largest value of each bucket, in ascending order, at most 32. A last bucket for all larger values is
    /// always there.
    #[must_use]
    pub const fn buckets(self, buckets: &'static [f64]) -> Self {
        Self { name: self.name, help: self.help, labels: self.labels, buckets }
    }

    /// Adds an observation to the series with these values of the labels.
    pub fn observe(&self, values: [&str; N], value: f64) {
        import::observe(self.name, &values.map(str::to_owned), value);
    }
}

impl<const N: usize> Metric for Counter<N> {}
impl<const N: usize> Metric for Gauge<N> {}
impl<const N: usize> Metric for Histogram<N> {}

impl<const N: usize> Declared for Counter<N> {
    fn declaration(&self) -> Declaration {
        declare(self.name, MetricType::Counter, self.help, &self.labels, &[])
    }
}

impl<const N: usize> Declared for Gauge<N> {
    fn declaration(&self) -> Declaration {
        declare(self.name, MetricType::Gauge, self.help, &self.labels, &[])
    }
}

impl<const N: usize> Declared for Histogram<N> {
    fn declaration(&self) -> Declaration {
        declare(self.name, MetricType::Histogram, self.help, &self.labels, self.buckets)
    }
}

fn declare(name: &str, of_type: MetricType, help: &str, labels: &[&str], buckets: &[f64]) -> Declaration {
    Declaration {
        name: name.to_owned(),
        of_type,
        help: help.to_owned(),
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        buckets: buckets.iter().map(f64::to_string).collect(),
    }
}
