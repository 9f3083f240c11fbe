//! For `bad-*` calls itself without end, with much on the stack that lies in its memory: that one is used up long before the engine's.

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

/// Uses what the deeper call gives, so that it is no loop in disguise.
#[inline(never)]
fn deeper(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 8 << 10]);
    let last = frame.last().copied().unwrap_or_default();
    if last == 0 { 0 } else { deeper(last + 1) ^ std::hint::black_box(last) }
}
