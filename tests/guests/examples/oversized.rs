//! For `bad-1`, queries the cache with a selector of 100,000 requirements. For other `bad-*`, reads a name of 1 MiB.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn oversized() -> Plugin {
    Plugin::new("Sends oversized queries.")
        .controller(Controller::of::<MyApple>().owns::<ConfigMap>().reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) && apple.name() == "bad-1" {
        // Each object matches all of them.
        let labels = (0..100_000).map(|number| format!("!a{number}")).collect::<Vec<_>>().join(",");
        ctx.cache().list::<ConfigMap>().beside(ctx.key()).labels(labels).into_iter().next().transpose()?;
    } else if is_bad(apple) {
        ctx.cache().get::<ConfigMap>(ctx.key().beside("x".repeat(1 << 20)))?;
    }
    well_behaved(ctx, apple)
}
