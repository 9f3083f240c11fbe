//! For `bad-*`, never returns. Its timeout is 300 ms.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn looping() -> Plugin {
    // Short, because the test waits for it.
    let timeout = Duration::from_millis(300);
    Plugin::new("Loops forever.")
        .controller(Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) {
        loop {
            // The compiler cannot remove this, and it calls nothing in which the host could stop it.
            std::hint::black_box(apple);
        }
    }
    well_behaved(ctx, apple)
}
