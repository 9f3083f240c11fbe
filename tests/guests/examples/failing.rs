//! Fails as `spec.color` says: `retry` fails twice and then succeeds, and `terminal` is not retried.
//!
//! Used by `tests/e2e/suite/contract.rs`.

use pilothouse_guests::apple::{self, MyApple, Status, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn failing() -> Plugin {
    apple::plugin("Fails.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    match apple.spec.color.as_str() {
        "retry" if tried(apple) => Ok(Outcome::new()),
        "retry" if ctx.attempt() < 3 => Err(Error::retry(format!("attempt {} failed", ctx.attempt()))),
        "retry" => {
            let message = format!("attempt {}, last error: {}", ctx.attempt(), ctx.last_error().unwrap_or("none"));
            let mut conditions = Conditions::default();
            conditions.set(ctx.condition("Tried", true, "Tried", message));
            Ok(Outcome::new().status(Status { available: 1, conditions }))
        }
        "terminal" => {
            let status = Status { available: 7, conditions: Conditions::default() };
            Err(Error::terminal("this apple is beyond help").with_status(status))
        }
        _ => well_behaved(ctx, apple),
    }
}

/// Returns `true` if it has already succeeded. Its own status wakes it once more.
fn tried(apple: &MyApple) -> bool {
    apple.status.as_ref().is_some_and(|status| status.conditions.is_true("Tried"))
}
