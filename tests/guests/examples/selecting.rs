//! Reads Secrets by 250 selectors, each of which selects every one, and none of which covers another.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn selecting() -> Plugin {
    let mut controller = Controller::of::<MyApple>().owns::<ConfigMap>();
    for number in 0..250 {
        controller = controller.reads_with(Watch::of::<Secret>().labels(format!("!w{number}")));
    }
    Plugin::new("Wants everything, many times.").controller(controller.reconcile(|ctx, apple: &MyApple| {
        if is_bad(apple) {
            info!("selecting");
        }
        well_behaved(ctx, apple)
    }))
}
