//! For `bad-*`, records 20,000 different Events of 2 kB, and returns as many as an outcome may hold.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn flooding_events() -> Plugin {
    let controller = Controller::of::<MyApple>().owns::<ConfigMap>().events().reconcile(reconcile);
    Plugin::new("Floods the cluster with Events.").controller(controller)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let outcome = well_behaved(ctx, apple)?;
    if !is_bad(apple) {
        return Ok(outcome);
    }
    let event = |number: usize| Event::warning(format!("Flood{number}"), "x".repeat(2048));
    for number in 0..20_000 {
        ctx.events().record(event(number))?;
    }
    Ok(outcome.events((0..256).map(event)))
}
