//! Changes its child `<name>-steps` at each call, `spec.quantity` times in all. The status says how many of the changes
//! were written. Colors make it fail, panic or return nothing after the first call.
//!
//! Used by `tests/e2e/suite/contract.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, MyApple, config_map, found};
use pilothouse_sdk::prelude::*;

/// The key that counts the changes of the child.
const STEP: &str = "step";

#[plugin]
fn stepping() -> Plugin {
    apple::plugin("Changes its child at each call.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let name = format!("{}-steps", apple.name());
    let child = ctx.cache().get::<ConfigMap>(ctx.key().beside(&name))?;
    let taken = child.and_then(|child| child.data?.get(STEP)?.parse().ok()).unwrap_or(0);
    let step = apple.spec.quantity.min(taken + 1);
    match apple.spec.color.as_str() {
        "silent" if taken > 0 => return Ok(Outcome::new()),
        "failing" if taken > 0 => return Err(Error::retry("it has a child already")),
        "panicking" if taken > 0 => panic!("it has a child already"),
        _ => {}
    }
    let mut status = apple.status.clone().unwrap_or_default();
    status.available = step;
    found(ctx, &mut status, &format!("At{step}"), "");
    Ok(Outcome::new().child(config_map(&name, &[(STEP, &step.to_string())])).status(status))
}
