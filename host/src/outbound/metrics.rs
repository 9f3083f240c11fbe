//! Requests by plugin and result, and their bytes.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    metrics::{self, DescriptorEncoder, Registry, Series, counters, gauges},
    wasm::{HttpError, HttpResponse},
};

/// Counts the requests of each plugin.
pub type Requests = Series<Counts>;

/// What is counted of one plugin.
#[derive(Debug)]
pub struct Counts {
    results: Mutex<BTreeMap<&'static str, u64>>,
    in_flight: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

/// All results. They begin at zero.
const RESULTS: [&str; 7] = ["success", "not_granted", "invalid", "timeout", "unreachable", "too_large", "too_many"];

impl Default for Counts {
    fn default() -> Self {
        Self {
            results: Mutex::new(RESULTS.map(|result| (result, 0)).into()),
            in_flight: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }
}

impl Requests {
    /// Begins to count one request.
    pub(super) fn count(&self, plugin: &str) -> Tally {
        Tally { counts: self.get(plugin), result: "timeout", is_in_flight: false }
    }
}

/// Counts one request when it is dropped. A request that is dropped on its way has timed out, with its call.
pub(super) struct Tally {
    counts: Option<Arc<Counts>>,
    result: &'static str,
    is_in_flight: bool,
}

impl Tally {
    /// Counts the request as in flight, until this is dropped.
    pub(super) fn begin(&mut self) {
        if let Some(counts) = &self.counts {
            counts.in_flight.fetch_add(1, Ordering::Relaxed);
            self.is_in_flight = true;
        }
    }

    /// Counts bytes of a body that are sent.
    pub(super) fn sent(&self, bytes: usize) {
        if let Some(counts) = &self.counts {
            counts.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Counts bytes of a body that were received.
    pub(super) fn received(&self, bytes: usize) {
        if let Some(counts) = &self.counts {
            counts.received.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Ends the request.
    pub(super) fn end(&mut self, result: &Result<HttpResponse, HttpError>) {
        self.result = match result {
            Ok(_) => "success",
            Err(HttpError::NotGranted(_)) => "not_granted",
            Err(HttpError::Invalid(_)) => "invalid",
            Err(HttpError::Timeout) => "timeout",
            Err(HttpError::Unreachable(_)) => "unreachable",
            Err(HttpError::TooLarge) => "too_large",
            Err(HttpError::TooMany) => "too_many",
        };
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        if let Some(counts) = &self.counts {
            *counts.results.lock().entry(self.result).or_default() += 1;
            if self.is_in_flight {
                counts.in_flight.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Registers what `requests` counts.
pub(crate) fn register(registry: &mut Registry, requests: &Arc<Requests>) {
    let requests = requests.clone();
    metrics::register(registry, move |encoder| encode(&requests, encoder));
}

fn encode(requests: &Requests, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = requests.all();
    let samples = all.iter().flat_map(|(plugin, counts)| {
        let results = counts.results.lock().clone();
        results.into_iter().map(|(result, count)| ([("plugin", plugin.as_str()), ("result", result)], count))
    });
    let help = "Requests of plugins to servers outside the cluster's API. A response of any status is a success";
    counters(encoder, "pilothouse_http_requests", help, samples)?;
    let in_flight =
        all.iter().map(|(plugin, counts)| ([("plugin", plugin.as_str())], counts.in_flight.load(Ordering::Relaxed)));
    let help = "Requests of plugins to servers outside the cluster's API that are not answered yet";
    gauges(encoder, "pilothouse_http_requests_in_flight", help, in_flight)?;
    let bytes = |of: fn(&Counts) -> &AtomicU64| {
        let count = move |counts: &Counts| of(counts).load(Ordering::Relaxed);
        all.iter().map(move |(plugin, counts)| ([("plugin", plugin.as_str())], count(counts)))
    };
    let help = "Bytes of bodies that were sent, those of redirects included";
    counters(encoder, "pilothouse_http_sent_bytes", help, bytes(|counts| &counts.sent))?;
    let help = "Bytes of bodies that were received";
    counters(encoder, "pilothouse_http_received_bytes", help, bytes(|counts| &counts.received))
}
