//! For `bad-*`, logs 20,000 lines of 1 kB before it returns.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn flooding() -> Plugin {
    apple::plugin("Floods the log.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) {
        let text = "x".repeat(1024);
        for i in 0..20_000 {
            info!("flood", i = i, text = text);
        }
    }
    well_behaved(ctx, apple)
}
