//! The engine that all plugins share.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use component::Compiled;
use load::LogThrottle;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{info, warn};
use wasmtime::PoolingAllocationConfig;

use super::{
    super::{
        load::{
            aside::Aside,
            cache::Cache,
            child,
            code::{Code, Ready, Sandbox, Source},
            compiler::Compiler,
            digest::Digest,
            error::LoadError,
            header::header,
            settings::{HAS_BASELINE, SLOTS, pooled},
            turns::Turns,
        },
        tier::{Optimizing, Tier},
    },
    ending::Ending,
    epochs::{Epochs, RunningGuest},
    tally::{InstanceFigures, Tallies, Tally},
};
use crate::{allocator, name::PluginName};

pub(crate) mod component;
mod load;

/// Reused instances of all plugins together: half of the slots, so that most new calls find a free slot.
const REUSABLE: usize = SLOTS as usize / 2;

/// Pre-warmed instances of all plugins together: a quarter of the remaining slots. An instance of a plugin in Rust
/// touches about 35 kB of its slot.
const MADE_AHEAD: usize = SLOTS as usize / 8;

/// Why the engine cannot start. The cause is the machine or its settings, never a plugin.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The WebAssembly engine rejected its settings.
    #[error("cannot set up the WebAssembly engine")]
    Engine(#[source] wasmtime::Error),
    /// No thread or timer is available.
    #[error("cannot start a thread of the WebAssembly engine")]
    Thread(#[source] std::io::Error),
}

/// Compiles plugins and runs them. One for the process; clones share it.
///
/// ```no_run
/// # use pilothouse::wasm::Engine;
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::new()?;
/// let plugin = engine.compile(&std::fs::read("myapple.wasm")?)?.link().await?;
/// println!("{} imports {:?}", plugin.digest(), plugin.imports());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Engine(Arc<EngineState>);

struct EngineState {
    plain: Arc<Sandbox>,
    pool: Option<Pool>,
    /// Created at the first use of [`Tier::Baseline`]. The inner `None` means that it cannot be created.
    baseline: Arc<OnceLock<Option<Arc<Sandbox>>>>,
    /// `None` compiles files in this process.
    compiler: Option<Compiler>,
    optimizing: Optimizing,
    cache: Option<Cache>,
    compiling: Turns,
    /// When the log last said that files wait.
    waits_said: LogThrottle,
    /// Loaded code by the file's digest. The same file is loaded once.
    codes: Mutex<HashMap<Digest, Weak<Code>>>,
    counts: Counts,
    tallies: Tallies,
    /// A permit for each reused instance.
    kept: Arc<Semaphore>,
    /// A permit for each pre-warmed instance.
    ahead: Arc<Semaphore>,
    ending: Ending<Box<dyn Send>>,
    epochs: Epochs,
}

/// Slots for instances. Used only if the kernel can tell which pages a call touched (Linux 6.7). Without that, cleaning
/// a slot takes as long as creating an instance.
struct Pool {
    sandbox: Sandbox,
    /// A permit for each instance in a slot.
    slots: Arc<Semaphore>,
}

#[derive(Default)]
struct Counts {
    baseline: Compiles,
    optimized: Compiles,
    hits: AtomicU64,
    misses: AtomicU64,
    rejected: AtomicU64,
}

#[derive(Default)]
struct Compiles {
    compiled: AtomicU64,
    failed: AtomicU64,
    nanoseconds: AtomicU64,
}

/// What the engine has done, and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Compilations by the baseline compiler.
    pub baseline: CompileFigures,
    /// Compilations by the optimizing compiler.
    pub optimized: CompileFigures,
    /// Files whose code was in the cache.
    pub hits: u64,
    /// Files whose code was not in the cache.
    pub misses: u64,
    /// Cached files that were damaged.
    pub rejected: u64,
    /// Loaded files with different contents.
    pub loaded: usize,
    /// Loaded files whose code is mapped, because it was called recently.
    pub mapped: usize,
    /// Loaded files whose code is not optimized yet.
    pub unoptimized: usize,
    /// Free and used slots of the pool. `None` without a pool.
    pub slots: Option<[usize; 2]>,
}

