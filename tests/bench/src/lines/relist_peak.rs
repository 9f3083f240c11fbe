//! Peak memory during a relist, relative to the settled cache.

use anyhow::Result;

use super::cache::Cache;
use crate::memory::{held_here, peak, reset_peak};

const OBJECTS: u64 = 100_000;

/// Peak divided by the settled size: once with no change, and once with every object changed. The relist uses pages,
/// which hold more at once than a streaming list.
pub(super) fn measure() -> Result<Vec<f64>> {
    let before = held_here()?;
    let (mut cache, first) = Cache::new(false)?;
    cache.pages(first, OBJECTS, 1)?;
    // Only one relist: memory that the allocator keeps of a first one would make the second look better.
    let settled = held_here()?.saturating_sub(before);
    let mut ratios = Vec::new();
    for from in [1, OBJECTS + 1] {
        reset_peak()?;
        let request = cache.expire()?;
        cache.pages(request, OBJECTS, from)?;
        ratios.push(peak()?.saturating_sub(before) as f64 / settled as f64);
    }
    Ok(ratios)
}
