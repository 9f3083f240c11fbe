//! Calls `clock` while it describes itself. The host must reject it, because a description is pure.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

#![cfg(target_arch = "wasm32")]

use pilothouse_guests::apple;
use pilothouse_sdk::{contract::pilothouse::plugin::clock, prelude::*};

#[plugin]
fn describe_calls() -> Plugin {
    apple::plugin(&format!("Loaded at {}.", clock::now()), apple::well_behaved)
}
