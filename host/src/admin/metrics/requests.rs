//! What plugins have under way at the API server.

use std::fmt;

use pilothouse_core::permits::Usage;
use prometheus_client::encoding::DescriptorEncoder;

use super::encode::{counters, gauges};

/// A plugin's requests to the API server. The host's own Events are under `(events)`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests {
    /// The plugin.
    pub plugin: String,
    /// What it has under way, and has had.
    pub usage: Usage,
}

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, requests: &[Requests]) -> fmt::Result {
    let each = || requests.iter().map(|of| ([("plugin", of.plugin.as_str())], of.usage));
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
