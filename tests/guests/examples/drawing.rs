//! For `bad-1`, draws random numbers forever. For `bad-2`, asks for 4 GiB of them at once. Its timeout is 300 ms.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

#![cfg(target_arch = "wasm32")]

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::{contract::pilothouse::plugin::random, prelude::*};

#[plugin]
fn drawing() -> Plugin {
    // Short, because the test waits for it.
    let timeout = Duration::from_millis(300);
    Plugin::new("Draws random numbers forever.")
        .controller(Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let count = if apple.name() == "bad-1" { 64 << 10 } else { u32::MAX };
    while is_bad(apple) {
        std::hint::black_box(random::bytes(count));
    }
    well_behaved(ctx, apple)
}
