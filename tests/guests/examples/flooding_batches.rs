//! For `bad-*`, sends 64 requests at once and lists the API server's objects forever, for 256 objects at the same time.
//! Its timeout is 300 ms.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::{client::Call, prelude::*};

#[plugin]
fn flooding_batches() -> Plugin {
    // Short, because the test waits for it.
    let timeout = Duration::from_millis(300);
    let controller = Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).max_concurrency(256);
    Plugin::new("Floods the API server with batches.").controller(controller.reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    while is_bad(apple) {
        let calls = (0..64).map(|_| Call::<MyApple>::get(ctx.key()));
        let _ = std::hint::black_box(ctx.client().all(calls));
        let _ = std::hint::black_box(ctx.client().list::<MyApple>().beside(ctx.key()).into_iter().count());
    }
    well_behaved(ctx, apple)
}
