//! The engine that all plugins share, and its clock.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tempfile::NamedTempFile;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{info, warn};
use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig, WasmBacktraceDetails};

use super::aside::Aside;
use super::cache::{Cache, Damage, Key, verify};
use super::code::{Code, Ready, Sandbox, Source};
use super::compiler::Compiler;
use super::component::{Compiled, header};
use super::ending::Ending;
use super::epochs::{Epochs, Running};
use super::error::{EngineError, LoadError};
use super::instances::{Instance, LARGE};
use super::limits::{MAX_INSTANCES, MAX_TABLE_ELEMENTS};
use super::tally::{InstanceFigures, Tallies, Tally};
use super::turns::Turns;
use super::{Digest, PluginFile, child};
use crate::allocator;
use crate::guests::runs_suspect;
use crate::name::PluginName;

/// WebAssembly frames a call may use. Deep recursion in a parser takes some hundred kB; wasmtime's own default.
const STACK: usize = 512 << 10;

/// A call's whole stack, host functions included: they need far less than the rest of it.
const CALL_STACK: usize = 2 << 20;

/// Instances that have a slot of the pool at the same time. Threads do not bound them, as a call that waits for the API server keeps
/// its own; so many wait only where the server is slow, and then it does not matter that the rest is made from nothing.
const SLOTS: u32 = 256;

/// Instances that are kept for a next call, of all plugins together: half of the slots, so that most calls that begin find one.
const REUSABLE: usize = SLOTS as usize / 2;

/// Instances that are made ahead of a call, of all plugins together: a quarter of the slots that are left. What each touches stays in its
/// slot, some 35 kB for a plugin in Rust.
const MADE_AHEAD: usize = SLOTS as usize / 8;

/// Memories that one component may have in a slot. Each reserves 4 GiB of address space, of which there are 128 TiB.
const SLOT_MEMORIES: u32 = 2;

/// Tables that one component may have in a slot: a guest in Rust has two or three.
const SLOT_TABLES: u32 = 8;

/// Bytes of a memory that its slot keeps after a call, to be overwritten instead of asked for again: what a call on an object of 50 kB
/// touches, or on one of 6 kB four times. What one call has touched is cleaned after each one from then on, at some 10 GB/s.
const KEPT: usize = 192 << 10;

/// Slots that keep something though nothing uses them: 12 MiB at most.
const WARM: u32 = 64;

/// How often is said that a file is still being compiled, or waits for that: one with an interpreter inside takes some seconds.
const PROGRESS: Duration = Duration::from_secs(5);

/// What shapes compiled code: the same in every process and for both engines.
pub(super) fn settings() -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .max_wasm_stack(STACK)
        .async_stack_size(CALL_STACK)
        .memory_init_cow(true)
        // No language has use for 64 bits here. And where the growth of such a table overflows, the limiter hears of a failure of which it has
        // not granted the beginning.
        .wasm_memory64(false)
        // Nor has any for pages of another size, and there it is the same with memories.
        .wasm_custom_page_sizes(false)
        // Names come from the name section; reading DWARF would keep it in memory, and must not hang on the environment.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable);
    config
}

/// The same with instances from a pool.
fn pooled() -> Config {
    let mut pool = PoolingAllocationConfig::new();
    let all = |each: u32| SLOTS.saturating_mul(each);
    let instances = u32::try_from(MAX_INSTANCES).unwrap_or(u32::MAX);
    pool.total_component_instances(SLOTS)
        .total_stacks(SLOTS)
        // A counter and no memory: what a call may have without a pool.
        .max_core_instances_per_component(instances)
        .total_core_instances(all(instances))
        .max_memories_per_component(SLOT_MEMORIES)
        .total_memories(all(SLOT_MEMORIES))
        .max_tables_per_component(SLOT_TABLES)
        .total_tables(all(SLOT_TABLES))
        .table_elements(MAX_TABLE_ELEMENTS)
        .linear_memory_keep_resident(KEPT)
        .table_keep_resident(KEPT)
        .max_unused_warm_slots(WARM)
        .pagemap_scan(Enabled::Yes);
    let mut config = settings();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
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
    plain: Sandbox,
    pool: Option<Pool>,
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
    compiled: AtomicU64,
    failed: AtomicU64,
    nanoseconds: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    rejected: AtomicU64,
}

