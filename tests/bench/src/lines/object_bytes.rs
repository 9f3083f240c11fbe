//! Memory of a cached object beyond its own text.

use anyhow::Result;

use super::cache::Cache;
use crate::{memory::held_here, report::shown};

const OBJECTS: u64 = 100_000;

/// Memory divided by stripped JSON: as the kernel counts it, including what the allocator keeps, and as the store
/// counts it.
pub(super) fn measure() -> Result<Vec<f64>> {
    let (mut cache, _) = Cache::new(true)?;
    let before = held_here()?;
    cache.stream(OBJECTS)?;
    let held = held_here()?.saturating_sub(before);
    let stripped: usize = cache.store.iter().map(|object| object.json_len()).sum();
    let each = |bytes: usize| shown(bytes as f64 / OBJECTS as f64);
    eprintln!(
        "  {OBJECTS} objects: {} B of JSON each, {} B held, {} B counted",
        each(stripped),
        each(held),
        each(cache.store.bytes())
    );
    Ok(vec![held as f64 / stripped as f64, cache.store.bytes() as f64 / stripped as f64])
}
