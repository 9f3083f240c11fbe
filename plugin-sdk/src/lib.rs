//! Write a Pilothouse plugin in Rust.
//!
//! A plugin is one function that returns a [`Plugin`]. It names the kinds to reconcile, the kinds of their children,
//! and the function that reconciles. The host does the rest. It watches and caches, queues and retries, applies
//! children and status, and deletes children that are no longer wanted.
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::CustomResource;
//! use pilothouse_sdk::mock::MockHost;
//! use pilothouse_sdk::prelude::*;
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! /// The plugin brings the CustomResourceDefinition of this kind.
//! #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
//! #[kube(group = "example.com", version = "v1", kind = "Greeting", namespaced, status = "GreetingStatus")]
//! struct GreetingSpec {
//!     to: String,
//! }
//!
//! #[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
//! struct GreetingStatus {
//!     conditions: Conditions,
//! }
//!
//! /// Returns what should exist because of a Greeting. Calls no API and changes nothing.
//! fn reconcile(ctx: &Context, greeting: &Greeting) -> Result<Outcome, Error> {
//!     let mut card = ConfigMap::default();
//!     card.metadata.name = Some(format!("{}-card", greeting.name()));
//!     card.data = Some(BTreeMap::from([("text".to_owned(), format!("Hello, {}!", greeting.spec.to))]));
//!
//!     let mut conditions = greeting.status.clone().unwrap_or_default().conditions;
//!     let written = ctx.cache().get::<ConfigMap>(ctx.key().beside(card.name()))?.is_some();
//!     conditions.set(ctx.condition("Ready", written, "Checked", "the card is in the cache"));
//!     Ok(Outcome::new().child(card).status(GreetingStatus { conditions }))
//! }
//!
//! #[plugin]
//! fn greeter() -> Plugin {
//!     Plugin::new("Writes a card for every Greeting.")
//!         .crd::<Greeting>()
//!         .controller(Controller::of::<Greeting>().owns::<ConfigMap>().reconcile(reconcile))
//! }
//!
//! // Natively, the same code runs against a mock host.
//! let mut greeting = Greeting::new("morning", GreetingSpec { to: "world".into() });
//! greeting.metadata.namespace = Some("default".into());
//! let mut host = MockHost::new(greeter).with(greeting);
//! let outcome = host.settle(("default", "morning")).expect("it settles");
//! assert!(outcome.status::<GreetingStatus>().conditions.is_true("Ready"));
//! ```
//!
//! The crate of a plugin has `crate-type = ["cdylib", "rlib"]`. Build it with
//! `cargo build --release --target wasm32-unknown-unknown`. The `.wasm` file is the plugin. It imports only the host
//! functions that it uses, and needs no WASI. This profile suits a plugin:
//!
//! ```toml
//! [profile.release]
//! opt-level = 3           # the default; "s" makes the file smaller, and calls 50 % slower
//! lto = true
//! codegen-units = 1
//! panic = "abort"
//! strip = "debuginfo"     # keeps the function names for the host's backtraces
//! ```
//!
//! The allocator is an [`Arena`], unless the plugin declares its own with `#[plugin(own_allocator)]`.
//!
//! # Where to look
//! - What a reconcile can call: [`Context`], [`cache`], [`client`], [`events`], [`http`], [`mod@log`], [`metrics`],
//!   [`random`], [`features`].
//! - What it returns: [`Outcome`] and [`Error`]. [`Conditions`] go into a status, and an [`Event`] beside it.
//! - How a plugin describes itself: [`Plugin`], [`Controller`], [`Permission`]. [`Watch`] and [`Predicate`] select
//!   objects and changes.
//! - What wakes a reconcile: its own reads ([`ControllerBuilder::reads`]) and mappings ([`Mapping`]).
//! - Handlers that get the changes themselves: [`Plugin::observe`].
//! - Webhooks that review requests: [`Plugin::validate`], [`Plugin::mutate`]. Conversion between versions:
//!   [`Plugin::crd_versions`].
//! - Rust types for kinds: [`Object`]. Kinds that are known only at run time: [`Dynamic`].
//! - Tests: [`mock`].
//! - The contract with the host: [`contract`], and the WIT from which it is generated.
//!
//! # Layers
//! A module imports only modules that stand before it in this list. `tests/layers.rs` checks it.
//!
//! - `allocator`, [`contract`], `host`: the allocator and the contract
//! - `object`, `dynamic`, `event`, `error`, `predicate`, `permission`, `watch`, `condition`: values
//! - [`cache`], [`client`], `clock`, [`events`], [`features`], [`http`], `log`, [`metrics`], [`random`]: one file for each
//!   interface of the host
//! - `admission`, `change`, `context`, `conversion`, `mapping`, `observer`, `outcome`: what a plugin's functions take and return
//! - `controller`, `plugin`, `entry`: the plugin, and its exports
//! - [`mock`], [`prelude`]: the host for native tests, and what most plugins import

