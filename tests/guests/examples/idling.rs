//! Answers that all is as it should be without a look at what it is called with: what is left is the call itself.

#![cfg(target_arch = "wasm32")]

use pilothouse_guests::apple;
use pilothouse_sdk::{
    Arena, Plugin, contract,
    contract::exports::pilothouse::plugin::controller::{Children, Failure, Guest, Manifest, Outcome, Request},
    entry,
};

// As `#[plugin]` gives one.
#[global_allocator]
static ALLOCATOR: Arena = Arena::new();

struct Idling;

fn plugin() -> Plugin {
    Plugin::new("Is kept, and does nothing.")
        .reuse_instances()
        .controller(apple::counting().without_status().reconcile(|_, _| unreachable!("`reconcile` is the one below")))
}

impl Guest for Idling {
    fn describe(config: String) -> Result<Manifest, String> {
        entry::describe(&plugin, env!("CARGO_PKG_VERSION"), &config)
    }

    fn reconcile(_: String, _: Request) -> Result<Outcome, Failure> {
        Ok(Outcome { children: Children::Unchanged, status: None, requeue_after: None })
    }
}

contract::export!(Idling with_types_in contract);
