//! Observes ConfigMaps with the label `observed`. For each change, appends a line to `data.told` of the ConfigMap
//! `told` in the same namespace.
//!
//! A line is `added NAME VALUE`, `updated NAME OLD NEW` or `deleted NAME LAST`, where a value is `data.value`. It ends
//! with ` merged N` if several changes were merged, with ` missed` if the host did not see a deletion, and with `
//! initial` if the object was there at the start.
//!
//! Used by `tests/e2e/suite/hooks.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::config_map;
use pilothouse_sdk::prelude::*;

#[plugin]
fn observing() -> Plugin {
    Plugin::new("Writes down what it observes.")
        .observe(Watch::of::<ConfigMap>().labels("observed"), told)
        .permission(Permission::of::<ConfigMap>().verbs([Verb::Create, Verb::Update]))
}

fn told(host: &ObserverContext, observed: &Observed<ConfigMap>) -> Result<(), Error> {
    let value = |map: &ConfigMap| map.data.as_ref().and_then(|data| data.get("value")).cloned().unwrap_or_default();
    let name = observed.change.key().name;
    let mut line = match &observed.change {
        Change::Added(new) => format!("added {name} {}", value(new)),
        Change::Updated { old, new } => format!("updated {name} {} {}", value(old), value(new)),
        Change::Deleted(last) => format!("deleted {name} {}", value(last)),
    };
    if observed.merged > 1 {
        line.push_str(&format!(" merged {}", observed.merged));
    }
    if observed.missed {
        line.push_str(" missed");
    }
    if observed.initial {
        line.push_str(" initial");
    }
    let key = observed.change.key().beside("told");
    match host.client().get::<ConfigMap>(&key) {
        Ok(mut map) => {
            let told = map.data.get_or_insert_default().entry("told".to_owned()).or_default();
            told.push('\n');
            told.push_str(&line);
            host.client().update(&map)?;
        }
        Err(error) if error.is_not_found() => {
            let mut map = config_map("told", &[("told", &line)]);
            map.metadata.namespace = key.namespace;
            host.client().create(&map)?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
