//! For `bad-*` answers with a status that no API server takes.

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn huge() -> Plugin {
    apple::plugin("Exaggerates.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let outcome = well_behaved(ctx, apple)?;
    if !is_bad(apple) {
        return Ok(outcome);
    }
    let mut conditions = Conditions::default();
    conditions.set(ctx.condition("Huge", true, "Huge", "x".repeat(8 << 20)));
    Ok(outcome.status(apple::Status { available: 1, conditions }))
}
