//! Adds 1 to `status.available` every 20 ms, until it is `spec.quantity`. Only `requeue-after` wakes it.
//!
//! Used by `tests/e2e/suite/contract.rs`.

use std::time::Duration;

use pilothouse_guests::apple::{MyApple, Status};
use pilothouse_sdk::prelude::*;

#[plugin]
fn counting() -> Plugin {
    Plugin::new("Counts up.").controller(Controller::of::<MyApple>().reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    const EVERY: Duration = Duration::from_millis(20);
    let status = apple.status.clone().unwrap_or_default();
    if status.available >= apple.spec.quantity {
        return Ok(Outcome::new());
    }
    // A change of the status also wakes the key. Only one call in each tick may count.
    let now = ctx.now().as_millisecond();
    let last =
        status.conditions.get("Counted").and_then(|counted| counted.message.parse::<i64>().ok()).unwrap_or_default();
    let due = last + i64::try_from(EVERY.as_millis())?;
    if now < due {
        return Ok(Outcome::new().requeue_after(Duration::from_millis(u64::try_from(due - now)?)));
    }
    let mut conditions = status.conditions;
    conditions.set(ctx.condition("Counted", true, "Tick", now.to_string()));
    Ok(Outcome::new().status(Status { available: status.available + 1, conditions }).requeue_after(EVERY))
}
