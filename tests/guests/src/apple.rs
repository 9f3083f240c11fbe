//! What the guests share: `MyApple` as far as they need it, and how one behaves well.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use pilothouse_sdk::{ControllerBuilder, prelude::*};
use serde::{Deserialize, Serialize};

/// The kind that most guests are for. It is not this crate's: the `myapple` plugin brings its definition.
#[derive(Debug, Object, Deserialize, Serialize)]
#[object(api_version = "stable.example.com/v1", kind = "MyApple")]
pub struct MyApple {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// What is asked for.
    pub spec: Spec,
    /// What a guest said of it before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// What a `MyApple` asks for.
#[derive(Debug, Deserialize, Serialize)]
pub struct Spec {
    /// Any text: some guests take it as an instruction.
    pub color: String,
    /// `small`, `medium` or `large`.
    pub size: String,
    /// 1 or more.
    pub quantity: u32,
}

/// What guests say of a `MyApple`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Status {
    /// A number; 1 for well-behaved ones.
    #[serde(default)]
    pub available: u32,
    /// What they found out.
    #[serde(default, skip_serializing_if = "Conditions::is_empty")]
    pub conditions: Conditions,
}

/// A plugin with one controller for `MyApple` that owns ConfigMaps.
pub fn plugin(description: &str, reconcile: fn(&Context, &MyApple) -> Result<Outcome, Error>) -> Plugin {
    Plugin::new(description).controller(Controller::of::<MyApple>().owns::<ConfigMap>().reconcile(reconcile))
}

/// A controller for `MyApple` that nothing wakes but what each guest adds: not even its own status, so that
/// [`counted`] counts each call.
pub fn counting<E>() -> ControllerBuilder<MyApple, E> {
    Controller::of().when(Predicate::generation())
}

/// The status after one call more.
pub fn counted(apple: &MyApple) -> Status {
    let Status { available, conditions } = apple.status.clone().unwrap_or_default();
    Status { available: available + 1, conditions }
}

/// What was read, as the condition `name` of a status.
pub fn found(ctx: &Context, status: &mut Status, name: &str, what: impl Into<String>) {
    status.conditions.set(ctx.condition(name, true, "Found", what));
}

/// Whether the guest is to misbehave.
pub fn is_bad(apple: &MyApple) -> bool {
    apple.name().starts_with("bad-")
}

/// What a well-behaved guest answers: the child `<name>-good` with data `color`, and `status.available` 1.
///
/// # Errors
/// Never: this is the type of a reconcile.
pub fn well_behaved(_: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let child = config_map(&format!("{}-good", apple.name()), &[("color", &apple.spec.color)]);
    Ok(Outcome::new().child(child).status(Status { available: 1, conditions: Conditions::default() }))
}

/// A ConfigMap without a namespace, which the host sets.
pub fn config_map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let data: BTreeMap<String, String> =
        data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(data),
        ..ConfigMap::default()
    }
}
