//! The host's functions, as the rest of the crate calls them: straight through the component's imports in the sandbox, to
//! the mock host of the running test natively.
//!
//! The two are chosen by target and not behind a trait object, so that a function that a plugin never calls is linked out
//! and does not appear among its component's imports.

#[cfg(not(target_arch = "wasm32"))]
#[path = "host/native.rs"]
mod imports;
#[cfg(target_arch = "wasm32")]
#[path = "host/sandbox.rs"]
mod imports;

pub(crate) use imports::*;
