//! Maps ConfigMaps with the label `mistake`, and makes that mistake. Counts its calls in `status.available`.
//!
//! | `mistake` | |
//! |---|---|
//! | `trap` | panics |
//! | `loop` | never returns; the timeout is 300 ms |
//! | `fail` | fails, every time |
//! | `flood` | returns a million keys |
//! | `nowhere` | returns an object that does not exist, and a namespace that is not valid |
//! | any other | returns the MyApple with the ConfigMap's name |
//!
//! Used by `tests/e2e/suite/hooks.rs`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple;
use pilothouse_sdk::prelude::*;

#[plugin]
fn mapping_badly() -> Plugin {
    let controller = apple::counting()
        .timeout(Duration::from_millis(300))
        .watches_with(Watch::of::<ConfigMap>().labels("mistake"), Mapping::with(map))
        .reconcile(|_, apple| Ok(Outcome::new().status(apple::counted(apple))));
    Plugin::new("Maps badly.").controller(controller)
}

fn map(_: &Cache<'_>, change: &Change<ConfigMap>) -> Result<Vec<Key>, Error> {
    let key = change.key();
    let labels = change.latest().metadata.labels.as_ref();
    match labels.and_then(|labels| labels.get("mistake")).map_or("", String::as_str) {
        "trap" => panic!("a bad mapping"),
        "loop" => loop {
            std::hint::black_box(change);
        },
        "fail" => Err(Error::retry("this ConfigMap suits nobody")),
        "flood" => Ok((0..1_000_000).map(|i| key.beside(format!("{}-{i}", key.name))).collect()),
        "nowhere" => Ok(vec![key.beside("nowhere"), Key::new("No Namespace!", "No Name!"), Key::cluster("nowhere")]),
        _ => Ok(vec![key]),
    }
}
