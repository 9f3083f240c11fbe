//! For `bad-*`, reads the cache forever. Its timeout is 300 ms.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn asking() -> Plugin {
    // Short, because the test waits for it.
    let timeout = Duration::from_millis(300);
    Plugin::new("Reads the cache forever.")
        .controller(Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    while is_bad(apple) {
        // Existing objects, so that the host has something to copy.
        ctx.cache().get::<MyApple>(ctx.key())?;
        ctx.cache().list::<ConfigMap>().into_iter().next().transpose()?;
    }
    well_behaved(ctx, apple)
}
