//! Prints, reads the clock, draws random numbers, and fails in the way that the object asks for.
//!
//! Only for `wasm32-wasip2`, where the standard library has all of that.
//!
//! Used by `tests/e2e/languages/toolchains.rs`.

use std::{
    collections::hash_map::RandomState,
    fs::File,
    hash::BuildHasher as _,
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::prelude::*;

#[plugin]
fn probing() -> Plugin {
    println!("described");
    Plugin::new("A probe in Rust.").controller(Controller::of::<ConfigMap>().without_status().reconcile(reconcile))
}

fn reconcile(_: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
    let data = map.data.clone().unwrap_or_default();
    let Some(name) = data.get("probe") else { return Ok(Outcome::new()) };
    eprintln!("a warning");
    match data.get("fail").map(String::as_str) {
        Some("returned") => return Err(Error::retry("no pears left")),
        Some("thrown") => panic!("no apples left"),
        _ => {}
    }
    let before = Instant::now();
    sleep(Duration::from_secs(3600));
    let slept = before.elapsed().as_secs_f64();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs_f64();
    let [unique, random] = [(); 2].map(|()| RandomState::new().hash_one(0));
    let files = File::open("/etc/passwd").map_or_else(|error| error.kind().to_string(), |_| "opened".to_owned());
    println!(
        r#"result of {name}: {{"time": {time}, "slept": {slept}, "unique": {unique}, "random": {random}, "files": "{files}"}}"#
    );
    Ok(Outcome::new())
}
