//! Compiled code: what is made, found and held.

use std::{fmt, time::Duration};

use prometheus_client::encoding::DescriptorEncoder;

use super::encode::{counters, gauges};

/// What was compiled or found, since the start, and what is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// What each compiler has done.
    pub compilers: [Compiles; 2],
    /// Files whose code was in the cache.
    pub hits: u64,
    /// Files whose code was not.
    pub misses: u64,
    /// Damaged files of the cache.
    pub rejected: u64,
    /// Different contents of plugins' files.
    pub loaded: usize,
    /// Of these in memory.
    pub mapped: usize,
    /// Of all of them not optimized yet.
    pub unoptimized: usize,
    /// Places of the pool that are free, and that instances have; none: there is no pool.
    pub slots: Option<[usize; 2]>,
}

/// What one compiler has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compiles {
    /// How well it compiles.
    pub tier: &'static str,
    /// Files that were compiled.
    pub compiled: u64,
    /// Files that could not be.
    pub failed: u64,
    /// Time for both.
    pub took: Duration,
}

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, code: &Code) -> fmt::Result {
    let compiles = code.compilers.iter().flat_map(|of| {
        let results = [("success", of.compiled), ("error", of.failed)];
        results.map(|(result, n)| ([("tier", of.tier), ("result", result)], n))
    });
    counters(encoder, "pilothouse_compiles", "Plugins' files that were compiled", compiles)?;
    let seconds = code.compilers.iter().map(|of| ([("tier", of.tier)], of.took.as_secs_f64()));
    counters(encoder, "pilothouse_compile_seconds", "Time that compiling took", seconds)?;
    let lookups = [("hit", code.hits), ("miss", code.misses), ("rejected", code.rejected)];
    counters(
        encoder,
        "pilothouse_code_cache",
        "Files whose compiled code was in the cache, was not, or was damaged",
        lookups.map(|(result, n)| ([("result", result)], n)).into_iter(),
    )?;
    let loaded = [([], code.loaded as u64)];
    gauges(encoder, "pilothouse_code_loaded", "Different contents of plugins' files", loaded.into_iter())?;
    let mapped = [([], code.mapped as u64)];
    gauges(encoder, "pilothouse_code_mapped", "Of these in memory: called of late", mapped.into_iter())?;
    let unoptimized = [([], code.unoptimized as u64)];
    let help = "Of those that are loaded compiled by the baseline compiler, and not optimized yet";
    gauges(encoder, "pilothouse_code_unoptimized", help, unoptimized.into_iter())?;
    let slots = code.slots.into_iter().flat_map(|[free, used]| [("free", free), ("used", used)]);
    let slots = slots.map(|(state, n)| ([("state", state)], n as u64));
    gauges(encoder, "pilothouse_pool_slots", "Places for instances that need not be made from nothing", slots)
}
