//! The contract's package: its name, its version, and which versions fit.

/// The version of the contract, as `wit/` names it.
pub(crate) const VERSION: &str = "0.1.0";

/// The package, as `wit/` names it.
pub(crate) const PACKAGE: &str = "pilothouse:plugin@0.1.0";

/// The interfaces that a plugin may export.
pub(crate) const EXPORTS: [&str; 5] = ["controller", "mapper", "observer", "admission", "conversion"];

/// Returns the full name of an interface: `pilothouse:plugin/controller@0.1.0`.
pub(crate) fn full_name(interface: &str) -> String {
    format!("pilothouse:plugin/{interface}@{VERSION}")
}

/// Returns `true` if `name` is `interface` in a version that the engine's linker accepts: 0.1.x.
pub(crate) fn fits(name: &str, interface: &str) -> bool {
    patch(name).is_some_and(|(fitting, _)| fitting == interface)
}

/// Returns `true` if `name` is an interface of a later version than the host has, which the host may lack parts of.
pub(crate) fn is_newer(name: &str) -> bool {
    let ours = patch(&full_name("")).map_or(0, |(_, patch)| patch);
    patch(name).is_some_and(|(_, patch)| patch > ours)
}

/// Returns the interface of a name in a version 0.1.x, and x.
fn patch(name: &str) -> Option<(&str, u64)> {
    let (interface, patch) = name.strip_prefix("pilothouse:plugin/")?.split_once("@0.1.")?;
    let is_number = !patch.is_empty() && patch.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| (interface, patch.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_compatible_versions_of_the_contract_fit() {
        assert!(fits(&full_name("cache"), "cache"));
        assert!(fits("pilothouse:plugin/cache@0.1.12", "cache"));
        for other in [
            "pilothouse:plugin/cache@0.2.0",
            "pilothouse:plugin/cache@0.1.",
            "pilothouse:plugin/cache@0.1.0-rc",
            "pilothouse:plugin/cache",
            "pilothouse:plugin/caches@0.1.0",
            "wasi:io/cache@0.1.0",
        ] {
            assert!(!fits(other, "cache"), "{other}");
        }
    }

    #[test]
    fn version_is_that_of_the_package() {
        assert_eq!(PACKAGE, format!("pilothouse:plugin@{VERSION}"));
        assert!(is_newer("pilothouse:plugin/cache@0.1.1") && !is_newer(&full_name("cache")));
    }
}
