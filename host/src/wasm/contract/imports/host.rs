//! `host`: what this host can do. The only interface of the contract that answers in `describe`.

use wasmtime::Result;

use super::{
    super::{
        bindings::pilothouse::plugin::host,
        package::{EXPORTS, VERSION},
    },
    OFFERED,
    host_state::HostState,
    interface,
};

interface!(HostCall, "host", { Has = "has", Version = "version" });

impl host::Host for HostState {
    fn version(&mut self) -> Result<String> {
        self.admit(HostCall::Version, 0)?;
        self.give(VERSION.to_owned(), String::len)
    }

    fn has(&mut self, feature: String) -> Result<bool> {
        self.admit(HostCall::Has, feature.len())?;
        Ok(has(&feature))
    }
}

/// Returns `true` if the host has an interface with this name, for plugins to import or to export.
fn has(feature: &str) -> bool {
    OFFERED.contains(&feature) || EXPORTS.contains(&feature)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wasm::{Limits, memory::PluginMemory};

    #[test]
    fn every_interface_is_known_in_describe_too() {
        let mut describing = HostState::new(None, Limits::default(), PluginMemory::default(), Duration::from_secs(1));
        let mut has = |feature: &str| host::Host::has(&mut describing, feature.to_owned()).unwrap();
        for interface in ["cache", "controller", "host", "mapper", "observer", "random"] {
            assert!(has(interface), "{interface}");
        }
        assert!(!has("teleport") && !has(""));
        assert_eq!(host::Host::version(&mut describing).unwrap(), "0.1.0");
    }
}
