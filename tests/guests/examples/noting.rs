//! Says of each ConfigMap that it was called for it, before it does anything else; and does nothing else.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::prelude::*;

#[plugin]
fn noting() -> Plugin {
    Plugin::new("Notes.").controller(Controller::of::<ConfigMap>().reconcile(reconcile))
}

fn reconcile(_: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
    let mark = map.metadata.annotations.as_ref().and_then(|annotations| annotations.get("guests.example.com/mark"));
    info!("called", name = map.name(), mark = mark.map_or("", String::as_str));
    Ok(Outcome::new())
}
