//! Writes the `motd` of its configuration into the ConfigMap `<name>-motd`.
//!
//! Used by `tests/e2e/suite/references.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, Status, config_map};
use pilothouse_sdk::prelude::*;
use serde::Deserialize;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    motd: String,
    #[serde(default)]
    signature: String,
}

#[plugin]
fn configured(config: Config) -> Result<Plugin, Error> {
    let controller = Controller::of::<MyApple>().owns::<ConfigMap>().reconcile(move |_: &Context, apple: &MyApple| {
        let data = [("motd", config.motd.as_str()), ("signature", &config.signature)];
        let status = Status { available: 1, ..Status::default() };
        Ok(Outcome::new().child(config_map(&format!("{}-motd", apple.name()), &data)).status(status))
    });
    Ok(Plugin::new("Copies its configuration.").controller(controller))
}
