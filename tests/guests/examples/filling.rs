//! For `bad-*`, fills 32 MiB of memory sixteen times before it returns. Each time is one instruction, which the host
//! cannot interrupt.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use std::hint::black_box;

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn filling() -> Plugin {
    apple::plugin("Fills its memory.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) {
        info!("filling");
        let mut much = vec![0; 32 << 20];
        for value in 0..16_u8 {
            black_box(&mut much).fill(value);
        }
    }
    well_behaved(ctx, apple)
}
