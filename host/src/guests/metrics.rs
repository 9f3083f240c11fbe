//! What each plugin uses of the guests' threads.

use std::fmt;

use super::Guests;
use crate::metrics::{self, DescriptorEncoder, Registry, counters, gauges};

/// Registers the figures of `guests`.
pub(crate) fn register(registry: &mut Registry, guests: &Guests) {
    let guests = guests.clone();
    metrics::register(registry, move |encoder| encode(&guests, encoder));
}

fn encode(guests: &Guests, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = guests.usage();
    let each = || all.iter().map(|(plugin, usage)| ([("plugin", plugin.as_str())], usage));
    let used = each().map(|(labels, usage)| (labels, usage.used.as_secs_f64()));
    let help = "Processor time on the guests' threads: calls, and what the host does for the plugin there, such as comparing its outcomes";
    counters(encoder, "pilothouse_plugin_cpu_seconds", help, used)?;
    let turns = each().map(|(labels, usage)| (labels, usage.turns));
    let help = "Times that a task of the plugin got one of the guests' threads";
    counters(encoder, "pilothouse_plugin_turns", help, turns)?;
    let waited = each().map(|(labels, usage)| (labels, usage.waited.as_secs_f64()));
    let help = "Time that tasks of the plugin were ready and waited for one of the guests' threads, all together";
    counters(encoder, "pilothouse_plugin_turn_wait_seconds", help, waited)?;
    let held = each().map(|(labels, usage)| (labels, usage.held));
    let help = "Times that a task of the plugin held one of the guests' threads for more than 1 ms and did not give way. A plugin that does \
                so again soon shares threads with others that do";
    counters(encoder, "pilothouse_plugin_turns_held", help, held)?;
    let waiting = each().map(|(labels, usage)| (labels, usage.waiting as u64));
    let help = "Tasks of the plugin that wait for one of the guests' threads";
    gauges(encoder, "pilothouse_plugin_waiting_tasks", help, waiting)
}
