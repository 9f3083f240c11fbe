//! Another revision of `myapple`: the same children, with `revision: "2"` in their data.
//!
//! Used by `tests/e2e/suite/reload.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, Status, config_map};
use pilothouse_sdk::prelude::*;

#[plugin]
fn second() -> Plugin {
    let controller = Controller::of::<MyApple>().owns::<ConfigMap>().max_concurrency(4).reconcile(reconcile);
    Plugin::new("Keeps a ConfigMap for each apple, and says which revision made it.").controller(controller)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        return Ok(Outcome::new());
    }
    let data = [("color", apple.spec.color.as_str()), ("size", &apple.spec.size), ("revision", "2")];
    let wanted: Vec<_> =
        (0..apple.spec.quantity).map(|i| config_map(&format!("{}-{i}", apple.name()), &data)).collect();
    let mut available = 0;
    for wanted in &wanted {
        let found = ctx.cache().get::<ConfigMap>(ctx.key().beside(wanted.name()))?;
        available += u32::from(found.is_some_and(|found| found.is_controlled_by(apple) && found.data == wanted.data));
    }
    let mut conditions = apple.status.clone().unwrap_or_default().conditions;
    let all = available == apple.spec.quantity;
    conditions.set(ctx.condition("Ready", all, "Counted", format!("{available} of {} available", apple.spec.quantity)));
    Ok(Outcome::new().children(wanted).status(Status { available, conditions }))
}
