//! What a relist takes while it runs, over what the cache takes when all is quiet.

use anyhow::Result;

use super::cache::Cache;
use crate::memory::{held_here, peak, reset_peak};

const OBJECTS: u64 = 100_000;

/// The peak over the settled size, once where nothing has changed since and once where every object has. By pages: they hold more
/// at once than a streaming list.
pub(super) fn measure() -> Result<Vec<f64>> {
    let before = held_here()?;
    let (mut cache, first) = Cache::new(false)?;
    cache.pages(first, OBJECTS, 1)?;
    // Once: what the allocator keeps of the first relist is not to make the second look better.
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
