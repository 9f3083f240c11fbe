//! Observes ConfigMaps with the label `mistake`, and makes that mistake. Its reconciles behave well.
//!
//! | `mistake` | |
//! |---|---|
//! | `trap` | panics |
//! | `loop` | never returns |
//! | `fail` | fails, every time |
//! | `relief` | fails until the ConfigMap `<name>-relief` is in the cache |
//! | any other | logs `observed` |
//!
//! Used by `tests/e2e/suite/hooks.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, well_behaved};
use pilothouse_sdk::prelude::*;

#[plugin]
fn observing_badly() -> Plugin {
    let controller = Controller::of::<apple::MyApple>().owns::<ConfigMap>().reconcile(well_behaved);
    Plugin::new("Observes badly.").observe(Watch::of::<ConfigMap>().labels("mistake"), observe).controller(controller)
}

fn observe(host: &ObserverContext, observed: &Observed<ConfigMap>) -> Result<(), Error> {
    let (key, latest) = (observed.change.key(), observed.change.latest());
    let labels = latest.metadata.labels.as_ref();
    match labels.and_then(|labels| labels.get("mistake")).map_or("", String::as_str) {
        "trap" => panic!("a bad observer"),
        "loop" => loop {
            std::hint::black_box(observed);
        },
        "fail" => return Err(Error::retry("this is not worth seeing")),
        "relief" if host.cache().get::<ConfigMap>(key.beside(format!("{}-relief", key.name)))?.is_none() => {
            return Err(Error::retry("nobody came to help"));
        }
        _ => info!("observed", key = key),
    }
    Ok(())
}
