//! For `bad-*` floods the log before it answers.

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn flooding() -> Plugin {
    apple::plugin("Talks.", reconcile)
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
