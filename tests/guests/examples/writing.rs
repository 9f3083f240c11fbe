//! For `bad-1`, writes lines to the stdout of WASI forever. For `bad-2`, writes a line to stderr that never ends. Its
//! timeout is 300 ms.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

#![cfg(target_arch = "wasm32")]
#![expect(missing_docs, reason = "generated code")]

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;
use wasi::cli::{stderr::get_stderr, stdout::get_stdout};

wit_bindgen::generate!({
    path: "../../host/wit/wasi.wit",
    world: "pilothouse:wasi/served",
    generate_all,
});

#[plugin]
fn writing() -> Plugin {
    // Short, because the test waits for it.
    let timeout = Duration::from_millis(300);
    Plugin::new("Writes to stdout and stderr forever.")
        .controller(Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) {
        let (stream, text) = match apple.name() {
            "bad-1" => (get_stdout(), "x\n".repeat(32 << 10)),
            _ => (get_stderr(), "x".repeat(64 << 10)),
        };
        while stream.write(text.as_bytes()).is_ok() {}
    }
    well_behaved(ctx, apple)
}
