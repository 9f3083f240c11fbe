//! Runs plugins: the engine, its clock, instances, and calls.

mod ending;
pub(crate) mod engine;
mod epochs;
pub(crate) mod instances;
pub(crate) mod revision;
pub(crate) mod tally;
