//! Computes for a while before it answers: longer for a larger `spec.quantity`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn slow() -> Plugin {
    // Long, so that a slow machine has the time that it takes.
    let timeout = Duration::from_secs(120);
    Plugin::new("Takes its time.")
        .controller(Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    // Some 5 to 10 ms each on a processor of today. A count and not a time, as time stands still for a plugin.
    for _ in 0..apple.spec.quantity {
        (0..2_000_000_u64).fold(0, |sum, i| std::hint::black_box(sum ^ i));
    }
    well_behaved(ctx, apple)
}
