//! For `bad-*`, calls itself forever.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn recursing() -> Plugin {
    apple::plugin("Recurses.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) {
        info!("came back", from = deeper(1));
    }
    well_behaved(ctx, apple)
}

/// Uses the result of the deeper call, so that the compiler cannot turn this into a loop.
#[inline(never)]
fn deeper(depth: u64) -> u64 {
    let depth = std::hint::black_box(depth);
    if depth == 0 { 0 } else { deeper(depth + 1) ^ std::hint::black_box(depth) }
}
