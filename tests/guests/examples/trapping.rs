//! For `bad-*` panics, which is a trap.

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn trapping() -> Plugin {
    apple::plugin("Traps.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    assert!(!is_bad(apple), "a bad apple");
    well_behaved(ctx, apple)
}
