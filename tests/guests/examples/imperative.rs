//! Creates, patches and deletes `<name>-made` with the client. Reports in conditions whether the cache shows each write
//! within the same call.
//!
//! Used by `tests/e2e/suite/contract.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, MyApple, Status, config_map};
use pilothouse_sdk::{client::Patch, prelude::*};
use serde_json::json;

#[plugin]
fn imperative() -> Plugin {
    apple::plugin("Writes with the client.", reconcile)
        .permission(Permission::of::<ConfigMap>().verbs([Verb::Create, Verb::Patch]))
}

/// Leaves only its conditions behind, so it can be called any number of times.
fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        return Ok(Outcome::new());
    }
    let (client, cache) = (ctx.client(), ctx.cache());
    let key = ctx.key().beside(format!("{}-made", apple.name()));
    let step = |map: &ConfigMap| map.data.as_ref().and_then(|data| data.get("step").cloned());

    // An earlier call that was interrupted may have left this.
    match client.delete::<ConfigMap>(&key) {
        Err(error) if !error.is_not_found() => return Err(error.into()),
        _ => {}
    }
    let mut new = config_map(&key.name, &[("step", "created")]);
    new.metadata.namespace.clone_from(&key.namespace);
    let created = client.create(&new)?;
    let saw_create = cache.get::<ConfigMap>(&key)?.as_ref() == Some(&created);

    let patched = client.patch::<ConfigMap>(&key, &Patch::merge(json!({"data": {"step": "patched"}}))?)?;
    let saw_patch = cache.get::<ConfigMap>(&key)?.and_then(|map| step(&map)) == step(&patched);

    client.delete::<ConfigMap>(&key)?;
    let saw_delete = cache.get::<ConfigMap>(&key)?.is_none();

    let mut conditions = apple.status.clone().unwrap_or_default().conditions;
    for (name, saw) in [("SawCreate", saw_create), ("SawPatch", saw_patch), ("SawDelete", saw_delete)] {
        conditions.set(ctx.condition(name, saw, "Looked", "whether the cache showed the write at once"));
    }
    Ok(Outcome::new().status(Status { available: 1, conditions }))
}
