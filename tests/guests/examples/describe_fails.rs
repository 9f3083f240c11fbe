//! Refuses every configuration.

use pilothouse_sdk::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {}

#[plugin]
fn describe_fails(Config {}: Config) -> Result<Plugin, Error> {
    Err(Error::terminal("nothing suits me"))
}
