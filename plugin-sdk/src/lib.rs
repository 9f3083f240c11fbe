//! Write a Pilothouse plugin in Rust.

pub mod cache;
pub mod client;
mod condition;
mod context;
pub mod contract;
#[doc(hidden)]
pub mod entry;
mod error;
mod host;
pub mod log;
mod object;
mod outcome;
mod permission;
mod plugin;

pub use condition::{ConditionStatus, Conditions};
pub use context::{Context, Phase};
pub use error::Error;
pub use k8s_openapi;
pub use kube;
pub use object::{Key, Object, TypeMeta};
pub use outcome::Outcome;
pub use permission::{Permission, Verb};
pub use pilothouse_sdk_macros::{Object, plugin};
pub use plugin::{Controller, ControllerBuilder, Plugin};

/// What nearly every plugin uses.
///
/// ```
/// use pilothouse_sdk::prelude::*;
/// ```
pub mod prelude {
    pub use crate::{
        Conditions, Context, Controller, Error, Key, Object, Outcome, Permission, Phase, Plugin, Verb, debug, error,
        info, plugin, trace, warn,
    };
}
