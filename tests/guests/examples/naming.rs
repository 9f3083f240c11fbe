//! For `bad-*` reads 900 ConfigMaps of the longest names that there are, none of which is there, and no two objects the same.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn naming() -> Plugin {
    apple::plugin("Wants to hear of what will never be.", reconcile)
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
