//! Reads a ConfigMap by name, ConfigMaps by label, and a Secret that may not exist. Counts its successful calls in
//! `status.available`.
//!
//! | condition | message |
//! |---|---|
//! | `Named` | `data.color` of the ConfigMap `<name>-settings`, or `absent` |
//! | `Labelled` | the names of the ConfigMaps with the label `for=<name>`, in order |
//! | `Fields` | `data.color` of each of these |
//! | `Absent` | whether the Secret `<name>-token` is `present` or `absent` |
//!
//! For the color `failing`, it also reads the Secret `<name>-other`, and fails.
//!
//! Used by `tests/e2e/suite/reads.rs`.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use pilothouse_guests::apple::{self, MyApple, found};
use pilothouse_sdk::prelude::*;
use serde_json::Value;

#[plugin]
fn reading() -> Plugin {
    let controller = apple::counting().reads::<ConfigMap>().reads::<Secret>().reconcile(reconcile);
    Plugin::new("Reports what it reads.").controller(controller)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let (cache, key) = (ctx.cache(), |suffix: &str| ctx.key().beside(format!("{}-{suffix}", apple.name())));
    if apple.spec.color == "failing" {
        cache.get::<Secret>(key("other"))?;
        return Err(Error::terminal("it was told to fail"));
    }
    let color = |map: ConfigMap| map.data.unwrap_or_default().remove("color");
    let named = cache.get::<ConfigMap>(key("settings"))?.map_or("absent".into(), |map| color(map).unwrap_or_default());

    let list = || cache.list::<ConfigMap>().beside(ctx.key()).labels(format!("for={}", apple.name()));
    let names = list().keys().map(|key| key.map(|key| key.name)).collect::<Result<Vec<_>, _>>()?;
    let fields = list().fields::<Value>(["data.color"]).into_iter();
    let colors = fields
        .map(|map| map.map(|map| map["data"]["color"].as_str().unwrap_or("none").to_owned()))
        .collect::<Result<Vec<_>, _>>()?;
    let token = if cache.get::<Secret>(key("token"))?.is_some() { "present" } else { "absent" };

    let mut status = apple::counted(apple);
    found(ctx, &mut status, "Named", named);
    found(ctx, &mut status, "Labelled", names.join(" "));
    found(ctx, &mut status, "Fields", colors.join(" "));
    found(ctx, &mut status, "Absent", token);
    Ok(Outcome::new().status(status))
}
