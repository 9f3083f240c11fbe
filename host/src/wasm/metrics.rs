//! Compiled code that is made, found and held, and the instances of each plugin.

use std::fmt;

use super::{CompileFigures, Engine, Figures, InstanceFigures, Tier};
use crate::metrics::{self, DescriptorEncoder, Registry, counters, gauge, gauges};

/// Registers the figures of `engine`.
pub(crate) fn register(registry: &mut Registry, engine: &Engine) {
    let engine = engine.clone();
    metrics::register(registry, move |encoder| {
        instances(&engine, encoder)?;
        code(&engine.figures(), encoder)
    });
}

fn instances(engine: &Engine, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = engine.instances();
    let each = |figure: fn(&InstanceFigures) -> u64| {
        all.iter().map(move |(plugin, of)| ([("plugin", plugin.as_str())], figure(of)))
    };
    let help = "Instances of the plugin that there are: they serve a call, or are kept for the next";
    gauges(encoder, "pilothouse_plugin_instances", help, each(|of| of.alive as u64))?;
    let help = "Instances that wait for the next call: reused or pre-warmed";
    gauges(encoder, "pilothouse_plugin_instances_kept", help, each(|of| of.kept as u64))?;
    counters(encoder, "pilothouse_plugin_instances_made", "Instances that were made", each(|of| of.made))?;
    let help = "Calls that were served by an instance that had served before";
    counters(encoder, "pilothouse_plugin_instances_reused", help, each(|of| of.reused))?;
    let help = "Calls that had to map the plugin's code first, as it was not called recently or never";
    counters(encoder, "pilothouse_plugin_code_mapped", help, each(|of| of.mapped))?;
    let computed = all.iter().map(|(plugin, of)| ([("plugin", plugin.as_str())], of.computed.as_secs_f64()));
    let help = "Wall time in which calls, and starts of pre-warmed instances, ran in the sandbox. Imports count, waiting does not";
    counters(encoder, "pilothouse_plugin_guest_seconds", help, computed)?;
    let help = "Memories, tables, functions and globals of the plugin's instances, what they handed over and the host still writes, and \
                what the host remembers for the plugin";
    gauges(encoder, "pilothouse_plugin_memory_bytes", help, each(|of| of.memory as u64))?;
    let help = "The most linear memory that one instance of the revision that serves has had, under its present limits";
    gauges(encoder, "pilothouse_plugin_memory_peak_bytes", help, each(|of| of.peak as u64))
}

fn code(code: &Figures, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let compilers = || [(Tier::Baseline, code.baseline), (Tier::Optimized, code.optimized)].into_iter();
    let compiles = compilers().flat_map(|(tier, CompileFigures { compiled, failed, .. })| {
        [("success", compiled), ("error", failed)].map(|(result, n)| ([("tier", tier.as_str()), ("result", result)], n))
    });
    counters(encoder, "pilothouse_compiles", "Plugins' files that were compiled", compiles)?;
    let seconds = compilers().map(|(tier, of)| ([("tier", tier.as_str())], of.took.as_secs_f64()));
    counters(encoder, "pilothouse_compile_seconds", "Time that compiling took", seconds)?;
    let lookups = [("hit", code.hits), ("miss", code.misses), ("rejected", code.rejected)];
    let lookups = lookups.into_iter().map(|(result, n)| ([("result", result)], n));
    let help = "Files whose compiled code was in the cache, was not, or was damaged";
    counters(encoder, "pilothouse_code_cache", help, lookups)?;
    gauge(encoder, "pilothouse_code_loaded", "Different contents of plugins' files", code.loaded)?;
    let help = "Different contents of plugins' files whose code is in memory, as it was called recently";
    gauge(encoder, "pilothouse_code_mapped", help, code.mapped)?;
    let help =
        "Different contents of plugins' files whose code the baseline compiler made, and that are not optimized yet";
    gauge(encoder, "pilothouse_code_unoptimized", help, code.unoptimized)?;
    let slots = code.slots.into_iter().flat_map(|[free, used]| [("free", free), ("used", used)]);
    let slots = slots.map(|(state, n)| ([("state", state)], n as u64));
    gauges(encoder, "pilothouse_pool_slots", "Slots of the instance pool, free and used", slots)
}
