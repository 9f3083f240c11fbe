//! What the guests share: `MyApple`, and the behavior of a well-behaved guest.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use pilothouse_sdk::{ControllerBuilder, prelude::*};
use serde::{Deserialize, Serialize};

/// The kind of most guests, with the fields that they need. The plugin `myapple` brings its definition.
#[derive(Debug, Object, Deserialize, Serialize)]
#[object(api_version = "stable.example.com/v1", kind = "MyApple")]
pub struct MyApple {
    /// The metadata.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: Spec,
    /// What a guest wrote before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// What a `MyApple` wants.
#[derive(Debug, Deserialize, Serialize)]
pub struct Spec {
    /// Any text. Some guests take it as an instruction.
    pub color: String,
    /// `small`, `medium` or `large`.
    pub size: String,
    /// 1 or more.
    pub quantity: u32,
}

/// The status that guests write.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Status {
    /// A number. Well-behaved guests write 1.
    #[serde(default)]
    pub available: u32,
    /// Results of the guest.
    #[serde(default, skip_serializing_if = "Conditions::is_empty")]
    pub conditions: Conditions,
}

/// Returns a plugin with one controller for `MyApple` that owns ConfigMaps.
pub fn plugin(description: &str, reconcile: fn(&Context, &MyApple) -> Result<Outcome, Error>) -> Plugin {
    Plugin::new(description).controller(Controller::of::<MyApple>().owns::<ConfigMap>().reconcile(reconcile))
}

/// Returns a controller for `MyApple` that its own status does not wake, so that [`counted`] counts each call.
pub fn counting() -> ControllerBuilder<MyApple> {
    Controller::of().when(Predicate::generation())
}

/// Returns the status with one more call counted.
pub fn counted(apple: &MyApple) -> Status {
    let Status { available, conditions } = apple.status.clone().unwrap_or_default();
    Status { available: available + 1, conditions }
}

/// Adds what was read to a status, as the condition `name`.
pub fn found(ctx: &Context, status: &mut Status, name: &str, what: impl Into<String>) {
    status.conditions.set(ctx.condition(name, true, "Found", what));
}

/// Returns `true` if the guest must misbehave for this object.
pub fn is_bad(apple: &MyApple) -> bool {
    apple.name().starts_with("bad-")
}

/// Returns the outcome of a well-behaved guest: the child `<name>-good` with data `color`, and `status.available` 1.
///
/// # Errors
/// Never fails. It has the type of a reconcile.
pub fn well_behaved(_: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let child = config_map(&format!("{}-good", apple.name()), &[("color", &apple.spec.color)]);
    Ok(Outcome::new().child(child).status(Status { available: 1, conditions: Conditions::default() }))
}

/// Returns a ConfigMap without a namespace, which the host sets.
pub fn config_map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let data: BTreeMap<String, String> =
        data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(data),
        ..ConfigMap::default()
    }
}
