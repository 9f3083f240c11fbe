//! From the contract's two exports to a plugin's own types and back.

use serde::de::DeserializeOwned;

use crate::contract::exports::pilothouse::plugin::controller::{Failure, Manifest, Outcome, Request};
use crate::{Error, Plugin};

/// The function that makes a plugin out of its configuration: `fn() -> Plugin`, or `fn(C) -> Result<Plugin, Error>` for any
/// `C` that serde can read.
///
/// A plugin without configuration refuses one, so that nobody writes what nothing reads.
///
/// `Signature` is for the compiler to tell the two apart; it never needs to be named.
pub trait Define<Signature> {
    /// Makes the plugin.
    ///
    /// # Errors
    /// Where the configuration cannot be used; says what to change.
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
        self(config.map_err(|error| Error::terminal(format!("the configuration does not fit: {error}")))?)
    }
}

/// Compiles where `define` is a plugin.
pub fn fits<S>(_: &impl Define<S>) {}

/// The export `describe`.
///
/// # Errors
/// What is wrong with the configuration.
pub fn describe<S>(define: &impl Define<S>, version: &str, config: &str) -> Result<Manifest, String> {
    let plugin = define.define(config).map_err(|error| error.to_string())?;
    plugin.manifest(version).map_err(|error| format!("the description cannot be JSON: {error}"))
}

/// The export `reconcile`.
///
/// # Errors
/// What the plugin's function fails with, and what cannot reach it.
pub fn reconcile<S>(define: &impl Define<S>, config: &str, request: Request) -> Result<Outcome, Failure> {
    #[cfg(target_arch = "wasm32")]
    log_panics();
    let plugin = define.define(config)?;
    let Some(controller) = plugin.controller_named(&request.controller) else {
        return Err(Error::terminal(format!("there is no controller {:?} in this plugin", request.controller)).into());
    };
    Ok(controller.reconcile(request).and_then(crate::Outcome::into_wire)?)
}

/// A panic in the sandbox is a trap and tells the host nothing but where. Its message goes to the log before.
#[cfg(target_arch = "wasm32")]
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("no message");
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        let fields = [("panic".to_owned(), text.to_owned()), ("at".to_owned(), at)];
        crate::host::log(crate::log::Level::Error, "the plugin panicked", &fields);
    }));
}

/// Puts a plugin's two exports into the component. [`macro@crate::plugin`] calls it.
#[doc(hidden)]
#[macro_export]
macro_rules! export_plugin {
    ($define:path) => {
        // Natively nothing is exported, and a function of the wrong type is a mistake all the same.
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn() = || $crate::entry::fits(&$define);
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
        };
    };
}

/// The result of [`crate::Object::to_json`], nameable in crates that do not depend on serde_json.
pub type JsonResult = serde_json::Result<String>;

/// The JSON of a value that lacks `apiVersion` and `kind`, with them.
///
/// # Errors
/// Where `value` cannot be JSON, or is no object.
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
