//! For `bad-*`, panics, which is a trap.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn trapping() -> Plugin {
    apple::plugin("Panics.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    assert!(!is_bad(apple), "a bad apple");
    well_behaved(ctx, apple)
}
