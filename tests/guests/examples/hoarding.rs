//! For `bad-*` reads ConfigMaps by 900 selectors before it answers, all of which select the same, and no two objects read by one of them.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn hoarding() -> Plugin {
    apple::plugin("Wants to hear of everything, many times.", reconcile)
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
