//! Has 256 controllers, as many as a manifest may have. All but one are for ConfigMaps, and do nothing.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn sprawling() -> Plugin {
    let first = apple::plugin("Has as many controllers as possible.", |ctx, apple| {
        if is_bad(apple) {
            info!("sprawling");
        }
        well_behaved(ctx, apple)
    });
    (1..256).fold(first, |plugin, number| {
        let controller = Controller::of::<ConfigMap>().named(format!("maps-{number}")).without_status();
        plugin.controller(controller.reconcile(|_, _| Ok(Outcome::new())))
    })
}
