//! For `bad-*`, reads ConfigMaps by 900 selectors that all select the same. No two objects share a selector.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn hoarding() -> Plugin {
    apple::plugin("Reads by many selectors.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) {
        info!("hoarding");
        for number in 0..900 {
            let labels = format!("!{}-{number}", apple.name());
            ctx.cache().list::<ConfigMap>().beside(ctx.key()).labels(labels).page_size(1).keys().next().transpose()?;
        }
    }
    well_behaved(ctx, apple)
}
