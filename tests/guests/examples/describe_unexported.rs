//! Declares a mapping `plugin` and observes ConfigMaps, but exports neither `mapper` nor `observer`.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

#![cfg(target_arch = "wasm32")]

use pilothouse_guests::apple;
use pilothouse_sdk::{
    Error, Plugin, contract,
    contract::exports::pilothouse::plugin::controller::{
        Failure, Guest, Manifest, MappedWatch, Mapping, Outcome, Request,
    },
    entry,
};

struct Unexported;

fn plugin() -> Plugin {
    apple::plugin("Declares more than it exports.", apple::well_behaved)
}

impl Guest for Unexported {
    fn describe(config: String) -> Result<Manifest, String> {
        let mut manifest = entry::describe(&plugin, env!("CARGO_PKG_VERSION"), &config)?;
        for controller in &mut manifest.controllers {
            let watch = controller.owns.first().cloned().ok_or("nothing is owned")?;
            manifest.observes.push(watch.clone());
            controller.watches.push(MappedWatch { watch, mapping: Mapping::Plugin });
        }
        Ok(manifest)
    }

    fn reconcile(_: String, _: Request) -> Result<Outcome, Failure> {
        Err(Error::terminal("no host should load this").into())
    }
}

contract::export!(Unexported with_types_in contract);
