//! For `bad-*` makes a table larger without end. Rust has no instruction for that: it lies in a module of its own, which the tests link to
//! this one as they read the file.

#![cfg(target_arch = "wasm32")]
#![expect(unsafe_code, reason = "what another module has is declared")]

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

#[link(wasm_import_module = "table")]
unsafe extern "C" {
    /// Elements that the table had, or -1 where it is to be no larger.
    safe fn grow(elements: u32) -> i32;
}

#[plugin]
fn tabulating() -> Plugin {
    apple::plugin("Tabulates.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    while is_bad(apple) {
        assert_ne!(grow(1000), -1, "the table is full");
    }
    well_behaved(ctx, apple)
}
