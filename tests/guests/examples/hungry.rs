//! For `bad-*`, allocates memory forever, and touches all of it.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn hungry() -> Plugin {
    apple::plugin("Allocates forever.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    while is_bad(apple) {
        eaten.push(vec![1; 1 << 20]);
        std::hint::black_box(&eaten);
    }
    well_behaved(ctx, apple)
}