/// What the engine has done, and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Files that were compiled.
    pub compiled: u64,
    /// Files that could not be.
    pub failed: u64,
    /// Both together.
    pub compiling: Duration,
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
}

impl Engine {
    /// An engine that compiles in this process, for tests and measurements: what nobody vouches for is better compiled by another,
    /// see [`Self::with_compiler`]. Its epoch thread ends with the last clone.
    ///
    /// # Errors
    /// If the machine cannot run the engine or has no thread to spare.
    pub fn new() -> Result<Self, EngineError> {
        Self::build(None, None)
    }

    /// An engine whose files are compiled by `compiler`, and kept in `cache` if there is one.
    ///
    /// # Errors
    /// If the machine cannot run the engine or has no thread to spare.
    pub fn with_compiler(compiler: Compiler, cache: Option<Cache>) -> Result<Self, EngineError> {
        Self::build(Some(compiler), cache)
    }

    fn build(compiler: Option<Compiler>, cache: Option<Cache>) -> Result<Self, EngineError> {
        let aside = Arc::new(Aside::start().map_err(EngineError::Thread)?);
        let plain = Sandbox::new(&settings(), Arc::clone(&aside)).map_err(EngineError::Engine)?;
        let pool = Pool::new(aside);
        let ending = Ending::start().map_err(EngineError::Thread)?;
        let engines = [Some(&plain), pool.as_ref().map(|pool| &pool.sandbox)];
        let engines: Vec<_> = engines.into_iter().flatten().map(|sandbox| sandbox.engine.clone()).collect();
        let epochs = Epochs::start(move || engines.iter().for_each(wasmtime::Engine::increment_epoch))
            .map_err(EngineError::Thread)?;
        Ok(Self(Arc::new(Inner {
            plain,
            pool,
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
        header(file)?;
        let digest = Digest::of(file);
        let compiled = self.0.timed(|| Ok(child::compile(&self.0.plain.engine, file)?))?;
        Ok(self.enter(digest, code(Source::Bytes(compiled))?, file.len()))
    }

    /// Loads a plugin's file: what is loaded or in the cache is not compiled again. Else it is compiled where the engine was told to, when
    /// it is its turn: one large file after another, and small ones beside them.
    ///
    /// # Errors
    /// If the file is neither component nor core module with a component's metadata, or is damaged, or cannot be compiled now
    /// ([`LoadError::passes`]).
    ///
    /// # Cancellation
    /// Dropping the future ends a compilation by another process.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time; see also [`Compiler`] for the thread.
    pub async fn load(&self, file: PluginFile) -> Result<Compiled, LoadError> {
        header(file.bytes())?;
        let (digest, bytes) = (file.digest(), file.bytes().len());
        if let Some(loaded) = self.look(digest, bytes).await? {
            return Ok(loaded);
        }
        let waits = |seconds| {
            // One says it for all: at the first start of a thousand plugins they wait for minutes.
            if self.0.waits_said.is_due() {
                let waiting = self.0.compiling.waiting();
                info!(bytes, seconds, waiting, "waits to be compiled: other files are being compiled");
            }
        };
        let _turn = saying(waits, self.0.compiling.take(digest, bytes)).await;
        // Who had the turn before may have compiled the same.
        if let Some(loaded) = self.look(digest, bytes).await? {
            return Ok(loaded);
        }
        let Some(compiler) = &self.0.compiler else {
            let engine = self.clone();
            return blocking(move || engine.compile(file.bytes())).await?;
        };
        self.0.counts.misses.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let compiles = |seconds| info!(bytes, seconds, "compiling");
        let compiled = saying(compiles, self.compile_with(compiler, &file)).await;
        self.0.counts.compiled(began.elapsed(), compiled.is_ok());
        Ok(self.enter(digest, code(Source::File(compiled?))?, bytes))
    }

    /// The file's code, if it is loaded or in the cache.
    async fn look(&self, digest: Digest, size: usize) -> Result<Option<Compiled>, LoadError> {
        let engine = self.clone();
        blocking(move || {
            let loaded = engine.0.codes.lock().get(&digest).and_then(Weak::upgrade);
            if let Some(code) = loaded {
                return Some(Compiled::new(&engine, code, digest, size));
            }
            let cache = engine.0.cache.as_ref()?;
            let found = cache.find(&Key::new(&engine.0.plain.engine, digest)).and_then(|file| {
                let code = file.map(|file| Code::new(Source::File(file))).transpose();
                code.map_err(|error| Damage::Unreadable(error.to_string()))
            });
            match found {
                Ok(Some(code)) => {
                    let counts = &engine.0.counts;
                    Some(engine.enter_with(digest, code, size, || {
                        counts.hits.fetch_add(1, Ordering::Relaxed);
                    }))
                }
                Ok(None) => None,
                Err(damage) => {
                    engine.0.counts.rejected.fetch_add(1, Ordering::Relaxed);
                    warn!(%digest, error = %damage, "compiled code is not used, and compiled anew");
                    None
                }
            }
        })
        .await
    }

    /// Lets another process compile; the code is a file of the cache, or, where there is none or it is full, one without a name.
    async fn compile_with(&self, compiler: &Compiler, file: &PluginFile) -> Result<File, LoadError> {
        if let Some(cache) = &self.0.cache {
            let compiled = match cache.begin() {
                Ok(temporary) => self.compile_into(compiler, file, Output::Cached(temporary)).await,
                Err(error) => Err(LoadError::Compiler(error)),
            };
            match compiled {
                Err(LoadError::Compiler(error)) => {
                    warn!(directory = %cache.dir().display(), %error, "cannot keep compiled code");
                }
                compiled => return compiled,
            }
        }
        let file_of = tempfile::tempfile().or_else(|_| memory_file()).map_err(LoadError::Compiler)?;
        self.compile_into(compiler, file, Output::Unnamed(file_of)).await
    }

    async fn compile_into(&self, compiler: &Compiler, file: &PluginFile, output: Output) -> Result<File, LoadError> {
        compiler.compile(file.bytes(), output.writer().map_err(LoadError::Compiler)?).await?;
        let (engine, digest) = (self.clone(), file.digest());
        blocking(move || {
            let key = Key::new(&engine.0.plain.engine, digest);
            let code = output.reader().map_err(LoadError::Compiler)?;
            verify(&code, &key).map_err(|damage| LoadError::Compiler(std::io::Error::other(damage)))?;
            if let (Output::Cached(temporary), Some(cache)) = (output, &engine.0.cache)
                && let Err(error) = cache.keep(&key, temporary, &engine.used())
            {
                warn!(directory = %cache.dir().display(), %error, "cannot keep compiled code");
            }
            Ok(code)
        })
        .await?
    }

    /// Keys of what is loaded.
    fn used(&self) -> HashSet<Key> {
        let codes = self.0.codes.lock();
        let alive = codes.iter().filter(|(_, code)| code.strong_count() > 0);
        alive.map(|(digest, _)| Key::new(&self.0.plain.engine, *digest)).collect()
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
    pub(super) async fn ready(
        &self,
        code: &Code,
    ) -> Result<(Arc<Ready>, Option<OwnedSemaphorePermit>, bool), LoadError> {
        let mut mapped_in_vain = false;
        if let Some(pool) = &self.0.pool
            && pool.slots.available_permits() > 0
            && let Some((ready, mapped)) = code.pooled(&pool.sandbox).await?
        {
            // Not before: who waits for code to be mapped would keep it from others.
            if let Ok(slot) = Arc::clone(&pool.slots).try_acquire_owned() {
                return Ok((ready, Some(slot), mapped));
            }
            mapped_in_vain = mapped;
        }
        let (ready, mapped) = code.plain(&self.0.plain).await?;
        Ok((ready, None, mapped || mapped_in_vain))
    }

    /// Code that is mapped for an instance that is made from nothing.
    pub(super) async fn ready_plain(&self, code: &Code) -> Result<Arc<Ready>, LoadError> {
        code.plain(&self.0.plain).await.map(|(ready, _)| ready)
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

    /// Slots of the pool that no instance has, if there is a pool.
    #[cfg(test)]
    pub(super) fn free_slots(&self) -> Option<usize> {
        self.0.pool.as_ref().map(|pool| pool.slots.available_permits())
    }

    /// Where code is mapped.
    #[cfg(test)]
    pub(super) fn aside(&self) -> &Aside {
        self.0.plain.aside()
    }

    /// No guest runs, and the epoch stands still.
    #[cfg(test)]
    pub(super) fn rests(&self) -> bool {
        self.0.epochs.rest()
    }

    /// A guest runs, until this is dropped.
    pub(super) fn running(&self) -> Running<'_> {
        self.0.epochs.running()
    }

    /// Ends an instance: one that takes a while to end on the thread for that, if it has time, unless this is a thread for what lasts.
    pub(super) fn end(&self, mut instance: Instance) {
        if instance.retire() > LARGE && !runs_suspect() {
            self.0.ending.end(instance);
        }
    }

    /// Where a plugin's instances are counted.
    pub(super) fn tally(&self, plugin: &PluginName) -> Arc<Tally> {
        self.0.tallies.of(plugin)
    }

    /// Room for one instance to be kept, if there is some.
    pub(super) fn keep_one(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.kept).try_acquire_owned().ok()
    }

    /// Room for one instance to wait for its first call, if there is some.
    pub(super) fn make_one_ahead(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.ahead).try_acquire_owned().ok()
    }

    /// What it has done, and holds.
    pub fn figures(&self) -> Figures {
        let Counts { compiled, failed, nanoseconds, hits, misses, rejected } = &self.0.counts;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let codes = self.codes();
        Figures {
            compiled: count(compiled),
            failed: count(failed),
            compiling: Duration::from_nanos(count(nanoseconds)),
            hits: count(hits),
            misses: count(misses),
            rejected: count(rejected),
            loaded: codes.len(),
            mapped: codes.iter().filter(|code| code.is_mapped()).count(),
        }
    }

    /// Not under the lock: mapping takes a while, and holds a code's own.
    fn codes(&self) -> Vec<Arc<Code>> {
        self.0.codes.lock().values().filter_map(Weak::upgrade).collect()
    }
}

impl Inner {
    fn timed<T>(&self, compile: impl FnOnce() -> Result<T, LoadError>) -> Result<T, LoadError> {
        let began = Instant::now();
        let compiled = compile();
        self.counts.compiled(began.elapsed(), compiled.is_ok());
        compiled
    }
}

impl Counts {
    fn compiled(&self, took: Duration, ok: bool) {
        if ok { &self.compiled } else { &self.failed }.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
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
        let sandbox = match Sandbox::new(&pooled(), aside) {
            Ok(sandbox) => sandbox,
            // Somebody bounds address space.
            Err(error) => {
                warn!(error = format!("{error:#}"), "instances are not pooled");
                return None;
            }
        };
        Some(Self { sandbox, slots: Arc::new(Semaphore::new(SLOTS as usize)) })
    }
}

/// Where a compiler writes.
enum Output {
    /// To a file that the cache may keep.
    Cached(NamedTempFile),
    /// To one that ends with this process.
    Unnamed(File),
}

impl Output {
    fn writer(&self) -> std::io::Result<File> {
        match self {
            Self::Cached(file) => file.as_file().try_clone(),
            Self::Unnamed(file) => file.try_clone(),
        }
    }

    fn reader(&self) -> std::io::Result<File> {
        match self {
            // Nobody writes through this one.
            Self::Cached(file) => reopened(file.as_file(), file.path()),
            Self::Unnamed(file) => file.try_clone(),
        }
    }
}

/// A file that is open, opened once more by its name: if that leads to another by now, whoever may write to a directory above put it there.
fn reopened(file: &File, name: &Path) -> std::io::Result<File> {
    let again = File::open(name)?;
    let (one, other) = (file.metadata()?, again.metadata()?);
    if (one.dev(), one.ino()) == (other.dev(), other.ino()) {
        Ok(again)
    } else {
        Err(std::io::Error::other(format!("{} was replaced by another file", name.display())))
    }
}

/// A file that is nowhere but in memory.
#[cfg(target_os = "linux")]
fn memory_file() -> std::io::Result<File> {
    let file = rustix::fs::memfd_create("pilothouse-code", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(file.into())
}

/// A file that is nowhere but in memory.
#[cfg(not(target_os = "linux"))]
fn memory_file() -> std::io::Result<File> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// What was just compiled.
fn code(source: Source) -> Result<Code, LoadError> {
    Code::new(source).map_err(|error| LoadError::Code(format!("cannot read its end: {error}")))
}

/// When something was said last that many may have a reason to say.
#[derive(Default)]
struct Said(Mutex<Option<tokio::time::Instant>>);

impl Said {
    /// Whether it is to be said again: then it counts as said. Half of the time after which each would say it, so that one alone always does.
    fn is_due(&self) -> bool {
        let (now, last) = (tokio::time::Instant::now(), &mut *self.0.lock());
        let is_due = last.is_none_or(|last| now.duration_since(last) >= PROGRESS / 2);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

/// Says now and then, with the seconds that have passed, that something has not ended yet.
async fn saying<T>(say: impl Fn(u64), lasts: impl Future<Output = T>) -> T {
    let began = tokio::time::Instant::now();
    let mut progress = tokio::time::interval_at(began + PROGRESS, PROGRESS);
    let mut lasts = std::pin::pin!(lasts);
    loop {
        tokio::select! {
            biased;
            ended = &mut lasts => return ended,
            _ = progress.tick() => say(began.elapsed().as_secs()),
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, LoadError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| LoadError::Code(format!("the host failed: {error}")))
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn code_that_was_replaced_before_it_is_read_is_refused() {
        let (ours, theirs) = (NamedTempFile::new().expect("a file"), NamedTempFile::new().expect("a file"));
        assert!(reopened(ours.as_file(), ours.path()).is_ok());
        std::fs::rename(theirs.path(), ours.path()).expect("it can be replaced");
        let error = reopened(ours.as_file(), ours.path()).expect_err("it is another");
        assert_eq!(error.to_string(), format!("{} was replaced by another file", ours.path().display()));
    }

    #[test]
    fn memories_and_tables_of_64_bits_are_refused() {
        let engine = Engine::new().expect("there is an engine");
        for module in ["(memory i64 1)", "(table i64 1 funcref)"] {
            let file = wat::parse_str(format!("(component (core module {module}))")).expect("it is a component");
            let refused = engine.compile(&file).expect_err("it is refused");
            assert!(format!("{refused:?}").contains("memory64"), "{refused:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_lasts_is_said_every_five_seconds_and_what_does_not_is_not() {
        let said = Mutex::new(Vec::new());
        let lasts =
            |seconds| saying(|passed| said.lock().push(passed), tokio::time::sleep(Duration::from_secs(seconds)));
        lasts(4).await;
        assert_eq!(*said.lock(), [0; 0]);
        lasts(12).await;
        assert_eq!(*said.lock(), [5, 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_many_have_a_reason_to_say_is_said_by_one() {
        let (said, lines) = (Said::default(), Mutex::new(Vec::new()));
        let all = (0..1000).map(|number| {
            let say = |passed| {
                if said.is_due() {
                    lines.lock().push(passed);
                }
            };
            // The first have their turn before the others.
            saying(say, tokio::time::sleep(Duration::from_secs(7 + number / 100)))
        });
        futures::future::join_all(all).await;
        assert_eq!(*lines.lock(), [5, 10, 15]);
    }
}
