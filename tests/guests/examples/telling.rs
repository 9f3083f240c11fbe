//! Has one child, and reports on itself and on the child when it becomes ripe. It reads the child, so that the host
//! postpones the status of the first call.
//!
//! Used by `tests/e2e/suite/events.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, Status, config_map};
use pilothouse_sdk::prelude::*;

#[plugin]
fn telling() -> Plugin {
    let controller = Controller::of::<MyApple>().owns::<ConfigMap>().events().reconcile(reconcile);
    Plugin::new("Reports transitions.").controller(controller)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let core = config_map(&format!("{}-core", apple.name()), &[("color", &apple.spec.color)]);
    let key = ctx.key().beside(core.name());
    let is_there = ctx.cache().get::<ConfigMap>(&key)?.is_some();
    let mut conditions = apple.status.clone().unwrap_or_default().conditions;
    let was_ripe = conditions.is_true("Ripe");
    conditions.set(ctx.condition("Ripe", true, "Ripened", "it is ripe"));
    let outcome = Outcome::new().child(core).status(Status { available: u32::from(is_there), conditions });
    if was_ripe {
        return Ok(outcome);
    }
    let held = Event::normal("Held", "an apple holds it").about::<ConfigMap>(key);
    let secret =
        Event::warning("Seen", "it cannot be").about_a(pilothouse_sdk::TypeMeta::new("v1", "Secret"), ctx.key());
    Ok(outcome.event(Event::normal("Ripened", "it is ripe")).events([held, secret]))
}
