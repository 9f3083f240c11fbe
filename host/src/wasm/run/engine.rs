//! The engine that all plugins share, and its clock.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use load::Said;
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
        tier::Tier,
    },
    component::Compiled,
    ending::Ending,
    epochs::{Epochs, Running},
    instances::{Instance, LARGE},
    tally::{InstanceFigures, Tallies, Tally},
};
use crate::{allocator, guests::runs_suspect, name::PluginName};

mod load;

/// Instances that are kept for a next call, of all plugins together: half of the slots, so that most calls that begin find one.
const REUSABLE: usize = SLOTS as usize / 2;

/// Instances that are made ahead of a call, of all plugins together: a quarter of the slots that are left. What each touches stays in its
/// slot, some 35 kB for a plugin in Rust.
const MADE_AHEAD: usize = SLOTS as usize / 8;

/// The sandbox itself could not be set up: this machine or its settings, never a plugin.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The WebAssembly engine refused its configuration.
    #[error("cannot set up the WebAssembly engine")]
    Engine(#[source] wasmtime::Error),
    /// No thread of its own, or no timer.
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
pub struct Engine(Arc<Inner>);

struct Inner {
    plain: Arc<Sandbox>,
    pool: Option<Pool>,
    /// For [`Tier::Baseline`], from when something was first compiled so; none: there is none to be had.
    baseline: Arc<OnceLock<Option<Arc<Sandbox>>>>,
    /// None: files are compiled in this process.
    compiler: Option<Compiler>,
    cache: Option<Cache>,
    compiling: Turns,
    /// That files wait to be compiled.
    waits_said: Said,
    /// By the digest of the file: of the same file there is one.
    codes: Mutex<HashMap<Digest, Weak<Code>>>,
    counts: Counts,
    tallies: Tallies,
    /// Who has a permit may be kept.
    kept: Arc<Semaphore>,
    /// Who has a permit may wait for its first call.
    ahead: Arc<Semaphore>,
    ending: Ending<Instance>,
    epochs: Epochs,
}

/// Instances that are there already. Only where the kernel tells which pages a call has touched (Linux 6.7): else it takes as long to
/// clean a slot as to make an instance.
struct Pool {
    sandbox: Sandbox,
    /// Who has a permit finds a slot.
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
    /// What was compiled soon.
    pub baseline: CompileFigures,
    /// What was compiled well.
    pub optimized: CompileFigures,
    /// Files whose code was in the cache.
    pub hits: u64,
    /// Files whose code was not.
    pub misses: u64,
    /// Files of the cache that were damaged.
    pub rejected: u64,
    /// Different contents of plugins' files that are loaded.
    pub loaded: usize,
    /// Of these in memory, as they were called of late.
    pub mapped: usize,
    /// Of those that are loaded not optimized yet.
    pub unoptimized: usize,
    /// Places for instances that are made at once, where the kernel lets them pay: those that are free, and those that instances have.
    pub slots: Option<[usize; 2]>,
}

/// What one compiler has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompileFigures {
    /// Files that were compiled.
    pub compiled: u64,
    /// Files that could not be.
    pub failed: u64,
    /// Both together.
    pub took: Duration,
}

impl Engine {
    /// An engine that compiles in this process, for tests and measurements: what nobody vouches for is better compiled by another,
    /// see [`Self::with_compiler`]. Its epoch thread ends with the last clone.
    ///
    /// # Errors
    /// If the machine cannot run the engine or has no thread to spare.
    pub fn new() -> Result<Self, EngineError> {
        Self::build(None, None, Pool::new)
    }

    /// As on a kernel with which a pool does not pay.
    #[cfg(test)]
    pub(crate) fn without_pool() -> Self {
        Self::build(None, None, |_| None).expect("there is an engine")
    }

    /// An engine whose files are compiled by `compiler`, and kept in `cache` if there is one.
    ///
    /// # Errors
    /// If the machine cannot run the engine or has no thread to spare.
    pub fn with_compiler(compiler: Compiler, cache: Option<Cache>) -> Result<Self, EngineError> {
        Self::build(Some(compiler), cache, Pool::new)
    }

