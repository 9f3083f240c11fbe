//! For `bad-*`, calls itself forever, with 64 kB of its stack in linear memory for each call.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn recursing_wide() -> Plugin {
    apple::plugin("Recurses widely.", reconcile)
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
    let frame = std::hint::black_box([depth; 8 << 10]);
    let last = frame.last().copied().unwrap_or_default();
    if last == 0 { 0 } else { deeper(last + 1) ^ std::hint::black_box(last) }
}
