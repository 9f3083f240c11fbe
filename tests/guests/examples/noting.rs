//! Logs `called` with the name and the annotation `guests.example.com/mark` of each ConfigMap. Does nothing else.
//!
//! Used by `tests/bench/src/controllers/host.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::prelude::*;

#[plugin]
fn noting() -> Plugin {
    Plugin::new("Logs each call.").controller(Controller::of::<ConfigMap>().reconcile(reconcile))
}

fn reconcile(_: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
    let mark = map.metadata.annotations.as_ref().and_then(|annotations| annotations.get("guests.example.com/mark"));
    info!("called", name = map.name(), mark = mark.map_or("", String::as_str));
    Ok(Outcome::new())
}
