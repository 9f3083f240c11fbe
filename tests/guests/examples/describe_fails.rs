//! Rejects every configuration.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use pilothouse_sdk::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {}

#[plugin]
fn describe_fails(Config {}: Config) -> Result<Plugin, Error> {
    Err(Error::terminal("nothing suits me"))
}
