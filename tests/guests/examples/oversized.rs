//! For `bad-*` asks the cache by more than there can be: `bad-1` by a selector of a hundred thousand requirements, all others by a name of
//! 1 MiB.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn oversized() -> Plugin {
    Plugin::new("Asks by too much.").controller(Controller::of::<MyApple>().owns::<ConfigMap>().reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) && apple.name() == "bad-1" {
        // Each object would meet all of them.
        let labels = (0..100_000).map(|number| format!("!a{number}")).collect::<Vec<_>>().join(",");
        ctx.cache().list::<ConfigMap>().beside(ctx.key()).labels(labels).into_iter().next().transpose()?;
    } else if is_bad(apple) {
        ctx.cache().get::<ConfigMap>(ctx.key().beside("x".repeat(1 << 20)))?;
    }
    well_behaved(ctx, apple)
}
