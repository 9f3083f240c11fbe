//! WASI 0.2 for components of stock toolchains, without access to the machine.
//!
//! | what | answer |
//! |---|---|
//! | `cli` | no environment, no arguments, no terminal; stdout and stderr become log lines ([`output`]); `exit` fails the call |
//! | `clocks` | the time at which the call began; sleeping moves it forward and takes no time ([`time`]) |
//! | `random` | the generator of [`random`](super::random) |
//! | `io` | streams and pollables of the above |
//! | `filesystem`, `sockets`, `http` | linked, and refused when they are called ([`refused`]) |
//!
//! In `describe`, which is pure, the clock stands at [`DESCRIBED_AT`] and random numbers are always the same.
//!
//! A guest keeps its handles as long as its instance lives. They hold no data but timers, whose number has a bound.

use wasmtime::{Result, component::Resource};

use super::{
    super::bindings::wasi::wasi::{
        cli::{
            environment, exit, stderr, stdin, stdout,
            terminal_input::{self, TerminalInput},
            terminal_output::{self, TerminalOutput},
            terminal_stderr, terminal_stdin, terminal_stdout,
        },
        io::streams::{InputStream, OutputStream},
        random::{insecure, insecure_seed, random},
    },
    Imports,
    host_state::HostState,
    interface, log,
    random::MAX_BYTES,
};

pub(crate) mod output;
pub(crate) mod refused;
pub(crate) mod time;

interface!(WasiCall, "wasi", { Cli = "cli", Clocks = "clocks", Io = "io", Random = "random", Refused = "refused" });

/// The interfaces that are served, without version.
const SERVED: [&str; 18] = [
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/stderr",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:cli/terminal-stderr",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
];

/// The packages whose functions are refused. Toolchains import them whether a plugin uses them or not.
const REFUSED: [&str; 3] = ["wasi:filesystem", "wasi:sockets", "wasi:http"];

/// Handles of streams and pollables that an instance may hold. A runtime needs a few.
const MAX_HANDLES: u32 = 1024;

/// The time in `describe`, in milliseconds: 2000-01-01T00:00:00Z. Some runtimes do not start at 0.
const DESCRIBED_AT: u64 = 946_684_800_000;

/// Returns `true` if the host has the interface `name` of WASI.
pub(super) fn offered(name: &str) -> bool {
    interface_of(name).is_some_and(|interface| SERVED.contains(&interface) || is_refused(interface))
}

/// Returns `true` if the component imports WASI.
pub(crate) fn is_used(imports: &[String]) -> bool {
    imports.iter().any(|name| name.split_once(':').is_some_and(|(namespace, _)| namespace == NAME))
}

fn is_refused(interface: &str) -> bool {
    interface.split_once('/').is_some_and(|(package, _)| REFUSED.contains(&package))
}

/// Returns the name without its version, which must be 0.2.x.
fn interface_of(name: &str) -> Option<&str> {
    let (interface, version) = name.split_once("@0.2.")?;
    (!version.is_empty() && version.bytes().all(|b| b.is_ascii_digit())).then_some(interface)
}

/// What WASI remembers of an instance over all its calls.
#[derive(Default)]
pub(crate) struct Instance {
    handles: u32,
    clock: time::Monotonic,
}

/// What WASI remembers during one call.
pub(super) struct State {
    time: time::Wall,
    pub(super) output: output::Output,
    /// Random numbers that were drawn in `describe`.
    drawn: u64,
}

impl State {
    /// Starts a call. `now` is in milliseconds, and `None` in `describe`.
    pub(super) fn new(now: Option<u64>) -> Self {
        Self { time: time::Wall::new(now.unwrap_or(DESCRIBED_AT)), output: output::Output::default(), drawn: 0 }
    }

    /// Ends the call.
    pub(super) fn finish(&mut self, log: &mut log::State, imports: Option<&dyn Imports>) {
        self.output.finish(log, imports);
    }
}

/// The guest called `exit`.
#[derive(Debug, thiserror::Error)]
#[error("wasi:cli/exit was called with {0}")]
struct Exited(String);

impl HostState {
    /// Creates a handle. `rep` says what it stands for.
    fn handle<T: 'static>(&mut self, rep: u32) -> Result<Resource<T>> {
        if self.instance.wasi.handles >= MAX_HANDLES {
            let why = format!("an instance may hold {MAX_HANDLES} handles of streams and pollables of WASI");
            return Err(wasmtime::Error::msg(why));
        }
        self.instance.wasi.handles += 1;
        Ok(Resource::new_own(rep))
    }

    fn drop_handle(&mut self) {
        self.instance.wasi.handles = self.instance.wasi.handles.saturating_sub(1);
    }

    fn draw(&mut self, count: u64) -> Result<Vec<u8>> {
        let imports = self.admit(WasiCall::Random, 0)?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > MAX_BYTES {
            let why = format!("wasi:random gives at most {MAX_BYTES} bytes at once, and was asked for {count}");
            return Err(wasmtime::Error::msg(why));
        }
        let mut bytes = vec![0; count];
        match imports {
            Some(imports) => imports.fill(&mut bytes).map_err(wasmtime::Error::msg)?,
            None => bytes.chunks_mut(8).for_each(|chunk| {
                let number = described(&mut self.call.interfaces.wasi.drawn).to_le_bytes();
                chunk.iter_mut().zip(number).for_each(|(byte, number)| *byte = number);
            }),
        }
        self.give(bytes, Vec::len)
    }

    fn draw_u64(&mut self) -> Result<u64> {
        let bytes = self.draw(8)?;
        Ok(bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }
}