mod admission;
mod allocator;
pub mod cache;
mod change;
pub mod client;
mod clock;
mod condition;
mod context;
pub mod contract;
mod controller;
mod conversion;
mod dynamic;
#[doc(hidden)]
pub mod entry;
mod error;
mod event;
pub mod events;
pub mod features;
mod host;
pub mod http;
pub mod log;
mod mapping;
pub mod metrics;
#[cfg(not(target_arch = "wasm32"))]
pub mod mock;
mod object;
mod observer;
mod outcome;
mod permission;
mod plugin;
mod predicate;
pub mod random;
mod watch;

pub use admission::{AdmissionContext, Decision, Mutation, Operation, Review, User, Webhook};
pub use allocator::Arena;
pub use change::{Change, Observed};
pub use condition::{ConditionStatus, Conditions};
pub use context::{Context, Phase};
pub use controller::{Controller, ControllerBuilder};
pub use dynamic::Dynamic;
pub use error::Error;
pub use event::Event;
pub use k8s_openapi;
pub use kube;
pub use mapping::Mapping;
pub use object::{AnyObject, Key, NotAKind, Object, TypeMeta};
pub use observer::ObserverContext;
pub use outcome::Outcome;
pub use permission::{Permission, Verb};
/// Implements [`Object`](trait@Object) for a struct with a field `metadata: ObjectMeta`, for kinds that have no type
/// elsewhere.
///
/// Declare the fields that you need. Serde skips the others.
///
/// Use such a type to read objects, and to apply the declared fields. An `update` would remove all other fields.
///
/// ```
/// use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
/// use pilothouse_sdk::Object;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Object, Deserialize, Serialize)]
/// #[object(api_version = "cert-manager.io/v1", kind = "Certificate")]
/// struct Certificate {
///     metadata: ObjectMeta,
///     spec: CertificateSpec,
/// }
///
/// #[derive(Deserialize, Serialize)]
/// #[serde(rename_all = "camelCase")]
/// struct CertificateSpec {
///     secret_name: String,
/// }
///
/// let certificate = Certificate {
///     metadata: ObjectMeta { name: Some("web".into()), ..ObjectMeta::default() },
///     spec: CertificateSpec { secret_name: "web-tls".into() },
/// };
/// assert_eq!(
///     certificate.to_json().unwrap(),
///     r#"{"apiVersion":"cert-manager.io/v1","kind":"Certificate","metadata":{"name":"web"},"spec":{"secretName":"web-tls"}}"#,
/// );
/// ```
pub use pilothouse_sdk_macros::Object;
/// Turns a function into the plugin of the crate: `fn() -> Plugin`, or `fn(C) -> Result<Plugin, Error>` where `C` is
/// the administrator's configuration.
///
/// Use it once in a crate whose `crate-type` has `cdylib`. In the sandbox, the function becomes the component's
/// exports. Natively, nothing is added, and tests call the function through [`MockHost`](mock::MockHost).
///
/// The plugin's allocator is an [`Arena`]. A plugin with its own `#[global_allocator]`, or with Rust's default one,
/// uses `#[plugin(own_allocator)]`.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use pilothouse_sdk::prelude::*;
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Config {
///     namespace: String,
/// }
///
/// fn reconcile(_: &Context, _: &ConfigMap) -> Result<Outcome, Error> {
///     Ok(Outcome::new())
/// }
///
/// #[plugin]
/// fn watcher(config: Config) -> Result<Plugin, Error> {
///     let controller = Controller::of::<ConfigMap>().namespaces([config.namespace]).reconcile(reconcile);
///     Ok(Plugin::new("Watches ConfigMaps.").controller(controller))
/// }
/// ```
pub use pilothouse_sdk_macros::plugin;
pub use plugin::Plugin;
pub use predicate::Predicate;
pub use watch::Watch;

/// What nearly every plugin uses.
///
/// ```
/// use pilothouse_sdk::prelude::*;
/// ```
pub mod prelude {
    pub use crate::{
        AdmissionContext, Change, Conditions, Context, Controller, Decision, Dynamic, Error, Event, Key, Mapping,
        Mutation, Object, Observed, ObserverContext, Operation, Outcome, Permission, Phase, Plugin, Predicate, Review,
        TypeMeta, Verb, Watch, Webhook, cache::Cache, debug, error, info, plugin, trace, warn,
    };
}
