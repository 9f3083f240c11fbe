//! Files of every sort of change, and what becomes of plugins.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

mod directory;
mod life;
mod references;
mod whole;
