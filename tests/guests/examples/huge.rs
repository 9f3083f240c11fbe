//! For `bad-1` answers with a status that is larger than any API server takes, for others that are bad with more children than an outcome may hold.

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
    if apple.metadata.name.as_deref() != Some("bad-1") {
        let much = "x".repeat(1 << 20);
        let children = (0..17).map(|number| apple::config_map(&format!("huge-{number}"), &[("much", &much)]));
        return Ok(children.fold(outcome, Outcome::child));
    }
    let mut conditions = Conditions::default();
    conditions.set(ctx.condition("Huge", true, "Huge", "x".repeat(8 << 20)));
    Ok(outcome.status(apple::Status { available: 1, conditions }))
}
