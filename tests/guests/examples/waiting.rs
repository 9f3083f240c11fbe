//! For `bad-*`, sends requests to the API server forever, and waits for each answer. Its timeout is 300 ms.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn waiting() -> Plugin {
    // Short, because the test waits for it.
    let timeout = Duration::from_millis(300);
    Plugin::new("Sends requests forever.")
        .controller(Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    while is_bad(apple) {
        // The answer does not matter.
        let _ = std::hint::black_box(ctx.client().get::<ConfigMap>(ctx.key().beside("never")));
    }
    well_behaved(ctx, apple)
}
