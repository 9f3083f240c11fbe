//! `clock`: the time, which stands still during a call.

use wasmtime::Result;

use super::{super::bindings::pilothouse::plugin::clock, Imports, host_state::HostState, interface};

interface!(ClockCall, "clock", { Now = "now" });

/// What the caller supplies for `clock`.
pub trait ClockImports {
    /// Returns the milliseconds since 1970-01-01T00:00:00Z. Called once, when the call begins: the guest sees that
    /// value until the call ends.
    fn now(&self) -> u64;
}

/// What `clock` remembers during one call.
pub(super) struct State {
    pub(super) now: u64,
}

impl State {
    pub(super) fn new(imports: Option<&dyn Imports>) -> Self {
        Self { now: imports.map_or(0, ClockImports::now) }
    }
}

impl clock::Host for HostState {
    fn now(&mut self) -> Result<u64> {
        self.open(ClockCall::Now, 0)?;
        Ok(self.call.interfaces.clock.now)
    }
}
