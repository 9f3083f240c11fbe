//! Says that it was called as soon as `reconcile` is entered, before it reads the object, and with which annotation `guests.example.com/mark` as
//! its text has it; and does nothing else.

#![cfg(target_arch = "wasm32")]

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::{
    Arena, Controller, Plugin, contract,
    contract::exports::pilothouse::plugin::controller::{Children, Failure, Guest, Manifest, Outcome, Request},
    entry, info,
};

const MARK: &str = "\"guests.example.com/mark\":\"";

/// As `#[plugin]` has it: Rust's usual one asks for memory in each call.
#[global_allocator]
static ALLOCATOR: Arena = Arena::new();

struct Entering;

fn plugin() -> Plugin {
    let nothing = |_: &_, _: &ConfigMap| Ok(pilothouse_sdk::Outcome::new());
    Plugin::new("Says when it is entered.").controller(Controller::of::<ConfigMap>().reconcile(nothing))
}

impl Guest for Entering {
    fn describe(config: String) -> Result<Manifest, String> {
        entry::describe(&plugin, env!("CARGO_PKG_VERSION"), &config)
    }

    fn reconcile(_: String, request: Request) -> Result<Outcome, Failure> {
        // Annotations come last.
        let (_, mark) = request.object.rsplit_once(MARK).unwrap_or_default();
        let (mark, _) = mark.split_once('"').unwrap_or_default();
        info!("called", mark = mark);
        Ok(Outcome { children: Children::Unchanged, status: None, requeue_after: None })
    }
}

contract::export!(Entering with_types_in contract);