/// What one compiler has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompileFigures {
    /// Files that were compiled.
    pub compiled: u64,
    /// Files that failed to compile.
    pub failed: u64,
    /// Time spent on both.
    pub took: Duration,
}

impl Engine {
    /// Creates an engine that compiles in this process, for tests and measurements. A host compiles untrusted files in
    /// another process: see [`Self::with_compiler`]. The epoch thread ends with the last clone.
    ///
    /// # Errors
    /// If the machine cannot run the engine, or no thread can be started.
    pub fn new() -> Result<Self, EngineError> {
        Self::build(None, Optimizing::Never, None, Pool::new)
    }

    /// Creates an engine without a pool, as on an older kernel.
    #[cfg(test)]
    pub(crate) fn without_pool() -> Self {
        Self::build(None, Optimizing::Never, None, |_| None).expect("there is an engine")
    }

    /// Creates an engine that uses `compiler`, and keeps the code in `cache` if there is one.
    ///
    /// # Errors
    /// If the machine cannot run the engine, or no thread can be started.
    pub fn with_compiler(
        compiler: Compiler,
        optimizing: Optimizing,
        cache: Option<Cache>,
    ) -> Result<Self, EngineError> {
        Self::build(Some(compiler), optimizing, cache, Pool::new)
    }

    fn build(
        compiler: Option<Compiler>,
        optimizing: Optimizing,
        cache: Option<Cache>,
        pool: impl FnOnce(Arc<Aside>) -> Option<Pool>,
    ) -> Result<Self, EngineError> {
        let aside = Arc::new(Aside::start().map_err(EngineError::Thread)?);
        let plain = Sandbox::plain(Tier::Optimized, Arc::clone(&aside)).map_err(EngineError::Engine)?;
        let pool = pool(aside);
        let ending = Ending::start().map_err(EngineError::Thread)?;
        let baseline: Arc<OnceLock<Option<Arc<Sandbox>>>> = Arc::default();
        let engines = [Some(&plain), pool.as_ref().map(|pool| &pool.sandbox)];
        let engines: Vec<_> = engines.into_iter().flatten().map(|sandbox| sandbox.engine.clone()).collect();
        let later = Arc::clone(&baseline);
        let advance = move || {
            let engines = engines.iter().chain(later.get().into_iter().flatten().map(|baseline| &baseline.engine));
            engines.for_each(wasmtime::Engine::increment_epoch);
        };
        let epochs = Epochs::start(advance).map_err(EngineError::Thread)?;
        Ok(Self(Arc::new(EngineState {
            plain: Arc::new(plain),
            pool,
            baseline,
            compiler,
            optimizing,
            cache,
            compiling: Turns::default(),
            waits_said: LogThrottle::default(),
            codes: Mutex::default(),
            counts: Counts::default(),
            tallies: Tallies::default(),
            kept: Arc::new(Semaphore::new(REUSABLE)),
            ahead: Arc::new(Semaphore::new(MADE_AHEAD)),
            ending,
            epochs,
        })))
    }

    /// Compiles a plugin's file in this process: a component, or a core module with a component's metadata.
    ///
    /// For a plugin in Rust, that takes all cores for a tenth of a second. Do not call it on a worker thread; see
    /// [`Self::load`].
    ///
    /// # Errors
    /// If the file is neither, or is damaged.
    pub fn compile(&self, file: &[u8]) -> Result<Compiled, LoadError> {
        self.compile_for(&self.0.plain, &self.0.counts.optimized, file)
    }

    /// Compiles with the baseline compiler, which must be available.
    #[cfg(test)]
    pub(crate) fn compile_baseline(&self, file: &[u8]) -> Result<Compiled, LoadError> {
        self.compile_for(&self.baseline().expect("there is a baseline"), &self.0.counts.baseline, file)
    }

    /// Does now what [`Self::load`] leaves for later. The file must be loaded.
    #[cfg(test)]
    pub(crate) fn optimize_now(&self, file: &[u8]) {
        let code = self.0.codes.lock().get(&Digest::of(file)).and_then(Weak::upgrade).expect("it is loaded");
        let compiled = child::compile(&self.0.plain.engine, file).expect("it was compiled before");
        code.replace(Source::Bytes(compiled), &self.0.plain);
    }

