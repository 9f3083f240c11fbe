//! For `bad-*`, grows a table forever. Rust has no instruction for that, so the tests link a module to this one when
//! they read the file.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

#![cfg(target_arch = "wasm32")]
#![expect(unsafe_code, reason = "what another module has is declared")]

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[link(wasm_import_module = "table")]
unsafe extern "C" {
    /// Grows the table. Returns its former number of elements, or -1 if it cannot grow.
    safe fn grow(elements: u32) -> i32;
}

#[plugin]
fn tabulating() -> Plugin {
    apple::plugin("Grows a table forever.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    while is_bad(apple) {
        assert_ne!(grow(1000), -1, "the table is full");
    }
    well_behaved(ctx, apple)
}
