//! The engine alone: calls the contract's `reconcile` through the engine's own bindings, without the host.

use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use tokio::runtime::Builder;
use wasmtime::{
    Config, Engine, Store,
    component::{Component, Linker},
};
use wit_component::ComponentEncoder;

use self::bindings::{
    Plugin,
    exports::pilothouse::plugin::controller::{Children, Outcome, Phase, Request},
    pilothouse::plugin::types::KeyParam,
};
use crate::{
    clock::{micros_each, thread_time},
    statistics::median,
};

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::semicolon_if_nothing_returned, reason = "generated")]
mod bindings {
    wasmtime::component::bindgen!({
        world: "plugin",
        path: "../../wit",
        exports: { default: async },
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}

/// Imports that are never called.
const NEVER: u64 = 1 << 40;

/// Measures a call of a plugin for this deleted object, in microseconds.
///
/// All calls use one instance, with the host's epoch interruption, on an own stack, as in the host. The plugin is a
/// core module with a component's metadata and calls none of its imports.
pub(crate) fn call(plugin: &[u8], object: &str, calls: usize, passes: usize) -> Result<f64> {
    let mut encoder = ComponentEncoder::default();
    let component = encoder.module(plugin).and_then(|encoder| encoder.encode());
    let mut config = Config::new();
    config.epoch_interruption(true);
    let engine = Engine::new(&config)?;
    let component = Component::new(&engine, component.context("the plugin is no core module of a component")?)?;
    let mut linker = Linker::new(&engine);
    linker.define_unknown_imports_as_traps(&component)?;
    let mut store = Store::new(&engine, ());
    store.set_epoch_deadline(NEVER);
    let request = || Request {
        controller: "apples",
        key: KeyParam { namespace: Some("orchard"), name: "gala" },
        object,
        phase: Phase::Gone,
        attempt: 1,
        last_error: None,
    };
    Builder::new_current_thread().build().context("cannot start a runtime")?.block_on(async {
        let plugin = Plugin::instantiate_async(&mut store, &component, &linker).await?;
        let reconcile = plugin.pilothouse_plugin_controller();
        let mut times = Vec::with_capacity(passes);
        for _ in 0..passes {
            let start = thread_time();
            for _ in 0..calls {
                let answer = black_box(reconcile.call_reconcile(&mut store, "{}", request()).await?);
                let nothing = |outcome: &Outcome| matches!(outcome.children, Children::Unchanged);
                ensure!(answer.as_ref().is_ok_and(nothing), "the plugin answers {answer:?}");
            }
            times.push(micros_each(thread_time().saturating_sub(start), calls));
        }
        median(&times).context("there are no passes")
    })
}
