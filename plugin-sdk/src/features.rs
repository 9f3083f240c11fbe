//! What the host can do, for a plugin that also runs on an older one.
//!
//! A component does not load on a host that lacks an interface which it imports. So ask before you use an export, such
//! as `observer`, or an addition that `docs/compatibility.md` lists. The function that describes the plugin may ask too.
//!
//! ```
//! use k8s_openapi::api::core::v1::Secret;
//! use pilothouse_sdk::mock::MockHost;
//! use pilothouse_sdk::{features, prelude::*};
//!
//! fn plugin() -> Plugin {
//!     let description = if features::has("random") { "Makes passwords." } else { "Checks passwords." };
//!     Plugin::new(description).controller(Controller::of::<Secret>().reconcile(|_, _| Ok(Outcome::new())))
//! }
//!
//! // The mock has every feature.
//! assert_eq!(MockHost::new(plugin).manifest().description, "Makes passwords.");
//! // And this one lacks some.
//! let old = MockHost::lacking(["random"], plugin);
//! assert_eq!(old.manifest().description, "Checks passwords.");
//! ```

use crate::host;

host::interface!(host {
    fn has(feature: &str) -> bool;
    fn version() -> String;
});

/// Returns `true` if the host has this feature: the name of an interface, such as `http`, or of an addition.
pub fn has(feature: &str) -> bool {
    import::has(feature)
}

/// Returns the version of the contract that the host has, such as `0.1.3`.
pub fn version() -> String {
    import::version()
}
