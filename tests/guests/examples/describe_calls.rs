//! Asks for the time while it describes itself, though a description is pure.

#![cfg(target_arch = "wasm32")]

use pilothouse_guests::apple;
use pilothouse_sdk::{contract::pilothouse::plugin::clock, prelude::*};

#[plugin]
fn describe_calls() -> Plugin {
    apple::plugin(&format!("Loaded at {}.", clock::now()), apple::well_behaved)
}
