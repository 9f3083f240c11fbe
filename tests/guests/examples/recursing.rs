//! For `bad-*` calls itself without end.

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

/// Uses what the deeper call gives, so that it is no loop in disguise.
#[inline(never)]
fn deeper(depth: u64) -> u64 {
    let depth = std::hint::black_box(depth);
    if depth == 0 { 0 } else { deeper(depth + 1) ^ std::hint::black_box(depth) }
}
