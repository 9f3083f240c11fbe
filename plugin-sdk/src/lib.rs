//! Write a Pilothouse plugin in Rust.
//!
//! A plugin is one function from its configuration to a [`Plugin`]: which kinds it is for, which kinds of children it has,
//! and the function that reconciles. The host does the rest: it watches and caches, queues and retries, applies children and
//! status, and prunes what is no longer wanted.
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
//! /// Its CustomResourceDefinition comes with the plugin.
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
//! /// What should be because a Greeting is there. Asks nothing and changes nothing by itself.
//! fn reconcile(ctx: &Context, greeting: &Greeting) -> Result<Outcome, Error> {
//!     let mut card = ConfigMap::default();
//!     card.metadata.name = Some(format!("{}-card", greeting.name()));
//!     card.data = Some(BTreeMap::from([("text".to_owned(), format!("Hello, {}!", greeting.spec.to))]));
//!
//!     let mut conditions = greeting.status.clone().unwrap_or_default().conditions;
//!     let written = ctx.cache().get::<ConfigMap>(ctx.key().beside(card.name()))?.is_some();
//!     conditions.set(ctx.condition("Ready", written, "Looked", "whether the card is written"));
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
//! The crate of a plugin has `crate-type = ["cdylib", "rlib"]`, and is built with
//! `cargo build --release --target wasm32-unknown-unknown`. The `.wasm` file is the plugin. It imports from the host what it
//! uses and no more, and needs no WASI. In its workspace's `Cargo.toml`, this suits it:
//!
//! ```toml
//! [profile.release]
//! opt-level = 3           # the default; with "s" there is less code, and calls take half as long again
//! lto = true
//! codegen-units = 1
//! panic = "abort"
//! strip = "debuginfo"     # leaves the names that the host's backtraces show
//! ```
//!
//! Its allocator is an [`Arena`], unless it says that it has its own: `#[plugin(own_allocator)]`.
//!
//! # Where to look
//! - What a reconcile may ask: [`Context`], [`cache`], [`client`], [`mod@log`].
//! - What it answers: [`Outcome`] and [`Error`]; [`Conditions`] in a status.
//! - What a plugin says of itself: [`Plugin`], [`Controller`], [`Permission`]; [`Watch`] and [`Predicate`] for less than all
//!   objects and all changes.
//! - Being woken by what a reconcile read: [`ControllerBuilder::reads`]. By what it did not read: [`Mapping`].
//! - Being told of changes themselves: [`Plugin::observe`].
//! - Types for kinds: [`Object`].
//! - Tests: [`mock`].
//! - The border itself: [`contract`], and the WIT it is made from.

mod allocator;
pub mod cache;
mod change;
pub mod client;
mod clock;
mod condition;
mod context;
pub mod contract;
mod controller;
#[doc(hidden)]
pub mod entry;
mod error;
mod exports;
mod host;
pub mod log;
mod mapping;
#[cfg(not(target_arch = "wasm32"))]
pub mod mock;
mod object;
mod observer;
mod outcome;
mod permission;
mod plugin;
mod predicate;
mod watch;

pub use allocator::Arena;
pub use change::{Change, Observed};
pub use condition::{ConditionStatus, Conditions};
pub use context::{Context, Phase};
pub use controller::{Controller, ControllerBuilder};
pub use error::Error;
pub use exports::{Exports, ExportsMapper, ExportsObserver, Mapper, Observer};
pub use k8s_openapi;
pub use kube;
pub use mapping::Mapping;
pub use object::{Key, Object, TypeMeta};
pub use observer::Host;
pub use outcome::Outcome;
pub use permission::{Permission, Verb};
/// Makes a struct with a field `metadata: ObjectMeta` an object of a kind that has no type elsewhere: name the fields you
/// need and serde skips the others.
///
/// Such a type is for reading, and for applying the fields that it names. An `update` would drop all others.
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
/// Makes a function the plugin that a crate is: `fn() -> Plugin`, or `fn(C) -> Result<Plugin, Error>` where `C` is the
/// configuration that the administrator writes.
///
/// Once in a crate whose `crate-type` has `cdylib`. In the sandbox the function becomes the component's exports; natively
/// nothing is added, and tests call it through [`MockHost`](mock::MockHost).
///
/// The plugin's allocator is an [`Arena`], which suits calls. One that has its own `#[global_allocator]`, or wants Rust's usual
/// one, says `#[plugin(own_allocator)]`.
///
/// A plugin that maps by a function of its own returns `Plugin<Mapper>`, one that observes `Plugin<Observer>`, one that does both
/// `Plugin<(Mapper, Observer)>`: that decides what the component exports, and what the plugin may do.
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
///     Ok(Plugin::new("Looks at ConfigMaps.").controller(controller))
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
        Change, Conditions, Context, Controller, Error, Host, Key, Mapper, Mapping, Object, Observed, Observer,
        Outcome, Permission, Phase, Plugin, Predicate, Verb, Watch, cache::Cache, debug, error, info, plugin, trace,
        warn,
    };
}
