//! Passes a counter through namespaces: a ConfigMap with `data.hops` above 0 writes one less to the ConfigMap of its
//! name in the namespace `data.next`.
//!
//! Used by `tests/bench/src/lines/ring.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_sdk::{client::Patch, prelude::*};
use serde_json::json;

#[plugin]
fn passing() -> Plugin {
    Plugin::new("Passes a counter on.")
        .controller(Controller::of::<ConfigMap>().reconcile(reconcile))
        .permission(Permission::of::<ConfigMap>().verbs([Verb::Patch]))
}

fn reconcile(ctx: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
    let of = |name: &str| map.data.as_ref().and_then(|data| data.get(name));
    let hops: u32 = of("hops").and_then(|hops| hops.parse().ok()).unwrap_or(0);
    if let (Some(next), 1..) = (of("next"), hops) {
        let mut key = ctx.key().clone();
        key.namespace = Some(next.clone());
        ctx.client().patch::<ConfigMap>(&key, &Patch::merge(json!({"data": {"hops": (hops - 1).to_string()}}))?)?;
    }
    Ok(Outcome::new())
}
