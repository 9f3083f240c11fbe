//! For `bad-*`, writes to the API server forever, for 256 objects at the same time. Its timeout is 300 ms.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, config_map, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn flooding_writes() -> Plugin {
    // Short, because the test waits for it.
    let timeout = Duration::from_millis(300);
    let controller = Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout).max_concurrency(256);
    Plugin::new("Floods the API server with writes.").controller(controller.reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let mut number = 0_u64;
    while is_bad(apple) {
        let mut map = config_map(&format!("{}-flood", apple.name()), &[("number", &number.to_string())]);
        map.metadata.namespace.clone_from(&ctx.key().namespace);
        // Each write changes something, so that each is stored.
        let _ = std::hint::black_box(ctx.client().force_apply(&map));
        number += 1;
    }
    well_behaved(ctx, apple)
}
