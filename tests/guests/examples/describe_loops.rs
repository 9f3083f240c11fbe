//! Never ends describing itself.

use pilothouse_sdk::prelude::*;

#[plugin]
fn describe_loops() -> Plugin {
    loop {
        std::hint::black_box(0);
    }
}
