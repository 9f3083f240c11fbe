//! Requests to the API server, by status and by plugin, and the connections that carry watches.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use pilothouse_core::permits::Usage;

use super::Cluster;
use crate::metrics::{self, DescriptorEncoder, Registry, counters, gauge, gauges};

/// What is counted of one API server.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// By code, method and host.
    requests: Mutex<BTreeMap<(String, String, String), u64>>,
    /// `true` once a request was answered.
    answered: AtomicBool,
    /// `true` once a request was not answered.
    unanswered: AtomicBool,
    watch_connections: Arc<AtomicUsize>,
}

/// An open connection that carries watches. Counted until it is dropped.
#[derive(Debug)]
pub(super) struct WatchConnection(Arc<AtomicUsize>);

impl WatchConnection {
    pub(super) fn count(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Self(connections.clone())
    }
}

impl Drop for WatchConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Traffic {
    /// Where connections that carry watches are counted.
    pub(super) fn watch_connections(&self) -> Arc<AtomicUsize> {
        self.watch_connections.clone()
    }

    /// Counts a request. `code` is the HTTP status, or `None` if no answer came.
    pub(super) fn requested(&self, method: &str, host: &str, code: Option<u16>) {
        let seen = if code.is_some() { &self.answered } else { &self.unanswered };
        // Read at each request, written twice in a host's life.
        if !seen.load(Ordering::Relaxed) {
            seen.store(true, Ordering::Relaxed);
        }
        // client-go writes this word where there is no code.
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        *self.requests.lock().entry((code, method.to_owned(), host.to_owned())).or_default() += 1;
    }

    fn never_answered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) && !self.answered.load(Ordering::Relaxed)
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let requests = self.requests.lock().clone();
        let samples = requests.iter().map(|((code, method, host), count)| {
            ([("code", code.as_str()), ("method", method), ("host", host)], *count)
        });
        let help = "Requests to the API server, by HTTP status, method and host";
        counters(encoder, "rest_client_requests", help, samples)?;
        let open = self.watch_connections.load(Ordering::Relaxed);
        let help = "Open connections that carry watches, to an API server that is reached over TLS and without a proxy";
        gauge(encoder, "pilothouse_watch_connections", help, open)
    }
}

impl Cluster {
    /// Returns `true` if the API server was asked, and has not answered a single request.
    pub fn never_answered(&self) -> bool {
        self.traffic.never_answered()
    }

    /// Returns what each plugin has under way. The host's own Events are under `(events)`.
    pub fn requests(&self) -> Vec<(Arc<str>, Usage)> {
        self.gate.usage()
    }
}

/// Registers the figures of `cluster`.
pub(crate) fn register(registry: &mut Registry, cluster: &Cluster) {
    let cluster = cluster.clone();
    metrics::register(registry, move |encoder| {
        cluster.traffic.encode(encoder)?;
        plugins(&cluster, encoder)
    });
}

fn plugins(cluster: &Cluster, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = cluster.requests();
    let each = || all.iter().map(|(plugin, usage)| ([("plugin", &**plugin)], usage));
    let in_flight = each().map(|(labels, usage)| (labels, usage.in_flight as u64));
    let help = "Writes and live reads of the plugin that the API server has not answered yet";
    gauges(encoder, "pilothouse_plugin_requests_in_flight", help, in_flight)?;
    let waiting = each().map(|(labels, usage)| (labels, usage.waiting as u64));
    let help =
        "Writes and live reads of the plugin that wait for their turn, for requestsPerSecond or for a Retry-After";
    gauges(encoder, "pilothouse_plugin_requests_waiting", help, waiting)?;
    let waited = each().map(|(labels, usage)| (labels, usage.waited));
    let help = "Writes and live reads of the plugin that had to wait before they were sent";
    counters(encoder, "pilothouse_plugin_requests_waited", help, waited)?;
    let throttled = each().map(|(labels, usage)| (labels, usage.throttled));
    let help = "Writes and live reads of the plugin that the API server refused with a Retry-After (429, 503)";
    counters(encoder, "pilothouse_plugin_requests_throttled", help, throttled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_code_method_and_host() {
        let traffic = Arc::<Traffic>::default();
        let mut registry = Registry::default();
        metrics::register(&mut registry, {
            let traffic = traffic.clone();
            move |encoder| traffic.encode(encoder)
        });
        traffic.requested("PATCH", "127.0.0.1:6443", None);
        assert!(traffic.never_answered());
        traffic.requested("GET", "127.0.0.1:6443", Some(200));
        traffic.requested("GET", "127.0.0.1:6443", Some(200));
        assert!(!traffic.never_answered());
        insta::assert_snapshot!(metrics::samples(&registry, "rest_client"), @r#"
        rest_client_requests_total{code="200",method="GET",host="127.0.0.1:6443"} 2
        rest_client_requests_total{code="<error>",method="PATCH",host="127.0.0.1:6443"} 1
        "#);
        let connection = WatchConnection::count(&traffic.watch_connections());
        assert_eq!(metrics::samples(&registry, "pilothouse"), "pilothouse_watch_connections 1");
        drop(connection);
        assert_eq!(metrics::samples(&registry, "pilothouse"), "pilothouse_watch_connections 0");
    }
}
