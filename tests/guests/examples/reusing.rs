//! Reuses its instances, and does about as much as `myapple` does for one child.
//!
//! Used by `tests/bench/src/lines/calls.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, MyApple, Status, config_map};
use pilothouse_sdk::prelude::*;

#[plugin]
fn reusing() -> Plugin {
    Plugin::new("Reuses its instances.")
        .reuse_instances()
        .controller(apple::counting().owns::<ConfigMap>().reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        return Ok(Outcome::new());
    }
    let child = config_map(&format!("{}-0", apple.name()), &[("color", &apple.spec.color)]);
    let found = ctx.cache().get::<ConfigMap>(ctx.key().beside(child.name()))?;
    let available = u32::from(found.is_some_and(|found| found.is_controlled_by(apple)));
    let mut conditions = apple.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    conditions.set(ctx.condition("Ready", available == 1, "Counted", format!("{available} available")));
    Ok(Outcome::new().child(child).status(Status { available, conditions }))
}
