//! Checks a manifest, and a watch that an outcome asks for, as the host does.

use pilothouse_core::manifest as core;

use super::convert;
use crate::contract::exports::pilothouse::plugin::controller::{Manifest, Watch};

/// # Errors
/// Fails with everything that is wrong with it.
pub(super) fn check(manifest: &Manifest) -> Result<core::Manifest, String> {
    convert::manifest(manifest).check().map_err(|invalid| invalid.to_string())
}

/// # Errors
/// Fails with the first thing that is wrong with it.
pub(super) fn check_asked(watch: &Watch) -> Result<core::Watch, String> {
    core::Watch::asked(convert::watch(watch))
        .map_err(|invalid| invalid.problems.first().map_or_else(String::new, ToString::to_string))
}
