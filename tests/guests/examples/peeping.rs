//! Reads the cache beyond its namespace, its kinds and its indexes, and reports each result in a condition.
//!
//! The plugin is for one namespace, and also reads `<namespace>-other`. The condition `Everywhere` lists the namespaces
//! that a list without a namespace shows. The other conditions are true if the read failed as `NotGranted` or
//! `Invalid`.
//!
//! Used by `tests/e2e/suite/reads.rs`.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use pilothouse_guests::apple::{self, MyApple, Status, found};
use pilothouse_sdk::{cache::Error as ReadError, prelude::*};
use serde_json::Value;

#[plugin]
fn peeping() -> Plugin {
    let controller = apple::counting().reads::<ConfigMap>().reconcile(reconcile);
    Plugin::new("Reads what it should not.")
        .index::<ConfigMap>("color", "data.color")
        .index::<MyApple>("of-apples", "spec.color")
        .controller(controller)
        .permission(Permission::of::<Pod>().verbs([Verb::Read]))
}

fn reconcile(ctx: &Context, _: &MyApple) -> Result<Outcome, Error> {
    let cache = ctx.cache();
    let maps = || cache.list::<ConfigMap>();
    let other = format!("{}-other", ctx.key().namespace.as_deref().unwrap_or_default());
    let mut status = Status { available: 1, ..Status::default() };
    for (name, told) in [
        ("GetElsewhere", told(cache.get::<ConfigMap>(Key::new(other.as_str(), "m")).err())),
        ("ListElsewhere", told(maps().namespace(other.as_str()).into_iter().find_map(Result::err))),
        ("KeysElsewhere", told(maps().namespace(other.as_str()).keys().find_map(Result::err))),
        // In the manifest, but not cached.
        ("GetPod", told(cache.get::<Pod>(ctx.key()).err())),
        ("ListPod", told(cache.list::<Pod>().into_iter().find_map(Result::err))),
        ("NoIndex", told(maps().index("nothing", "red").keys().find_map(Result::err))),
        ("ForeignIndex", told(maps().index("of-apples", "red").keys().find_map(Result::err))),
        ("BadSelector", told(maps().labels("a in b").keys().find_map(Result::err))),
        ("BadPath", told(maps().fields::<Value>(["data..color"]).into_iter().find_map(Result::err))),
    ] {
        let (reason, message) = told;
        status.conditions.set(ctx.condition(name, reason != "Allowed", reason, message));
    }
    let seen: Result<BTreeSet<_>, _> =
        maps().keys().map(|key| key.map(|key| key.namespace.unwrap_or_default())).collect();
    found(ctx, &mut status, "Everywhere", seen?.into_iter().collect::<Vec<_>>().join(" "));
    Ok(Outcome::new().status(status))
}

fn told(error: Option<ReadError>) -> (&'static str, String) {
    match error {
        None => ("Allowed", "it worked".to_owned()),
        Some(ReadError::NotGranted(why)) => ("NotGranted", why),
        Some(ReadError::Invalid(why)) => ("Invalid", why),
        Some(error) => ("Failed", error.to_string()),
    }
}
