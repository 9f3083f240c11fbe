//! Has one child, the ConfigMap `<name>-fixed` with `immutable: true` and the data `quantity`. It may be replaced,
//! unless the color is `kept`.
//!
//! Used by `tests/e2e/suite/contract.rs`.

use pilothouse_guests::apple::{self, MyApple, Status, config_map};
use pilothouse_sdk::prelude::*;

#[plugin]
fn replacing() -> Plugin {
    apple::plugin("Replaces a ConfigMap.", reconcile)
}

fn reconcile(_: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let quantity = apple.spec.quantity.to_string();
    let mut fixed = config_map(&format!("{}-fixed", apple.name()), &[("quantity", &quantity)]);
    fixed.immutable = Some(true);
    let outcome = Outcome::new().status(Status { available: apple.spec.quantity, ..Status::default() });
    Ok(if apple.spec.color == "kept" { outcome.child(fixed) } else { outcome.replace(fixed) })
}
