//! Keeps a ConfigMap for each apple that a `MyApple` asks for.
//!
//! A `MyApple` of quantity 3 called `pie` gets the ConfigMaps `pie-0`, `pie-1` and `pie-2` with its color and size. The host
//! makes them, sets them back when somebody edits them, and deletes the surplus; this plugin only says what should be
//! ([`reconcile`]) and counts in the cache how much of it is (`available`).

mod resource;

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use pilothouse_sdk::prelude::*;
pub use resource::{MyApple, MyAppleSpec, MyAppleStatus, Size};

/// The plugin.
#[plugin]
pub fn myapple() -> Plugin {
    Plugin::new("Keeps a ConfigMap for each apple that a MyApple asks for.")
        .crd::<MyApple>()
        .controller(Controller::of::<MyApple>().owns::<ConfigMap>().max_concurrency(10).reconcile(reconcile))
}

/// What a `MyApple` asks for, as children and status.
///
/// # Errors
/// Where the cache cannot be read.
pub fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        // The children go with their owner: the garbage collector sees to it.
        return Ok(Outcome::new());
    }
    let wanted: Vec<ConfigMap> = (0..apple.spec.quantity).map(|i| config_map(apple, i)).collect();
    let status = status(ctx, apple, available(ctx, apple, &wanted)?);
    Ok(Outcome::new().children(wanted).status(status))
}

/// The ConfigMap for the apple of index `i`.
fn config_map(apple: &MyApple, i: i32) -> ConfigMap {
    let MyAppleSpec { color, size, .. } = &apple.spec;
    let data = [("color", color.as_str()), ("size", size.as_str())];
    ConfigMap {
        metadata: ObjectMeta { name: Some(format!("{}-{i}", apple.name())), ..ObjectMeta::default() },
        data: Some(data.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        ..ConfigMap::default()
    }
}

/// How many of `wanted` the cache has as they should be, and owned by this `MyApple`.
fn available(ctx: &Context, apple: &MyApple, wanted: &[ConfigMap]) -> Result<i32, Error> {
    let mut available = 0;
    for wanted in wanted {
        let found = ctx.cache().get::<ConfigMap>(ctx.key().beside(wanted.name()))?;
        let fits = |found: &ConfigMap| found.is_controlled_by(apple) && includes(&found.data, &wanted.data);
        available += i32::from(found.as_ref().is_some_and(fits));
    }
    Ok(available)
}

/// Whether everything in `wanted` is in `found`. What else is there is others' business.
fn includes(found: &Option<BTreeMap<String, String>>, wanted: &Option<BTreeMap<String, String>>) -> bool {
    let value = |key: &String| found.as_ref().and_then(|found| found.get(key));
    wanted.iter().flatten().all(|(key, wanted)| value(key) == Some(wanted))
}

fn status(ctx: &Context, apple: &MyApple, available: i32) -> MyAppleStatus {
    let quantity = apple.spec.quantity;
    let mut conditions = apple.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let counted = format!("{available} of {quantity} available");
    conditions.set(match ctx.last_error() {
        _ if available == quantity => ctx.condition("Ready", true, "AllAvailable", counted),
        None => ctx.condition("Ready", false, "Progressing", counted),
        Some(error) => ctx.condition("Ready", false, "WriteFailed", format!("{counted}: {error}")),
    });
    MyAppleStatus { available, conditions, observed_generation: apple.metadata.generation }
}
