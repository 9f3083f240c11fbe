//! Maps ConfigMaps that it does not read, in the way that their label `by` says. Counts its calls in
//! `status.available`.
//!
//! | `by` | the ConfigMap concerns |
//! |---|---|
//! | `same-key` | the MyApple with the ConfigMap's name |
//! | `label` | the MyApple in its label `apple` |
//! | `any-owner` | the MyApples in its owner references |
//! | `index` | the MyApples whose `spec.color` is its name |
//! | `function` | the MyApples in its annotation `apples`, separated by spaces, found by the plugin's function |
//!
//! Used by `tests/e2e/suite/hooks.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, MyApple};
use pilothouse_sdk::prelude::*;

#[plugin]
fn mapping() -> Plugin {
    let by = |how: &str| Watch::of::<ConfigMap>().labels(format!("by={how}"));
    let controller = apple::counting()
        .watches_with(by("same-key"), Mapping::same_key())
        .watches_with(by("label"), Mapping::label("apple"))
        .watches_with(by("any-owner"), Mapping::any_owner())
        .watches_with(by("index"), Mapping::index("color"))
        .watches_with(by("function").when(Predicate::annotations()), Mapping::with(annotated))
        .reconcile(|_, apple| Ok(Outcome::new().status(apple::counted(apple))));
    Plugin::new("Is woken by mappings.").index::<MyApple>("color", "spec.color").controller(controller)
}

fn annotated(_: &Cache<'_>, change: &Change<ConfigMap>) -> Result<Vec<Key>, Error> {
    let annotations = change.sides().filter_map(|map| map.metadata.annotations.as_ref());
    let names = annotations.filter_map(|all| all.get("apples")).flat_map(|names| names.split_whitespace());
    Ok(names.map(|name| change.key().beside(name)).collect())
}
