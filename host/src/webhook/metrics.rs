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

use jiff::Timestamp;
use parking_lot::Mutex;
use pilothouse_core::event::cut;
use prometheus_client::metrics::histogram::Histogram;
use serde::Serialize;
use serde_json::Value;

use crate::{
    metrics::{self, DescriptorEncoder, Registry, Series, counters, gauges, histograms},
    tls::Serving,
};

/// Buckets of Go's client, in seconds.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Bytes of the reason of a failure. A plugin that fails may write much.
const WHY: usize = 500;

/// The requests of each webhook, by its path.
#[derive(Debug, Default)]
pub(crate) struct Counters(Series<Requests>);

/// The requests of one webhook.
#[derive(Debug)]
pub(super) struct Requests {
    latency: Histogram,
    by_code: Mutex<BTreeMap<u16, u64>>,
    in_flight: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
    last_failure: Mutex<Option<LastFailure>>,
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastFailure {
    /// When.
    #[serde(serialize_with = "crate::metrics::as_text")]
    pub at: Timestamp,
    /// The status code of the answer.
    pub code: u16,
    /// Why.
    pub message: String,
}

/// The figures of one webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// All requests.
    pub(super) calls: u64,
    /// Those that the plugin denied.
    pub(super) denied: u64,
    /// Those without an answer, and failed conversions.
    pub(super) failed: u64,
    pub(super) last_failure: Option<LastFailure>,
}

impl Default for Requests {
    fn default() -> Self {
        // So that a rate of errors is known before the first one.
        let by_code = [(200, 0), (500, 0)].into();
        Self {
            latency: Histogram::new(BUCKETS),
            by_code: Mutex::new(by_code),
            in_flight: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            last_failure: Mutex::default(),
        }
    }
}

/// A request in flight. Counts as failed with 500 if it is dropped without an answer.
pub(super) struct Counted {
    requests: Arc<Requests>,
    began: Instant,
    code: u16,
    ending: Ending,
}

/// How a request ended.
enum Ending {
    Allowed,
    Denied,
    Failed(String),
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
        let ending = Ending::Failed("the API server did not wait for the answer".to_owned());
        Some(Counted { requests, began: Instant::now(), code: 500, ending })
    }

    /// Returns the figures of one webhook. They are zero if it has no series.
    pub(super) fn of(&self, path: &str) -> Figures {
        let Some(requests) = self.0.get(path) else { return Figures::default() };
        Figures {
            calls: requests.by_code.lock().values().sum(),
            denied: requests.denied.load(Ordering::Relaxed),
            failed: requests.failed.load(Ordering::Relaxed),
            last_failure: requests.last_failure.lock().clone(),
        }
    }
}

impl Counted {
    /// Records an answer: an `AdmissionReview`, or a `ConversionReview`.
    pub(super) fn answered(&mut self, answer: &Value) {
        self.code = 200;
        let (response, text) = (&answer["response"], "no reason was given");
        self.ending = if response["allowed"] == false {
            Ending::Denied
        } else if response["result"]["status"] == "Failure" {
            Ending::Failed(cut(response["result"]["message"].as_str().unwrap_or(text), WHY))
        } else {
            Ending::Allowed
        };
    }

    /// Records why there is no answer, and the code that says so.
    pub(super) fn failed(&mut self, code: u16, why: &str) {
        self.code = code;
        self.ending = Ending::Failed(cut(why, WHY));
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.requests.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.requests.latency.observe(self.began.elapsed().as_secs_f64());
        *self.requests.by_code.lock().entry(self.code).or_default() += 1;
        match std::mem::replace(&mut self.ending, Ending::Allowed) {
            Ending::Allowed => {}
            Ending::Denied => drop(self.requests.denied.fetch_add(1, Ordering::Relaxed)),
            Ending::Failed(message) => {
                self.requests.failed.fetch_add(1, Ordering::Relaxed);
                let failure = LastFailure { at: Timestamp::now(), code: self.code, message };
                *self.requests.last_failure.lock() = Some(failure);
            }
        }
    }
}

/// Registers the figures.
pub(super) fn register(registry: &mut Registry, counters: &Arc<Counters>, serving: &Arc<Serving>) {
    let (counters, serving) = (counters.clone(), serving.clone());
    metrics::register(registry, move |encoder| encode(&counters, &serving, encoder));
}

fn encode(all: &Counters, serving: &Serving, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
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
    gauges(encoder, "controller_runtime_webhook_requests_in_flight", help, in_flight)?;
    let count = |of: fn(&Requests) -> &AtomicU64| {
        all.iter().map(move |(path, requests)| ([("webhook", path.as_str())], of(requests).load(Ordering::Relaxed)))
    };
    let help = "Requests of the API server that the plugin denied";
    counters(encoder, "pilothouse_webhook_denied", help, count(|requests| &requests.denied))?;
    let help = "Requests of the API server that the host could not answer, and failed conversions";
    counters(encoder, "pilothouse_webhook_failed", help, count(|requests| &requests.failed))?;
    let expires = serving.expires().map(|end| ([], end.as_second()));
    let help = "When the certificate of the webhooks ends, in seconds since 1970. Absent without a certificate";
    gauges(encoder, "pilothouse_webhook_certificate_expiry_timestamp_seconds", help, expires.into_iter())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_count_by_how_they_ended() {
        let counters = Counters::default();
        counters.begin("/admission/a/b");
        let request = || counters.request("/admission/a/b").expect("it has begun");
        request().answered(&json!({"response": {"allowed": true}}));
        request().answered(&json!({"response": {"allowed": false}}));
        assert_eq!(counters.of("/admission/a/b"), Figures { calls: 2, denied: 1, ..Figures::default() });
        let last = || counters.of("/admission/a/b").last_failure.map(|last| (last.code, last.message));
        request().answered(&json!({"response": {"result": {"status": "Failure", "message": "too bright"}}}));
        assert_eq!(last(), Some((200, "too bright".to_owned())));
        request().failed(429, &"x".repeat(10_000));
        assert!(last().is_some_and(|(code, message)| code == 429 && message.len() <= WHY));
        drop(request());
        assert_eq!(last(), Some((500, "the API server did not wait for the answer".to_owned())));
        let figures = counters.of("/admission/a/b");
        assert_eq!((figures.calls, figures.denied, figures.failed), (5, 1, 3));
        assert_eq!(counters.of("/admission/a/c"), Figures::default());
        assert!(counters.request("/admission/a/c").is_none());
    }
}
