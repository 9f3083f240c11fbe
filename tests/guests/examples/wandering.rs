//! Asks for 64 watches of kinds that nobody serves, and for other ones in each call, for a MyApple whose name begins
//! with `bad-`. Is called again at once. For the color `many`, it asks for hundreds.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use std::time::Duration;

use pilothouse_guests::apple::{self, MyApple, Status, is_bad};
use pilothouse_sdk::prelude::*;

#[plugin]
fn wandering() -> Plugin {
    apple::plugin("Asks for something else each time.", reconcile)
        .permission(Permission::to(TypeMeta::new("*", "*")).verbs([Verb::Read]))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if !is_bad(apple) {
        return apple::well_behaved(ctx, apple);
    }
    let (count, now) = (if apple.spec.color == "many" { 500 } else { 64 }, ctx.now().as_millisecond());
    let watches = (0..count).map(|number| {
        let of = TypeMeta::new("wander.example.com/v1", format!("Kind{now}x{number}"));
        Watch::to(of).labels(format!("{}={number}", "l".repeat(60)))
    });
    let status = Status { available: 1, ..Status::default() };
    Ok(Outcome::new().watches(watches).status(status).requeue_after(Duration::from_millis(5)))
}
