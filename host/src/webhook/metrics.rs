//! What is counted of webhooks, under the names of controller-runtime.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;

use crate::metrics::{self, DescriptorEncoder, Registry, Series, counters, gauges, histograms};

/// Buckets of Go's client, in seconds.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The requests of each webhook, by its path.
#[derive(Debug, Default)]
pub(crate) struct Counters(Series<Requests>);

/// The requests of one webhook.
#[derive(Debug)]
pub(super) struct Requests {
    latency: Histogram,
    by_code: Mutex<BTreeMap<u16, u64>>,
    in_flight: AtomicU64,
}

impl Default for Requests {
    fn default() -> Self {
        // So that a rate of errors is known before the first one.
        let by_code = [(200, 0), (500, 0)].into();
        Self { latency: Histogram::new(BUCKETS), by_code: Mutex::new(by_code), in_flight: AtomicU64::new(0) }
    }
}

/// A request in flight. Counts as failed with 500 if it is dropped without an answer.
pub(super) struct Counted {
    requests: Arc<Requests>,
    began: Instant,
    code: u16,
}

impl Counters {
    /// Begins the series of a webhook.
    pub(super) fn begin(&self, path: &str) {
        self.0.begin(path);
    }

    /// Ends the series of a webhook.
    pub(super) fn remove(&self, path: &str) {
        self.0.remove(path);
    }

    /// Counts a request. Paths without a webhook have no series.
    pub(super) fn request(&self, path: &str) -> Option<Counted> {
        let requests = self.0.get(path)?;
        requests.in_flight.fetch_add(1, Ordering::Relaxed);
        Some(Counted { requests, began: Instant::now(), code: 500 })
    }
}

impl Counted {
    /// Records the answer's code.
    pub(super) fn answered(mut self, code: u16) {
        self.code = code;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.requests.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.requests.latency.observe(self.began.elapsed().as_secs_f64());
        *self.requests.by_code.lock().entry(self.code).or_default() += 1;
    }
}

/// Registers the figures.
pub(crate) fn register(registry: &mut Registry, counters: &Arc<Counters>) {
    let counters = counters.clone();
    metrics::register(registry, move |encoder| encode(&counters, encoder));
}

fn encode(all: &Counters, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = all.0.all();
    let latency = all.iter().map(|(path, requests)| ([("webhook", path.as_str())], &requests.latency));
    let help = "Time to answer a request of the API server";
    histograms(encoder, "controller_runtime_webhook_latency_seconds", help, latency)?;
    let by_code: Vec<(&str, String, u64)> = all
        .iter()
        .flat_map(|(path, requests)| {
            let by_code = requests.by_code.lock().clone();
            by_code.into_iter().map(|(code, count)| (path.as_str(), code.to_string(), count))
        })
        .collect();
    let by_code = by_code.iter().map(|(path, code, count)| ([("webhook", *path), ("code", code.as_str())], *count));
    let help = "Requests of the API server, by the status code of the answer";
    counters(encoder, "controller_runtime_webhook_requests", help, by_code)?;
    let in_flight =
        all.iter().map(|(path, requests)| ([("webhook", path.as_str())], requests.in_flight.load(Ordering::Relaxed)));
    let help = "Requests of the API server that are being answered";
    gauges(encoder, "controller_runtime_webhook_requests_in_flight", help, in_flight)
}
