//! Compiled code: what is made, found and held.

use std::{fmt, time::Duration};

use prometheus_client::encoding::DescriptorEncoder;

use super::encode::{counters, gauges};

/// What was compiled or found, since the start, and what is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// Files that were compiled.
    pub compiled: u64,
    /// Files that could not be.
    pub failed: u64,
    /// Time for both.
    pub compiling: Duration,
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
}

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, code: &Code) -> fmt::Result {
    let compiles = [("success", code.compiled), ("error", code.failed)].map(|(result, n)| ([("result", result)], n));
    counters(encoder, "pilothouse_compiles", "Plugins' files that were compiled", compiles.into_iter())?;
    let seconds = [([], code.compiling.as_secs_f64())];
    counters(encoder, "pilothouse_compile_seconds", "Time that compiling took", seconds.into_iter())?;
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
    gauges(encoder, "pilothouse_code_mapped", "Of these in memory: called of late", mapped.into_iter())
}
