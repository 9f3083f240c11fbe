//! Writes `spec.color`, with any characters, into a child, into the ConfigMap `<name>-applied` with the client, and
//! into a condition.
//!
//! Used by `tests/e2e/suite/text.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{self, MyApple, Status, config_map, found};
use pilothouse_sdk::prelude::*;

#[plugin]
fn spelling() -> Plugin {
    apple::plugin("Writes a text.", reconcile).permission(Permission::of::<ConfigMap>().verbs([Verb::Apply]))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if ctx.phase() != Phase::Live {
        return Ok(Outcome::new());
    }
    let color = &apple.spec.color;
    let map = |what: &str| {
        let mut map = config_map(&format!("{}-{what}", apple.name()), &[("text", color)]);
        map.metadata.namespace.clone_from(&ctx.key().namespace);
        map.metadata.annotations = Some([("guests.example.com/text".to_owned(), color.clone())].into());
        map
    };
    ctx.client().apply(&map("applied"))?;
    let mut status = Status { available: 1, conditions: apple.status.clone().unwrap_or_default().conditions };
    found(ctx, &mut status, "Spelled", color);
    Ok(Outcome::new().child(map("child")).status(status))
}
