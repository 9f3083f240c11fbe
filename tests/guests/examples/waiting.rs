//! For `bad-*` asks the API server for ever, and waits each time as long as the server takes.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn waiting() -> Plugin {
    // Short, so that a test waits no longer than it must.
    let timeout = Duration::from_millis(300);
    Plugin::new("Waits.")
        .controller(Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    while is_bad(apple) {
        // Whatever the answer is.
        let _ = std::hint::black_box(ctx.client().get::<ConfigMap>(ctx.key().beside("never")));
    }
    well_behaved(ctx, apple)
}
