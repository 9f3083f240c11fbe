//! Reuses its instances, and returns an empty outcome without looking at the object. It measures the call itself.
//!
//! Used by `tests/bench/src/lines/calls.rs`.

#![cfg(target_arch = "wasm32")]

use pilothouse_guests::apple;
use pilothouse_sdk::{
    Arena, Plugin, contract,
    contract::exports::pilothouse::plugin::controller::{
        Children, Failure, Guest, Manifest, Outcome, Request, Watches,
    },
    entry,
};

// The same allocator as with `#[plugin]`.
#[global_allocator]
static ALLOCATOR: Arena = Arena::new();

struct Idling;

fn plugin() -> Plugin {
    Plugin::new("Reuses its instances, and does nothing.")
        .reuse_instances()
        .controller(apple::counting().without_status().reconcile(|_, _| unreachable!("`reconcile` is the one below")))
}

impl Guest for Idling {
    fn describe(config: String) -> Result<Manifest, String> {
        entry::describe(&plugin, env!("CARGO_PKG_VERSION"), &config)
    }

    fn reconcile(_: String, _: Request) -> Result<Outcome, Failure> {
        Ok(Outcome {
            children: Children::Unchanged,
            status: None,
            requeue_after: None,
            watches: Watches::Unchanged,
            events: Vec::new(),
        })
    }
}

contract::export!(Idling with_types_in contract);