    fn build(
        compiler: Option<Compiler>,
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
        Ok(Self(Arc::new(Inner {
            plain: Arc::new(plain),
            pool,
            baseline,
            compiler,
            cache,
            compiling: Turns::default(),
            waits_said: Said::default(),
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
    /// Takes a tenth of a second of all cores for a plugin in Rust: not for a thread that serves. See [`Self::load`].
    ///
    /// # Errors
    /// If the file is neither, or is damaged.
    pub fn compile(&self, file: &[u8]) -> Result<Compiled, LoadError> {
        self.compile_for(&self.0.plain, &self.0.counts.optimized, file)
    }

    /// The same for the baseline's sandbox, which must be there.
    #[cfg(test)]
    pub(crate) fn compile_baseline(&self, file: &[u8]) -> Result<Compiled, LoadError> {
        self.compile_for(&self.baseline().expect("there is a baseline"), &self.0.counts.baseline, file)
    }

    /// Does now what [`Self::load`] leaves for later: `file` is loaded.
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

    /// Where code of [`Tier::Baseline`] runs. None: there is none to be had.
    fn baseline(&self) -> Option<Arc<Sandbox>> {
        if !HAS_BASELINE {
            return None;
        }
        let make = || match Sandbox::plain(Tier::Baseline, Arc::clone(self.0.plain.aside())) {
            Ok(made) => Some(Arc::new(made)),
            Err(error) => {
                warn!(error = format!("{error:#}"), "plugins are compiled by the optimizing compiler alone");
                None
            }
        };
        self.0.baseline.get_or_init(make).clone()
    }

    /// From now on it is what the file's content leads to, unless something does already.
    fn enter(&self, digest: Digest, code: Code, size: usize) -> Compiled {
        self.enter_with(digest, code, size, || ())
    }

    /// The same; `first` is called if nothing did.
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

    /// Code that is mapped, a slot of the pool for one instance of it if it is the pool's, and whether it had to be mapped.
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
            // Not before: who waits for code to be mapped would keep it from others.
            if let Ok(slot) = Arc::clone(&pool.slots).try_acquire_owned() {
                return Ok((ready, Some(slot), mapped));
            }
            mapped_in_vain = mapped;
        }
        let (ready, mapped) = form.plain().await?;
        Ok((ready, None, mapped || mapped_in_vain))
    }

    /// Code that is mapped for an instance that is made from nothing.
    pub(crate) async fn ready_plain(&self, code: &Code) -> Result<Arc<Ready>, LoadError> {
        code.form().plain().await.map(|(ready, _)| ready)
    }

    /// Lets go of the code of every plugin that was not called since this was last called, and of the instance that was made ahead for it.
    /// Calls in flight keep theirs; the next call maps it again, which takes a tenth of a millisecond for a plugin in Rust.
    pub fn unmap_idle(&self) {
        self.0.tallies.all().iter().for_each(|tally| tally.drop_ahead());
        let unmapped = self.codes().iter().filter(|code| code.unmap_idle()).count();
        if unmapped > 0 {
            allocator::give_back_freed();
        }
    }

    /// How well the code of a file of this content is compiled, if one is loaded.
    pub fn tier(&self, file: Digest) -> Option<Tier> {
        let loaded = self.0.codes.lock().get(&file).and_then(Weak::upgrade);
        loaded.map(|code| code.tier())
    }

    /// Ends the instances that were kept for a next call that has not come for a minute.
    pub fn drop_idle(&self) {
        self.0.tallies.all().iter().for_each(|tally| tally.drop_idle());
    }

    /// What is known of the instances of each plugin that is loaded, in the order of plugins.
    pub fn instances(&self) -> Vec<(PluginName, InstanceFigures)> {
        self.0.tallies.all().iter().map(|tally| (tally.plugin().clone(), tally.figures())).collect()
    }

    /// Guests that run give way to others at once, and not at their next tick.
    pub fn give_way(&self) {
        self.0.epochs.advance();
    }

    /// Where code is mapped.
    #[cfg(test)]
    pub(crate) fn aside(&self) -> &Aside {
        self.0.plain.aside()
    }

    /// No guest runs, and the epoch stands still.
    #[cfg(test)]
    pub(crate) fn rests(&self) -> bool {
        self.0.epochs.rest()
    }

    /// A guest runs, until this is dropped.
    pub(crate) fn running(&self) -> Running<'_> {
        self.0.epochs.running()
    }

    /// Ends an instance: one that takes a while to end on the thread for that, if it has time, unless this is a thread for what lasts.
    pub(crate) fn end(&self, mut instance: Instance) {
        if instance.retire() > LARGE && !runs_suspect() {
            self.0.ending.end(instance);
        }
    }

    /// Where a plugin's instances are counted.
    pub(crate) fn tally(&self, plugin: &PluginName) -> Arc<Tally> {
        self.0.tallies.of(plugin)
    }

    /// Room for one instance to be kept, if there is some.
    pub(crate) fn keep_one(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.kept).try_acquire_owned().ok()
    }

    /// Room for one instance to wait for its first call, if there is some.
    pub(crate) fn make_one_ahead(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.ahead).try_acquire_owned().ok()
    }

    /// What it has done, and holds.
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

    /// Not under the lock: mapping takes a while, and holds a code's own.
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
    /// None where it would not pay, or cannot be had.
    fn new(aside: Arc<Aside>) -> Option<Self> {
        if !PoolingAllocationConfig::is_pagemap_scan_available() {
            info!(
                "instances are not pooled: the kernel does not tell which pages were touched (Linux 6.7 and later do)"
            );
            return None;
        }
        let sandbox = match Sandbox::new(&pooled(), Tier::Optimized, aside) {
            Ok(sandbox) => sandbox,
            // Somebody bounds address space.
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
