//! Keeps a ConfigMap for each apple that a `MyApple` asks for.
//!
//! A `MyApple` named `pie` with quantity 3 gets the ConfigMaps `pie-0`, `pie-1` and `pie-2` with its color and size.
//! The host creates them, sets them back when somebody edits them, and deletes the surplus. The plugin only returns
//! what should exist ([`reconcile`]), and counts in the cache what does exist (`available`).

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

/// Returns the children and the status of a `MyApple`.
///
/// # Errors
/// Fails if the cache cannot be read.
pub fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        // The garbage collector deletes the children with their owner.
        return Ok(Outcome::new());
    }
    let wanted: Vec<ConfigMap> = (0..apple.spec.quantity).map(|i| config_map(apple, i)).collect();
    let status = status(ctx, apple, available(ctx, apple, &wanted)?);
    Ok(Outcome::new().children(wanted).status(status))
}

/// Returns the ConfigMap of the apple with index `i`.
fn config_map(apple: &MyApple, i: i32) -> ConfigMap {
    let MyAppleSpec { color, size, .. } = &apple.spec;
    let data = [("color", color.as_str()), ("size", size.as_str())];
    ConfigMap {
        metadata: ObjectMeta { name: Some(format!("{}-{i}", apple.name())), ..ObjectMeta::default() },
        data: Some(data.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        ..ConfigMap::default()
    }
}

/// Counts the ConfigMaps of `wanted` that the cache has with the right content and owner.
fn available(ctx: &Context, apple: &MyApple, wanted: &[ConfigMap]) -> Result<i32, Error> {
    let mut available = 0;
    for wanted in wanted {
        let found = ctx.cache().get::<ConfigMap>(ctx.key().beside(wanted.name()))?;
        let fits = |found: &ConfigMap| found.is_controlled_by(apple) && includes(&found.data, &wanted.data);
        available += i32::from(found.as_ref().is_some_and(fits));
    }
    Ok(available)
}

/// Returns `true` if `found` has everything in `wanted`. Other writers may add more.
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
