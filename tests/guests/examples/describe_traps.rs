//! Panics while it describes itself.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use pilothouse_sdk::prelude::*;

#[plugin]
fn describe_traps() -> Plugin {
    panic!("I cannot put it into words")
}
