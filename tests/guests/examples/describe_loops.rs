//! Never returns from `describe`.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use pilothouse_sdk::prelude::*;

#[plugin]
fn describe_loops() -> Plugin {
    loop {
        std::hint::black_box(0);
    }
}
