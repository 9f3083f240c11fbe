//! Connects the exports of the contract with a plugin's own types.

use serde::de::DeserializeOwned;

use crate::{
    Error, Key, Plugin,
    contract::{
        admitting::exports::pilothouse::plugin::admission::{Decision, Review},
        exports::pilothouse::plugin::controller::{Failure, Manifest, Outcome, Request},
        mapping::exports::pilothouse::plugin::mapper,
        observing::exports::pilothouse::plugin::observer,
    },
};

/// A function that returns a plugin: `fn() -> Plugin`, or `fn(C) -> Result<Plugin, Error>` for any `C` that serde can
/// deserialize.
///
/// A plugin without configuration rejects one, so that no setting is silently ignored.
///
/// `Signature` tells the compiler which of the two it is. It never has to be named.
pub trait Define<Signature> {
    /// Creates the plugin.
    ///
    /// # Errors
    /// Fails if the configuration is not valid. The message says what to change.
    fn define(&self, config: &str) -> Result<Plugin, Error>;
}

impl<F: Fn() -> Plugin> Define<()> for F {
    fn define(&self, config: &str) -> Result<Plugin, Error> {
        match config.trim() {
            "" | "{}" | "null" => Ok(self()),
            _ => Err(Error::terminal("this plugin takes no configuration")),
        }
    }
}

impl<C: DeserializeOwned, F: Fn(C) -> Result<Plugin, Error>> Define<(C,)> for F {
    fn define(&self, config: &str) -> Result<Plugin, Error> {
        let config = serde_json::from_str(config);
        self(config.map_err(|error| Error::terminal(format!("the configuration is not valid: {error}")))?)
    }
}

/// Compiles only if `define` is a plugin. Natively nothing else would notice a function of the wrong type.
pub const fn check<S, D: Define<S>>(_: &D) {}

/// Implements the export `describe`.
///
/// # Errors
/// Fails if the configuration is not valid.
pub fn describe<S>(define: &impl Define<S>, version: &str, config: &str) -> Result<Manifest, String> {
    let plugin = define.define(config).map_err(|error| error.to_string())?;
    plugin.manifest(version)
}

/// Implements the export `reconcile`.
///
/// # Errors
/// Fails if the plugin's function fails or cannot be called.
pub fn reconcile<S>(define: &impl Define<S>, config: &str, request: Request) -> Result<Outcome, Failure> {
    #[cfg(target_arch = "wasm32")]
    log_panics();
    let plugin = define.define(config)?;
    let Some(controller) = plugin.controller_named(&request.controller) else {
        return Err(Error::terminal(format!("there is no controller {:?} in this plugin", request.controller)).into());
    };
    Ok(controller.reconcile(request).and_then(crate::Outcome::into_wire)?)
}

/// Implements the export `map`.
///
/// # Errors
/// Fails if the plugin's function fails or cannot be called.
pub fn map<S>(
    define: &impl Define<S>,
    config: &str,
    controller: &str,
    changes: &[mapper::Change],
) -> Result<Vec<Key>, String> {
    #[cfg(target_arch = "wasm32")]
    log_panics();
    define.define(config).map_err(|error| error.to_string())?.map(controller, changes)
}

/// Implements the export `observe`.
///
/// # Errors
/// Fails if a handler fails or cannot be called.
pub fn observe<S>(define: &impl Define<S>, config: &str, changes: &[observer::Change]) -> Result<(), String> {
    #[cfg(target_arch = "wasm32")]
    log_panics();
    define.define(config).map_err(|error| error.to_string())?.observe_changes(changes)
}

/// Implements the exports `validate` and `mutate`.
///
/// # Errors
/// Fails if the handler fails or cannot be called.
pub fn review<S>(define: &impl Define<S>, config: &str, review: Review) -> Result<(Decision, Option<String>), String> {
    #[cfg(target_arch = "wasm32")]
    log_panics();
    define.define(config).map_err(|error| error.to_string())?.review(review)
}

