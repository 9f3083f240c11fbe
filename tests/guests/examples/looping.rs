//! For `bad-*` never returns.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn looping() -> Plugin {
    // Short, so that a test waits no longer than it must.
    let timeout = Duration::from_millis(300);
    Plugin::new("Loops.")
        .controller(Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) {
        loop {
            // Nothing that a compiler could take out, and no call that the host could stop it in.
            std::hint::black_box(apple);
        }
    }
    well_behaved(ctx, apple)
}
