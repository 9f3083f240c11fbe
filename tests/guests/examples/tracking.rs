//! For `bad-*`, reads ConfigMaps by 550 long selectors in each of four controllers. No two objects share a selector.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;
use serde::Deserialize;

/// The field that it reads of a ConfigMap.
#[derive(Deserialize)]
struct Nothing {}

#[plugin]
fn tracking() -> Plugin {
    let first = apple::plugin("Reads by long selectors.", |ctx, apple| {
        track(ctx, apple)?;
        well_behaved(ctx, apple)
    });
    ["second", "third", "fourth"].into_iter().fold(first, |plugin, name| {
        let controller = Controller::of::<MyApple>().named(name).without_status().reads::<ConfigMap>();
        plugin.controller(controller.reconcile(|ctx, apple: &MyApple| {
            track(ctx, apple)?;
            Ok(Outcome::new())
        }))
    })
}

fn track(ctx: &Context, apple: &MyApple) -> Result<(), Error> {
    if is_bad(apple) {
        info!("tracking");
        let prefix = vec!["a".repeat(60); 4].join(".");
        for number in 0..550 {
            let labels = format!("{prefix}/{}-{number}=v", apple.name());
            let list = ctx.cache().list::<ConfigMap>().beside(ctx.key()).labels(labels).page_size(1);
            list.fields::<Nothing>(["metadata.annotations"]).into_iter().next().transpose()?;
        }
    }
    Ok(())
}
