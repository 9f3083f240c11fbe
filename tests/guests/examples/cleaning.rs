//! Keeps the finalizer `example.com/cleaning`. While the object lives, the ConfigMap `<name>-outside` exists, which is
//! no child. The cleanup deletes it, and fails while a ConfigMap `<name>-wall` exists.
//!
//! Reports in the condition `Held` whether the first call saw the finalizer. A call about a gone object panics.
//!
//! Used by `tests/e2e/suite/finalizers.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, Status, config_map};
use pilothouse_sdk::prelude::*;

const FINALIZER: &str = "example.com/cleaning";

#[plugin]
fn cleaning() -> Plugin {
    let controller = Controller::of::<MyApple>().finalizer(FINALIZER).reads::<ConfigMap>().reconcile(reconcile);
    Plugin::new("Cleans up.")
        .controller(controller)
        .permission(Permission::of::<ConfigMap>().verbs([Verb::Create, Verb::Delete]))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let outside = ctx.key().beside(format!("{}-outside", apple.name()));
    match ctx.phase() {
        Phase::Live => {
            let held = apple.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
            if ctx.cache().get::<ConfigMap>(&outside)?.is_none() {
                let mut map = config_map(&outside.name, &[("color", &apple.spec.color)]);
                map.metadata.namespace.clone_from(&outside.namespace);
                ctx.client().create(&map)?;
            }
            let mut conditions = apple.status.clone().unwrap_or_default().conditions;
            if conditions.get("Held").is_none() {
                conditions.set(ctx.condition("Held", held, "Looked", "whether the object had the finalizer"));
            }
            Ok(Outcome::new().status(Status { available: 1, conditions }))
        }
        Phase::Deleting => {
            if ctx.cache().get::<ConfigMap>(ctx.key().beside(format!("{}-wall", apple.name())))?.is_some() {
                return Err(Error::retry("the wall is there"));
            }
            match ctx.client().delete::<ConfigMap>(&outside) {
                Err(error) if !error.is_not_found() => Err(error.into()),
                _ => Ok(Outcome::new()),
            }
        }
        Phase::Gone => panic!("it was cleaned up before"),
    }
}
