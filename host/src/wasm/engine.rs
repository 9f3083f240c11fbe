//! The engine that all plugins share, and its clock.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::component::{HasSelf, Linker};
use wasmtime::{Config, WasmBacktraceDetails};

use super::bindings;
use super::component::Compiled;
use super::error::{EngineError, LoadError};
use super::host::Host;

/// How often a running guest gives way to others: half of what a person's eye or a health check would notice, and few enough
/// wake-ups (200 a second) for an idle machine.
pub(super) const TICK: Duration = Duration::from_millis(5);

/// WebAssembly frames a call may use. Deep recursion in a parser takes some hundred kB; wasmtime's own default.
const STACK: usize = 512 << 10;

/// A call's whole stack, host functions included: they need far less than the rest of it.
const CALL_STACK: usize = 2 << 20;

/// Compiles plugins and runs them. One for the process; clones share it.
///
/// ```no_run
/// # use pilothouse::wasm::Engine;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::new()?;
/// let plugin = engine.compile(&std::fs::read("myapple.wasm")?)?.link()?;
/// println!("{} imports {:?}", plugin.digest(), plugin.imports());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    engine: wasmtime::Engine,
    linker: Linker<Host>,
    _epochs: Epochs,
}

impl Engine {
    /// Sets the engine up and starts its epoch thread, which ends with the last clone.
    ///
    /// # Errors
    /// If the machine cannot run the engine or has no thread to spare.
    pub fn new() -> Result<Self, EngineError> {
        let mut config = Config::new();
        config
            .epoch_interruption(true)
            .max_wasm_stack(STACK)
            .async_stack_size(CALL_STACK)
            .memory_init_cow(true)
            // Names come from the name section; reading DWARF would keep it in memory, and must not hang on the environment.
            .wasm_backtrace_details(WasmBacktraceDetails::Disable);
        let engine = wasmtime::Engine::new(&config).map_err(EngineError::Engine)?;
        let mut linker = Linker::new(&engine);
        bindings::Plugin::add_to_linker::<_, HasSelf<_>>(&mut linker, |host: &mut Host| host)
            .map_err(EngineError::Engine)?;
        let epochs = Epochs::start(&engine).map_err(EngineError::Thread)?;
        Ok(Self(Arc::new(Inner { engine, linker, _epochs: epochs })))
    }

    /// Compiles a plugin's file: a component, or a core module with a component's metadata.
    ///
    /// Takes a tenth of a second of all cores for a plugin in Rust: not for a thread that serves.
    ///
    /// # Errors
    /// If the file is neither, or is damaged.
    pub fn compile(&self, file: &[u8]) -> Result<Compiled, LoadError> {
        Compiled::new(self, file)
    }

    pub(super) fn engine(&self) -> &wasmtime::Engine {
        &self.0.engine
    }

    pub(super) fn linker(&self) -> &Linker<Host> {
        &self.0.linker
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// The thread that advances the epoch every [`TICK`]. Joined on drop.
struct Epochs {
    /// Dropped to end the thread.
    alive: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Epochs {
    fn start(engine: &wasmtime::Engine) -> std::io::Result<Self> {
        let (alive, ended) = mpsc::channel::<()>();
        let engine = engine.clone();
        let thread = std::thread::Builder::new().name("wasm-epochs".to_owned()).spawn(move || {
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                engine.increment_epoch();
            }
        })?;
        Ok(Self { alive: Some(alive), thread: Some(thread) })
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Some(thread) = self.thread.take() {
            // Ended, one way or another: nothing is left to do.
            let _ = thread.join();
        }
    }
}