    fn compile_for(&self, sandbox: &Arc<Sandbox>, counts: &Compiles, file: &[u8]) -> Result<Compiled, LoadError> {
        header(file)?;
        let digest = Digest::of(file);
        let began = Instant::now();
        let compiled = child::compile(&sandbox.engine, file);
        counts.count(began.elapsed(), compiled.is_ok());
        Ok(self.enter(digest, load::code(Source::Bytes(compiled?), sandbox)?, file.len()))
    }

    /// Returns the sandbox for [`Tier::Baseline`], or `None` if it is not available.
    fn baseline(&self) -> Option<Arc<Sandbox>> {
        if !HAS_BASELINE {
            return None;
        }
        let make = || match Sandbox::plain(Tier::Baseline, Arc::clone(self.0.plain.aside())) {
            Ok(made) => Some(Arc::new(made)),
            Err(error) => {
                warn!(
                    error = format!("{error:#}"),
                    "the baseline compiler is not available; plugins are compiled by the optimizing compiler"
                );
                None
            }
        };
        self.0.baseline.get_or_init(make).clone()
    }

    /// Registers code under its file's digest. If code of the same file is loaded already, that code is used.
    fn enter(&self, digest: Digest, code: Code, size: usize) -> Compiled {
        self.enter_with(digest, code, size, || ())
    }

    /// Registers code like [`Self::enter`]. Calls `first` if no code of the file was loaded.
    fn enter_with(&self, digest: Digest, code: Code, size: usize, first: impl FnOnce()) -> Compiled {
        let mut codes = self.0.codes.lock();
        if let Some(code) = codes.get(&digest).and_then(Weak::upgrade) {
            return Compiled::new(self, code, digest, size);
        }
        first();
        let code = Arc::new(code);
        codes.retain(|_, code| code.strong_count() > 0);
        codes.insert(digest, Arc::downgrade(&code));
        Compiled::new(self, code, digest, size)
    }

    /// Maps code for an instance. Returns the code, a slot if it is the pool's, and `true` if it had to be mapped.
    pub(crate) async fn ready(
        &self,
        code: &Code,
    ) -> Result<(Arc<Ready>, Option<OwnedSemaphorePermit>, bool), LoadError> {
        let form = code.form();
        let mut mapped_in_vain = false;
        if let Some(pool) = &self.0.pool
            && pool.slots.available_permits() > 0
            && let Some((ready, mapped)) = form.pooled(&pool.sandbox).await?
        {
            // The slot is taken last, so that it is not held while code is mapped.
            if let Ok(slot) = Arc::clone(&pool.slots).try_acquire_owned() {
                return Ok((ready, Some(slot), mapped));
            }
            mapped_in_vain = mapped;
        }
        let (ready, mapped) = form.plain().await?;
        Ok((ready, None, mapped || mapped_in_vain))
    }

    /// Maps code for an instance without a slot.
    pub(crate) async fn ready_plain(&self, code: &Code) -> Result<Arc<Ready>, LoadError> {
        code.form().plain().await.map(|(ready, _)| ready)
    }

    /// Unmaps the code of plugins that were not called since the last time, and drops their pre-warmed instances.
    ///
    /// Calls in flight keep theirs. The next call maps the code again, which takes a tenth of a millisecond for a
    /// plugin in Rust.
    pub fn unmap_idle(&self) {
        self.0.tallies.all().iter().for_each(|tally| tally.drop_ahead());
        let unmapped = self.codes().iter().filter(|code| code.unmap_idle()).count();
        if unmapped > 0 {
            allocator::give_back_freed();
        }
    }

    /// Returns the tier of the code of this file, or `None` if it is not loaded.
    pub fn tier(&self, file: Digest) -> Option<Tier> {
        let loaded = self.0.codes.lock().get(&file).and_then(Weak::upgrade);
        loaded.map(|code| code.tier())
    }

    /// Drops reused instances that have not been called for a minute.
    pub fn drop_idle(&self) {
        self.0.tallies.all().iter().for_each(|tally| tally.drop_idle());
    }

