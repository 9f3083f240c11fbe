//! What plugins use of the guests' threads.

use std::fmt;

use pilothouse_core::fair::Usage;
use prometheus_client::encoding::DescriptorEncoder;

use super::encode::{counters, gauges};

/// A plugin's account with the threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// The plugin.
    pub plugin: String,
    /// What it has had.
    pub usage: Usage,
}

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, accounts: &[Account]) -> fmt::Result {
    let each = || accounts.iter().map(|account| ([("plugin", account.plugin.as_str())], account.usage));
    let used = each().map(|(labels, usage)| (labels, usage.used.as_secs_f64()));
    let help = "Processor time on the guests' threads: calls, and what the host does for the plugin there, such as comparing its outcomes";
    counters(encoder, "pilothouse_plugin_cpu_seconds", help, used)?;
    let turns = each().map(|(labels, usage)| (labels, usage.turns));
    counters(
        encoder,
        "pilothouse_plugin_turns",
        "Times that a task of the plugin got one of the guests' threads",
        turns,
    )?;
    let waited = each().map(|(labels, usage)| (labels, usage.waited.as_secs_f64()));
    let help = "Time that tasks of the plugin were ready and waited for one of the guests' threads, all together";
    counters(encoder, "pilothouse_plugin_turn_wait_seconds", help, waited)?;
    let held = each().map(|(labels, usage)| (labels, usage.held));
    let help = "Times that a task of the plugin held one of the guests' threads for more than 1 ms and did not give way: if it does so \
                again soon, it has threads of its own, with all others that do";
    counters(encoder, "pilothouse_plugin_turns_held", help, held)?;
    let waiting = each().map(|(labels, usage)| (labels, usage.waiting as u64));
    gauges(
        encoder,
        "pilothouse_plugin_waiting_tasks",
        "Tasks of the plugin that wait for one of the guests' threads",
        waiting,
    )
}
