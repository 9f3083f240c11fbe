//! Reads Secrets by 250 selectors. Each selects all Secrets, and none covers another.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn selecting() -> Plugin {
    let mut controller = Controller::of::<MyApple>().owns::<ConfigMap>();
    for number in 0..250 {
        controller = controller.reads_with(Watch::of::<Secret>().labels(format!("!w{number}")));
    }
    Plugin::new("Reads by many selectors.").controller(controller.reconcile(|ctx, apple: &MyApple| {
        if is_bad(apple) {
            info!("selecting");
        }
        well_behaved(ctx, apple)
    }))
}
