//! The contract's interfaces by name: what a plugin may import, and what it exports.

/// The contract's package, as `wit/` names it.
pub(crate) const PACKAGE: &str = "pilothouse:plugin@0.1.0";
/// The interfaces of it that a plugin may import (`types` has no functions).
pub(crate) const OFFERED: [&str; 5] = ["cache", "client", "clock", "log", "types"];
/// What a plugin must export.
pub(crate) const EXPORT: &str = "pilothouse:plugin/controller@0.1.0";
/// What it may export besides: from changed objects to keys.
pub(crate) const MAPPER: &str = "pilothouse:plugin/mapper@0.1.0";
/// What it may export besides: to be told of changes.
pub(crate) const OBSERVER: &str = "pilothouse:plugin/observer@0.1.0";

/// Whether `name` is an import that the linker has, or one compatible with it.
pub(crate) fn offered(name: &str) -> bool {
    OFFERED.iter().any(|interface| fits(name, interface))
}

/// Whether `name` is `interface` of the contract, in a version compatible with ours: 0.1.x, as the engine's linker sees it.
pub(crate) fn fits(name: &str, interface: &str) -> bool {
    name.strip_prefix("pilothouse:plugin/")
        .and_then(|rest| rest.strip_prefix(interface))
        .and_then(|rest| rest.strip_prefix("@0.1."))
        .is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|b| b.is_ascii_digit()))
}

/// What a component without our export has.
pub(crate) fn found(exports: &[String]) -> String {
    if let Some(other) = exports.iter().find(|name| name.starts_with("pilothouse:plugin/controller@")) {
        return format!("it was built for another version of the contract, and exports {other}");
    }
    match exports {
        [] => "it exports nothing".to_owned(),
        names => format!("it exports {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_compatible_versions_of_the_contract_fit() {
        assert!(fits("pilothouse:plugin/cache@0.1.0", "cache"));
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
