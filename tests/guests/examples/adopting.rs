//! Takes over the existing ConfigMap `<name>-shared`, with data `adopted=yes`, as its child.
//!
//! Used by `tests/e2e/suite/contract.rs`.

use pilothouse_guests::apple::{self, MyApple, Status, config_map};
use pilothouse_sdk::prelude::*;

#[plugin]
fn adopting() -> Plugin {
    apple::plugin("Adopts a ConfigMap.", reconcile)
}

fn reconcile(_: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let shared = config_map(&format!("{}-shared", apple.name()), &[("adopted", "yes")]);
    Ok(Outcome::new().adopt(shared).status(Status { available: 1, ..Status::default() }))
}
