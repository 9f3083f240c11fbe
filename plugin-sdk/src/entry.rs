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
    exports::Exports,
};

/// A function that returns a plugin: `fn() -> Plugin`, or `fn(C) -> Result<Plugin, Error>` for any `C` that serde can
/// deserialize.
///
/// A plugin without configuration rejects one, so that no setting is silently ignored.
///
/// `Signature` tells the compiler which of the two it is. It never has to be named.
pub trait Define<Signature> {
    /// The plugin's optional exports.
    type Exports: Exports;

    /// Creates the plugin.
    ///
    /// # Errors
    /// Fails if the configuration is not valid. The message says what to change.
    fn define(&self, config: &str) -> Result<Plugin<Self::Exports>, Error>;
}

impl<E: Exports, F: Fn() -> Plugin<E>> Define<(E,)> for F {
    type Exports = E;

    fn define(&self, config: &str) -> Result<Plugin<Self::Exports>, Error> {
        match config.trim() {
            "" | "{}" | "null" => Ok(self()),
            _ => Err(Error::terminal("this plugin takes no configuration")),
        }
    }
}

impl<E: Exports, C: DeserializeOwned, F: Fn(C) -> Result<Plugin<E>, Error>> Define<(E, C)> for F {
    type Exports = E;

    fn define(&self, config: &str) -> Result<Plugin<Self::Exports>, Error> {
        let config = serde_json::from_str(config);
        self(config.map_err(|error| Error::terminal(format!("the configuration is not valid: {error}")))?)
    }
}

/// Returns whether a plugin exports `mapper`, `observer`, `admission` and `conversion`. Compiles only if `define` is a
/// plugin.
pub const fn exports<S, D: Define<S>>(_: &D) -> [bool; 4] {
    [
        <D::Exports as Exports>::MAPPER,
        <D::Exports as Exports>::OBSERVER,
        <D::Exports as Exports>::ADMISSION,
        <D::Exports as Exports>::CONVERSION,
    ]
}

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

/// Adds a plugin's exports to the component. [`macro@crate::plugin`] calls it with what it found in the function's
/// return type.
#[doc(hidden)]
#[macro_export]
macro_rules! export_plugin {
    (
        $define:path,
        mapper: $mapper:tt,
        observer: $observer:tt,
        admission: $admission:tt,
        conversion: $conversion:tt,
        allocator: $allocator:tt
    ) => {
        // Natively nothing is exported. A function of the wrong type must still fail to compile.
        const _: () = assert!(
            matches!($crate::entry::exports(&$define), [$mapper, $observer, $admission, $conversion]),
            "#[plugin] reads the exports from the function's return type: name `Mapper`, `Observer`, `Admission` and \
             `Conversion` there, as in `Plugin<Mapper>`, and not behind an alias",
        );
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::contract::exports::pilothouse::plugin::controller as wire;

            struct Exported;

            impl wire::Guest for Exported {
                fn describe(
                    config: ::std::string::String,
                ) -> ::std::result::Result<wire::Manifest, ::std::string::String> {
                    $crate::entry::describe(&$define, ::std::env!("CARGO_PKG_VERSION"), &config)
                }

                fn reconcile(
                    config: ::std::string::String,
                    request: wire::Request,
                ) -> ::std::result::Result<wire::Outcome, wire::Failure> {
                    $crate::entry::reconcile(&$define, &config, request)
                }
            }

            $crate::contract::export!(Exported with_types_in $crate::contract);
            $crate::export_plugin!(@mapper $define, $mapper);
            $crate::export_plugin!(@observer $define, $observer);
            $crate::export_plugin!(@admission $define, $admission);
            $crate::export_plugin!(@conversion $define, $conversion);
            $crate::export_plugin!(@allocator $allocator);
        };
    };
    (@allocator true) => {
        #[global_allocator]
        static ALLOCATOR: $crate::Arena = $crate::Arena::new();
    };
    (@allocator false) => {};
    (@mapper $define:path, true) => {
        impl $crate::contract::mapping::exports::pilothouse::plugin::mapper::Guest for Exported {
            fn map(
                config: ::std::string::String,
                controller: ::std::string::String,
                changes: ::std::vec::Vec<$crate::contract::mapping::exports::pilothouse::plugin::mapper::Change>,
            ) -> ::std::result::Result<::std::vec::Vec<$crate::Key>, ::std::string::String> {
                $crate::entry::map(&$define, &config, &controller, &changes)
            }
        }

        $crate::contract::mapping::export_mapper!(Exported with_types_in $crate::contract::mapping);
    };
    (@observer $define:path, true) => {
        impl $crate::contract::observing::exports::pilothouse::plugin::observer::Guest for Exported {
            fn observe(
                config: ::std::string::String,
                changes: ::std::vec::Vec<$crate::contract::observing::exports::pilothouse::plugin::observer::Change>,
            ) -> ::std::result::Result<(), ::std::string::String> {
                $crate::entry::observe(&$define, &config, &changes)
            }
        }

        $crate::contract::observing::export_observer!(Exported with_types_in $crate::contract::observing);
    };
    (@admission $define:path, true) => {
        impl $crate::contract::admitting::exports::pilothouse::plugin::admission::Guest for Exported {
            fn validate(
                config: ::std::string::String,
                review: $crate::contract::admitting::exports::pilothouse::plugin::admission::Review,
            ) -> ::std::result::Result<
                $crate::contract::admitting::exports::pilothouse::plugin::admission::Decision,
                ::std::string::String,
            > {
                $crate::entry::review(&$define, &config, review).map(|(decision, _)| decision)
            }

            fn mutate(
                config: ::std::string::String,
                review: $crate::contract::admitting::exports::pilothouse::plugin::admission::Review,
            ) -> ::std::result::Result<
                (
                    $crate::contract::admitting::exports::pilothouse::plugin::admission::Decision,
                    ::std::option::Option<::std::string::String>,
                ),
                ::std::string::String,
            > {
                $crate::entry::review(&$define, &config, review)
            }
        }

        $crate::contract::admitting::export_admission!(Exported with_types_in $crate::contract::admitting);
    };
    (@conversion $define:path, true) => {
        impl $crate::contract::converting::exports::pilothouse::plugin::conversion::Guest for Exported {
            fn convert(
                config: ::std::string::String,
                api_version: ::std::string::String,
                objects: ::std::vec::Vec<::std::string::String>,
            ) -> ::std::result::Result<::std::vec::Vec<::std::string::String>, ::std::string::String> {
                $crate::entry::convert(&$define, &config, &api_version, &objects)
            }
        }

        $crate::contract::converting::export_conversion!(Exported with_types_in $crate::contract::converting);
    };
    (@mapper $define:path, false) => {};
    (@observer $define:path, false) => {};
    (@admission $define:path, false) => {};
    (@conversion $define:path, false) => {};
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
