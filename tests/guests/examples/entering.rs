//! Logs `called` with the annotation `guests.example.com/mark`, before it decodes the object. Does nothing else.
//!
//! Used by `tests/bench/src/controllers/host.rs`.

#![cfg(target_arch = "wasm32")]

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::{
    Arena, Controller, Plugin, contract,
    contract::exports::pilothouse::plugin::controller::{
        Children, Failure, Guest, Manifest, Outcome, Request, Watches,
    },
    entry, info,
};

const MARK: &str = "\"guests.example.com/mark\":\"";

/// The same allocator as with `#[plugin]`: Rust's default one would request memory in each call.
#[global_allocator]
static ALLOCATOR: Arena = Arena::new();

struct Entering;

fn plugin() -> Plugin {
    let nothing = |_: &_, _: &ConfigMap| Ok(pilothouse_sdk::Outcome::new());
    Plugin::new("Logs when it is entered.").controller(Controller::of::<ConfigMap>().reconcile(nothing))
}

impl Guest for Entering {
    fn describe(config: String) -> Result<Manifest, String> {
        entry::describe(&plugin, env!("CARGO_PKG_VERSION"), &config)
    }

    fn reconcile(_: String, request: Request) -> Result<Outcome, Failure> {
        // The annotations are at the end of the text.
        let (_, mark) = request.object.rsplit_once(MARK).unwrap_or_default();
        let (mark, _) = mark.split_once('"').unwrap_or_default();
        info!("called", mark = mark);
        Ok(Outcome {
            children: Children::Unchanged,
            status: None,
            requeue_after: None,
            watches: Watches::Unchanged,
            events: Vec::new(),
        })
    }
}

contract::export!(Entering with_types_in contract);
