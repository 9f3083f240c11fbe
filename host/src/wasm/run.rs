//! Runs plugins: the engine, its clock, and the instances of each revision.

pub(crate) mod component;
mod ending;
pub(crate) mod engine;
mod epochs;
pub(crate) mod instances;
pub(crate) mod revision;
pub(crate) mod tally;
