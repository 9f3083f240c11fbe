//! The contract's package: its name, its version, and which versions fit.

/// The package, as `wit/` names it.
pub(crate) const PACKAGE: &str = "pilothouse:plugin@0.1.0";

/// Returns the full name of an interface: `pilothouse:plugin/controller@0.1.0`.
pub(crate) fn full_name(interface: &str) -> String {
    format!("pilothouse:plugin/{interface}@0.1.0")
}

/// Returns `true` if `name` is `interface` in a version that the engine's linker accepts: 0.1.x.
pub(crate) fn fits(name: &str, interface: &str) -> bool {
    name.strip_prefix("pilothouse:plugin/")
        .and_then(|rest| rest.strip_prefix(interface))
        .and_then(|rest| rest.strip_prefix("@0.1."))
        .is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|b| b.is_ascii_digit()))
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
}
