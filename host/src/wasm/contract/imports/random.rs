//! `random`: numbers from the operating system's generator.

use wasmtime::Result;

use super::{super::bindings::pilothouse::plugin::random, host_state::HostState, interface};

interface!(RandomCall, "random", { Bytes = "bytes" });

/// Bytes of one call: what browsers give at once, and many times what a key needs.
pub(super) const MAX_BYTES: usize = 64 << 10;

/// What the caller supplies for `random`.
pub trait RandomImports {
    /// Fills `bytes` with random numbers. The default asks the operating system.
    ///
    /// # Errors
    /// If the operating system has none.
    fn fill(&self, bytes: &mut [u8]) -> Result<(), String> {
        getrandom::fill(bytes).map_err(|error| format!("the host has no random numbers: {error}"))
    }
}

impl random::Host for HostState {
    fn bytes(&mut self, count: u32) -> Result<Vec<u8>> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let imports = self.open(RandomCall::Bytes, 0)?;
        if count > MAX_BYTES {
            let why = format!("random.bytes gives at most {MAX_BYTES} bytes at once, and was asked for {count}");
            return Err(wasmtime::Error::msg(why));
        }
        let mut bytes = vec![0; count];
        imports.fill(&mut bytes).map_err(wasmtime::Error::msg)?;
        self.give(bytes, Vec::len)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::sync::Arc;

    use super::{
        super::{
            super::super::{
                limits::Limits,
                testing::{Fake, state},
            },
            host_state::Excess,
        },
        *,
    };

    #[test]
    fn operating_system_gives_different_bytes_each_time() {
        struct Real;
        impl RandomImports for Real {}
        let draw = || {
            let mut bytes = [0; 32];
            Real.fill(&mut bytes).unwrap();
            bytes
        };
        assert_ne!(draw(), draw());
    }

    #[test]
    fn bytes_are_bounded_at_once_and_count_as_exchanged() {
        let mut state = state(&Arc::new(Fake::default()));
        assert_eq!(random::Host::bytes(&mut state, 3).unwrap(), [0, 1, 2]);
        let most = u32::try_from(MAX_BYTES).unwrap();
        let error = random::Host::bytes(&mut state, most + 1).unwrap_err();
        assert_eq!(error.to_string(), "random.bytes gives at most 65536 bytes at once, and was asked for 65537");
        let drawn = (0..).map_while(|_| random::Host::bytes(&mut state, most).ok()).count();
        assert_eq!(drawn, Limits::default().host_bytes / MAX_BYTES - 1);
        let excess = random::Host::bytes(&mut state, most).unwrap_err();
        assert_eq!(excess.downcast_ref(), Some(&Excess::Bytes(Limits::default().host_bytes)));
    }
}
