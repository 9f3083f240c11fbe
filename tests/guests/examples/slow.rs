//! Computes for about 10 ms times `spec.quantity` before it returns.
//!
//! Used by `tests/e2e/suite/contract.rs`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn slow() -> Plugin {
    // Long, so that it suffices on a slow machine.
    let timeout = Duration::from_secs(120);
    Plugin::new("Computes slowly.")
        .controller(Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    // About 5 to 10 ms each on a processor of 2026. It counts, because the clock of a plugin does not advance.
    for _ in 0..apple.spec.quantity {
        (0..2_000_000_u64).fold(0, |sum, i| std::hint::black_box(sum ^ i));
    }
    well_behaved(ctx, apple)
}
