//! For `bad-1`, returns a status of 8 MiB. For other `bad-*`, returns children of 17 MiB.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn huge() -> Plugin {
    apple::plugin("Returns too much.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let outcome = well_behaved(ctx, apple)?;
    if !is_bad(apple) {
        return Ok(outcome);
    }
    if apple.metadata.name.as_deref() != Some("bad-1") {
        let much = "x".repeat(1 << 20);
        let children = (0..17).map(|number| apple::config_map(&format!("huge-{number}"), &[("much", &much)]));
        return Ok(children.fold(outcome, Outcome::child));
    }
    let mut conditions = Conditions::default();
    conditions.set(ctx.condition("Huge", true, "Huge", "x".repeat(8 << 20)));
    Ok(outcome.status(apple::Status { available: 1, conditions }))
}
