//! What plugins' calls are served by.

use std::{fmt, time::Duration};

use prometheus_client::encoding::DescriptorEncoder;

use super::encode::{counters, gauges};

/// A plugin's instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instances {
    /// The plugin.
    pub plugin: String,
    /// Those that there are.
    pub alive: usize,
    /// Of these there for the next call.
    pub kept: usize,
    /// That were made since the plugin was loaded.
    pub made: u64,
    /// Calls that were served by one that had served before.
    pub reused: u64,
    /// Calls that had to map the code first.
    pub mapped: u64,
    /// How long calls, and starts of instances ahead of them, ran in the sandbox.
    pub computed: Duration,
    /// Bytes of their memories and tables, of what they handed over and the host still writes, and of what the host remembers for the plugin.
    pub memory: usize,
    /// The most that one has had.
    pub peak: usize,
}

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, instances: &[Instances]) -> fmt::Result {
    let each = |of: fn(&Instances) -> u64| {
        instances.iter().map(move |instances| ([("plugin", instances.plugin.as_str())], of(instances)))
    };
    let help = "Instances of the plugin that there are: they serve a call, or are kept for the next";
    gauges(encoder, "pilothouse_plugin_instances", help, each(|of| of.alive as u64))?;
    let help = "Of these there for the next call: kept from one before, or made ahead";
    gauges(encoder, "pilothouse_plugin_instances_kept", help, each(|of| of.kept as u64))?;
    counters(encoder, "pilothouse_plugin_instances_made", "Instances that were made", each(|of| of.made))?;
    let help = "Calls that were served by an instance that had served before";
    counters(encoder, "pilothouse_plugin_instances_reused", help, each(|of| of.reused))?;
    let help = "Calls that had to map the plugin's code first, as it was not called of late or never";
    counters(encoder, "pilothouse_plugin_code_mapped", help, each(|of| of.mapped))?;
    let computed =
        instances.iter().map(|instances| ([("plugin", instances.plugin.as_str())], instances.computed.as_secs_f64()));
    let help = "Wall time in which calls, and starts of instances ahead of them, ran in the sandbox, imports included, and not what they waited for";
    counters(encoder, "pilothouse_plugin_guest_seconds", help, computed)?;
    let help = "Memories, tables, functions and globals of the plugin's instances, what they handed over and the host still writes, and what the host remembers for the plugin";
    gauges(encoder, "pilothouse_plugin_memory_bytes", help, each(|of| of.memory as u64))?;
    let help = "The most linear memory that one instance of the revision that serves has had, under its present limits";
    gauges(encoder, "pilothouse_plugin_memory_peak_bytes", help, each(|of| of.peak as u64))
}
