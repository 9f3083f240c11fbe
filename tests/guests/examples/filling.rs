//! For `bad-*` fills 32 MiB sixteen times before it answers, each in one go, in which nothing makes it give way.

use std::hint::black_box;

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn filling() -> Plugin {
    apple::plugin("Fills its memory, and empties it.", reconcile)
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
