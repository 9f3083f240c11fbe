//! Tries what it was not granted, and reports each result in a condition. `True` means that it was denied.
//!
//! The manifest asks for part of it, and the administrator's file does not grant it. The manifest does not ask for the
//! rest.
//!
//! Used by `tests/e2e/suite/grants.rs`.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use pilothouse_guests::apple::{MyApple, Status, config_map};
use pilothouse_sdk::{
    cache,
    client::{self, Patch},
    prelude::*,
};
use serde_json::json;

#[plugin]
fn trespasser() -> Plugin {
    let controller = Controller::of::<MyApple>().owns::<ConfigMap>().reconcile(reconcile);
    Plugin::new("Tries what it was not granted.")
        .controller(controller)
        .permission(Permission::of::<Secret>().verbs([Verb::Read]))
        .permission(Permission::of::<ConfigMap>().verbs([Verb::Create, Verb::Update]))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let (client, cache) = (ctx.client(), ctx.cache());
    let namespace = ctx.key().namespace.clone().unwrap_or_default();
    let key = || ctx.key().beside("stolen");
    let mut map = config_map("stolen", &[]);
    map.metadata.namespace.clone_from(&ctx.key().namespace);
    let patch = Patch::merge(json!({"data": {"stolen": "yes"}}))?;

    let mut conditions = apple.status.clone().unwrap_or_default().conditions;
    let mut steps = 0;
    for (name, told) in [
        // In the manifest, but not granted.
        ("CacheGetSecret", read(cache.get::<Secret>(key()))),
        ("CacheListSecret", read(cache.list::<Secret>().namespace(namespace).into_iter().next().transpose())),
        ("ClientGetSecret", wrote(client.get::<Secret>(key()))),
        ("CreateConfigMap", wrote(client.create(&map))),
        ("UpdateConfigMap", wrote(client.update(&map))),
        ("ApplyConfigMap", wrote(client.apply(&map))),
        ("DeleteConfigMap", wrote(client.delete::<ConfigMap>(key()))),
        // Not in the manifest.
        ("PatchConfigMap", wrote(client.patch::<ConfigMap>(key(), &patch))),
        ("UpdateMyApple", wrote(client.update(apple))),
        ("DeleteMyApple", wrote(client.delete::<MyApple>(ctx.key()))),
        ("ScaleMyApple", wrote(client.scale::<MyApple>(ctx.key(), 99))),
        ("CacheGetNamespace", read(cache.get::<Namespace>(Key::cluster("default")))),
        ("ClientGetNamespace", wrote(client.get::<Namespace>(Key::cluster("default")))),
        ("DeleteNamespace", wrote(client.delete::<Namespace>(Key::cluster("default")))),
    ] {
        let (denied, reason, message) = told;
        steps += u32::from(denied);
        conditions.set(ctx.condition(name, denied, reason, message));
    }
    info!("denied", steps = steps);
    Ok(Outcome::new().status(Status { available: 1, conditions }))
}

type Told = (bool, &'static str, String);

fn read<T>(answer: Result<Option<T>, cache::Error>) -> Told {
    match answer {
        Ok(_) => (false, "Allowed", "it worked".to_owned()),
        Err(cache::Error::NotGranted(why)) => (true, "NotGranted", why),
        Err(error) => (false, "Failed", error.to_string()),
    }
}

fn wrote<T>(answer: Result<T, client::Error>) -> Told {
    match answer {
        Ok(_) => (false, "Allowed", "it worked".to_owned()),
        Err(client::Error::NotGranted(why)) => (true, "NotGranted", why),
        Err(error) => (false, "Failed", error.to_string()),
    }
}
