//! For `bad-*`, reads 900 ConfigMaps with the longest possible names. None exists, and no two objects read the same.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn naming() -> Plugin {
    apple::plugin("Reads names that do not exist.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) {
        info!("naming");
        for number in 0..900 {
            let name = format!("{:x<253}", format!("{}-{number}-", apple.name()));
            ctx.cache().get::<ConfigMap>(ctx.key().beside(name))?;
        }
    }
    well_behaved(ctx, apple)
}