/// Returns the next of the numbers that `describe` always gets (SplitMix64).
fn described(drawn: &mut u64) -> u64 {
    *drawn = drawn.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*drawn ^ (*drawn >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl random::Host for HostState {
    fn get_random_bytes(&mut self, len: u64) -> Result<Vec<u8>> {
        self.draw(len)
    }

    fn get_random_u64(&mut self) -> Result<u64> {
        self.draw_u64()
    }
}

impl insecure::Host for HostState {
    fn get_insecure_random_bytes(&mut self, len: u64) -> Result<Vec<u8>> {
        self.draw(len)
    }

    fn get_insecure_random_u64(&mut self) -> Result<u64> {
        self.draw_u64()
    }
}

impl insecure_seed::Host for HostState {
    fn insecure_seed(&mut self) -> Result<(u64, u64)> {
        Ok((self.draw_u64()?, self.draw_u64()?))
    }
}

impl environment::Host for HostState {
    fn get_environment(&mut self) -> Result<Vec<(String, String)>> {
        self.admit(WasiCall::Cli, 0)?;
        Ok(Vec::new())
    }

    fn get_arguments(&mut self) -> Result<Vec<String>> {
        self.admit(WasiCall::Cli, 0)?;
        Ok(Vec::new())
    }

    fn initial_cwd(&mut self) -> Result<Option<String>> {
        self.admit(WasiCall::Cli, 0)?;
        Ok(None)
    }
}

impl exit::Host for HostState {
    fn exit(&mut self, status: Result<(), ()>) -> Result<()> {
        self.admit(WasiCall::Cli, 0)?;
        let status = if status.is_ok() { "success" } else { "a failure" };
        Err(wasmtime::Error::new(Exited(status.to_owned())))
    }

    fn exit_with_code(&mut self, code: u8) -> Result<()> {
        self.admit(WasiCall::Cli, 0)?;
        Err(wasmtime::Error::new(Exited(format!("status {code}"))))
    }
}

impl stdin::Host for HostState {
    fn get_stdin(&mut self) -> Result<Resource<InputStream>> {
        self.admit(WasiCall::Cli, 0)?;
        self.handle(0)
    }
}

impl stdout::Host for HostState {
    fn get_stdout(&mut self) -> Result<Resource<OutputStream>> {
        self.admit(WasiCall::Cli, 0)?;
        self.handle(output::STDOUT)
    }
}

impl stderr::Host for HostState {
    fn get_stderr(&mut self) -> Result<Resource<OutputStream>> {
        self.admit(WasiCall::Cli, 0)?;
        self.handle(output::STDERR)
    }
}

impl terminal_input::Host for HostState {}

impl terminal_input::HostTerminalInput for HostState {
    fn drop(&mut self, _: Resource<TerminalInput>) -> Result<()> {
        Ok(())
    }
}

impl terminal_output::Host for HostState {}

impl terminal_output::HostTerminalOutput for HostState {
    fn drop(&mut self, _: Resource<TerminalOutput>) -> Result<()> {
        Ok(())
    }
}

impl terminal_stdin::Host for HostState {
    fn get_terminal_stdin(&mut self) -> Result<Option<Resource<TerminalInput>>> {
        self.admit(WasiCall::Cli, 0)?;
        Ok(None)
    }
}

impl terminal_stdout::Host for HostState {
    fn get_terminal_stdout(&mut self) -> Result<Option<Resource<TerminalOutput>>> {
        self.admit(WasiCall::Cli, 0)?;
        Ok(None)
    }
}

impl terminal_stderr::Host for HostState {
    fn get_terminal_stderr(&mut self) -> Result<Option<Resource<TerminalOutput>>> {
        self.admit(WasiCall::Cli, 0)?;
        Ok(None)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::sync::Arc;

    use super::super::super::super::testing::{Fake, state};

    #[test]
    fn handles_of_an_instance_are_bounded_and_those_that_are_dropped_are_free_again() {
        let mut state = state(&Arc::new(Fake::default()));
        assert_eq!((0..).map_while(|_| state.handle::<()>(0).ok()).count(), 1024);
        let error = state.handle::<()>(0).unwrap_err();
        assert_eq!(error.to_string(), "an instance may hold 1024 handles of streams and pollables of WASI");
        state.drop_handle();
        assert!(state.handle::<()>(0).is_ok());
    }
}
