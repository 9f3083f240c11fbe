//! Has as many controllers as a manifest may have. All but one are for ConfigMaps, and find nothing to do.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn sprawling() -> Plugin {
    let first = apple::plugin("Is as large as may be.", |ctx, apple| {
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
