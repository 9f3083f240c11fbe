//! For `bad-*` reads from the API server without end, over many objects at once.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn flooding_requests() -> Plugin {
    // Short, so that a test waits no longer than it must.
    let timeout = Duration::from_millis(300);
    let controller = Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).max_concurrency(256);
    Plugin::new("Floods the API server with reads.").controller(controller.reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    while is_bad(apple) {
        // What is there, so that there is an answer to carry.
        let _ = std::hint::black_box(ctx.client().get::<MyApple>(ctx.key()));
    }
    well_behaved(ctx, apple)
}