/// Implements the export `convert`. A panic is not logged, because `convert` may call no import.
///
/// # Errors
/// Fails if an object cannot be converted.
pub fn convert<S>(
    define: &impl Define<S>,
    config: &str,
    api_version: &str,
    objects: &[String],
) -> Result<Vec<String>, String> {
    define.define(config).map_err(|error| error.to_string())?.convert(api_version, objects)
}

/// Logs the message of each panic. In the sandbox, a panic is a trap, and the host only learns where it happened.
#[cfg(target_arch = "wasm32")]
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("no message");
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        let fields = [("panic".to_owned(), text.to_owned()), ("at".to_owned(), at)];
        crate::log::write(crate::log::Level::Error, "the plugin panicked", &fields);
    }));
}

/// Adds a plugin's exports to the component. A plugin exports all of them: an export that its manifest does not need is
/// never called.
#[doc(hidden)]
#[macro_export]
macro_rules! export_plugin {
    ($define:path, allocator: $allocator:tt) => {
        const _: () = $crate::entry::check(&$define);
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use ::std::{option::Option, result::Result, string::String, vec::Vec};
            use $crate::contract::{
                self, admitting, admitting::exports::pilothouse::plugin::admission, converting,
                converting::exports::pilothouse::plugin::conversion, exports::pilothouse::plugin::controller as wire,
                mapping, mapping::exports::pilothouse::plugin::mapper, observing,
                observing::exports::pilothouse::plugin::observer,
            };

            struct Exported;

            impl wire::Guest for Exported {
                fn describe(config: String) -> Result<wire::Manifest, String> {
                    $crate::entry::describe(&$define, ::std::env!("CARGO_PKG_VERSION"), &config)
                }

                fn reconcile(config: String, request: wire::Request) -> Result<wire::Outcome, wire::Failure> {
                    $crate::entry::reconcile(&$define, &config, request)
                }
            }

            impl mapper::Guest for Exported {
                fn map(
                    config: String,
                    controller: String,
                    changes: Vec<mapper::Change>,
                ) -> Result<Vec<$crate::Key>, String> {
                    $crate::entry::map(&$define, &config, &controller, &changes)
                }
            }

            impl observer::Guest for Exported {
                fn observe(config: String, changes: Vec<observer::Change>) -> Result<(), String> {
                    $crate::entry::observe(&$define, &config, &changes)
                }
            }

            impl admission::Guest for Exported {
                fn validate(config: String, review: admission::Review) -> Result<admission::Decision, String> {
                    $crate::entry::review(&$define, &config, review).map(|(decision, _)| decision)
                }

                fn mutate(
                    config: String,
                    review: admission::Review,
                ) -> Result<(admission::Decision, Option<String>), String> {
                    $crate::entry::review(&$define, &config, review)
                }
            }

            impl conversion::Guest for Exported {
                fn convert(config: String, api_version: String, objects: Vec<String>) -> Result<Vec<String>, String> {
                    $crate::entry::convert(&$define, &config, &api_version, &objects)
                }
            }

    contract::export!(Exported with_types_in $crate::contract);
    mapping::export_mapper!(Exported with_types_in $crate::contract::mapping);
    observing::export_observer!(Exported with_types_in $crate::contract::observing);
    admitting::export_admission!(Exported with_types_in $crate::contract::admitting);
    converting::export_conversion!(Exported with_types_in $crate::contract::converting);
    $crate::export_plugin!(@allocator $allocator);
        };
    };
    (@allocator true) => {
        #[global_allocator]
        static ALLOCATOR: $crate::Arena = $crate::Arena::new();
    };
    (@allocator false) => {};
}

/// The result of [`crate::Object::to_json`], for crates that do not depend on serde_json.
pub type JsonResult = serde_json::Result<String>;

/// Serializes a value that lacks `apiVersion` and `kind`, and adds them.
///
/// # Errors
/// Fails if `value` cannot be serialized, or is not an object.
pub fn with_type_meta(api_version: &str, kind: &str, value: &impl serde::Serialize) -> JsonResult {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Typed<'a, T> {
        api_version: &'a str,
        kind: &'a str,
        #[serde(flatten)]
        value: &'a T,
    }
    serde_json::to_string(&Typed { api_version, kind, value })
}
