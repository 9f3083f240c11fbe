//! For `bad-*`, reads from the API server forever, for 256 objects at the same time. Its timeout is 300 ms.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn flooding_requests() -> Plugin {
    // Short, because the test waits for it.
    let timeout = Duration::from_millis(300);
    let controller = Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).max_concurrency(256);
    Plugin::new("Floods the API server with reads.").controller(controller.reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    while is_bad(apple) {
        // An existing object, so that there is an answer to transfer.
        let _ = std::hint::black_box(ctx.client().get::<MyApple>(ctx.key()));
    }
    well_behaved(ctx, apple)
}