    /// Returns the figures of the instances of each loaded plugin, ordered by plugin.
    pub fn instances(&self) -> Vec<(PluginName, InstanceFigures)> {
        self.0.tallies.all().iter().map(|tally| (tally.plugin().clone(), tally.figures())).collect()
    }

    /// Makes running guests give way at once, instead of at their next tick.
    pub fn give_way(&self) {
        self.0.epochs.advance();
    }

    /// Returns `true` if code is being mapped. A paused clock does not see the thread that does that.
    pub(crate) fn is_mapping(&self) -> bool {
        self.0.plain.aside().is_awaited()
    }

    /// Returns the thread that maps code.
    #[cfg(test)]
    pub(crate) fn aside(&self) -> &Aside {
        self.0.plain.aside()
    }

    /// Returns `true` if no guest runs and the epoch stands still.
    #[cfg(test)]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.0.epochs.is_stopped()
    }

    /// Keeps the epoch advancing until the result is dropped.
    pub(crate) fn running(&self) -> RunningGuest<'_> {
        self.0.epochs.running()
    }

    /// Drops a value that takes long to drop, on the thread for that.
    pub(crate) fn drop_later(&self, value: Box<dyn Send>) {
        self.0.ending.end(value);
    }

    /// Returns the counters of a plugin's instances.
    pub(crate) fn tally(&self, plugin: &PluginName) -> Arc<Tally> {
        self.0.tallies.of(plugin)
    }

    /// Returns a permit to keep an instance for reuse, if one is free.
    pub(crate) fn keep_one(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.kept).try_acquire_owned().ok()
    }

    /// Returns a permit to pre-warm an instance, if one is free.
    pub(crate) fn make_one_ahead(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.ahead).try_acquire_owned().ok()
    }

    /// Returns what the engine has done, and holds.
    pub fn figures(&self) -> Figures {
        let Counts { baseline, optimized, hits, misses, rejected } = &self.0.counts;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let codes = self.codes();
        Figures {
            baseline: baseline.figures(),
            optimized: optimized.figures(),
            hits: count(hits),
            misses: count(misses),
            rejected: count(rejected),
            loaded: codes.len(),
            mapped: codes.iter().filter(|code| code.is_mapped()).count(),
            unoptimized: codes.iter().filter(|code| code.tier() == Tier::Baseline).count(),
            slots: self.0.pool.as_ref().map(|pool| {
                let free = pool.slots.available_permits();
                [free, SLOTS as usize - free]
            }),
        }
    }

    /// The lock is released first: mapping takes a while under a lock of its own.
    fn codes(&self) -> Vec<Arc<Code>> {
        self.0.codes.lock().values().filter_map(Weak::upgrade).collect()
    }
}

impl Compiles {
    fn count(&self, took: Duration, ok: bool) {
        if ok { &self.compiled } else { &self.failed }.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn figures(&self) -> CompileFigures {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CompileFigures {
            compiled: count(&self.compiled),
            failed: count(&self.failed),
            took: Duration::from_nanos(count(&self.nanoseconds)),
        }
    }
}

impl Pool {
    /// Returns `None` if a pool is not useful or not available.
    fn new(aside: Arc<Aside>) -> Option<Self> {
        if !PoolingAllocationConfig::is_pagemap_scan_available() {
            info!(
                "instances are not pooled: the kernel does not tell which pages were touched (Linux 6.7 and later do)"
            );
            return None;
        }
        let sandbox = match Sandbox::new(&pooled(), Tier::Optimized, aside) {
            Ok(sandbox) => sandbox,
            // For example, if the address space is limited.
            Err(error) => {
                warn!(error = format!("{error:#}"), "instances are not pooled");
                return None;
            }
        };
        info!(slots = SLOTS, "instances are pooled");
        Some(Self { sandbox, slots: Arc::new(Semaphore::new(SLOTS as usize)) })
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_and_tables_of_64_bits_are_refused() {
        let engine = Engine::new().expect("there is an engine");
        for module in ["(memory i64 1)", "(table i64 1 funcref)"] {
            let file = wat::parse_str(format!("(component (core module {module}))")).expect("it is a component");
            let refused = engine.compile(&file).expect_err("it is refused");
            assert!(format!("{refused:?}").contains("memory64"), "{refused:?}");
        }
    }
}
