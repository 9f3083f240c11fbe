//! Panics while it describes itself.

use pilothouse_sdk::prelude::*;

#[plugin]
fn describe_traps() -> Plugin {
    panic!("I cannot put it into words")
}
