//! Turns a plugin's file into code: finds it loaded or in the cache, or compiles it.
//!
//! ```text
//! file ─┬─ loaded ─────────────────────────────────────► code
//!       ├─ in the cache ───────────────────────────────► code, as it is kept there
//!       └─ its turn ─ baseline compiler ► code ── background ─ optimizing compiler ─ the cache ─► the same code, optimized
//! ```
//!
//! Somebody waits for a reload, and many wait for a first start. So new files are compiled fast first, and optimized
//! when no other file is waiting. The optimizing compiler is used at once if there is no baseline compiler, or if that
//! one does not know an instruction. Code that is never optimized is kept in the cache as the baseline compiler made
//! it.

use std::{
    collections::HashSet,
    fs::File,
    io, iter,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::Path,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use tempfile::NamedTempFile;
use tracing::{Instrument as _, info, warn};

use super::{
    super::super::load::{
        attempt::{Attempt, Suspect},
        cache::{Key, verify},
        code::{Code, Sandbox, Source},
        compiler::Compiler,
        digest::Digest,
        error::LoadError,
        file::PluginFile,
        header::header,
    },
    Compiles, Engine, Optimizing, Tier,
    component::Compiled,
};
use crate::allocator;

/// How often the log says that a file is being compiled, or waits. A file with an embedded interpreter takes a few
/// seconds.
const PROGRESS: Duration = Duration::from_secs(5);

/// How long new code is left alone before it is optimized. It has calls to serve, or the next build replaces it.
const SETTLES: Duration = Duration::from_secs(1);

/// Pause before a failed optimization is retried. Doubles with each retry.
const AGAIN: Duration = Duration::from_secs(60);

/// Upper bound of that pause.
const AT_LAST: Duration = Duration::from_secs(3600);

impl Engine {
    /// Loads a plugin's file. Code that is loaded or in the cache is not compiled again.
    ///
    /// Otherwise the file waits for its turn and is compiled: one large file after the other, and small ones beside
    /// them. If possible the baseline compiler runs first, and a background task optimizes the code later,
    /// unless that is [`Optimizing::Never`].
    ///
    /// # Errors
    /// If the file is neither a component nor a core module with a component's metadata, is damaged, or cannot be
    /// compiled now ([`LoadError::passes`]).
    ///
    /// # Cancellation
    /// Dropping the future ends a compilation by another process.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time. See [`Compiler`] for the thread.
    pub async fn load(&self, file: PluginFile) -> Result<Compiled, LoadError> {
        header(file.bytes())?;
        let (digest, bytes) = (file.digest(), file.bytes().len());
        if let Some(loaded) = self.look(digest, bytes).await? {
            return Ok(loaded);
        }
        let waits = |seconds| {
            // One log line for all files: at the first start of a thousand plugins they wait for minutes.
            if self.0.waits_said.is_due() {
                let waiting = self.0.compiling.waiting();
                info!(bytes, seconds, waiting, "waiting to be compiled; other files are being compiled");
            }
        };
        let _turn = log_progress(waits, self.0.compiling.take(digest, bytes)).await;
        // Another task may have compiled the same file meanwhile.
        if let Some(loaded) = self.look(digest, bytes).await? {
            return Ok(loaded);
        }
        let Some(compiler) = &self.0.compiler else {
            let engine = self.clone();
            return blocking(move || engine.compile(file.bytes())).await?;
        };
        self.0.counts.misses.fetch_add(1, Ordering::Relaxed);
        log_progress(|seconds| info!(bytes, seconds, "compiling"), self.compile_new(compiler, file)).await
    }

    /// Compiles a file that is neither loaded nor in the cache.
    async fn compile_new(&self, compiler: &Compiler, file: PluginFile) -> Result<Compiled, LoadError> {
        let (digest, bytes) = (file.digest(), file.bytes().len());
        if let Some(baseline) = self.baseline() {
            let compiling = async {
                match self.0.optimizing {
                    Optimizing::Soon => self.compile_unnamed(compiler, &baseline, &file, &Location::ALL).await,
                    Optimizing::Never => self.compile_kept(compiler, &baseline, &file).await,
                }
            };
            match counted(&self.0.counts.baseline, compiling).await {
                Ok(compiled) => {
                    let code = code(Source::File(compiled), &baseline)?;
                    let compiled = self.enter(digest, code, bytes);
                    if self.0.optimizing == Optimizing::Soon {
                        let optimizing = self.clone().optimize(compiled.code(), compiler.clone(), file);
                        tokio::spawn(optimizing.in_current_span());
                    }
                    return Ok(compiled);
                }
                // Both compilers would report the same.
                Err(error @ (LoadError::Metadata | LoadError::Componentise(_))) => return Err(error),
                Err(error) if error.passes() => return Err(error),
                // The optimizing compiler decides whether the file is to blame.
                Err(_) => {}
            }
        }
        let compiling = self.compile_kept(compiler, &self.0.plain, &file);
        let compiled = counted(&self.0.counts.optimized, compiling).await?;
        Ok(self.enter(digest, code(Source::File(compiled), &self.0.plain)?, bytes))
    }

    /// Compiles `file` again with the optimizing compiler, and replaces `code`, which serves meanwhile.
    async fn optimize(self, code: Weak<Code>, compiler: Compiler, file: PluginFile) {
        let (digest, bytes) = (file.digest(), file.bytes().len());
        let engine = self.clone();
        // On disk, because a thousand files may wait.
        let kept =
            match blocking(move || engine.put_aside(&file)).await.and_then(|kept| kept.map_err(LoadError::Compiler)) {
                Ok(kept) => kept,
                Err(error) => {
                    let error = anyhow::Error::new(error);
                    warn!(error = format!("{error:#}"), "cannot optimize compiled code before the next start");
                    return;
                }
            };
        tokio::time::sleep(SETTLES).await;
        let (mut pause, mut gave_up) = (AGAIN, false);
        loop {
            let turn = self.0.compiling.take_last(gave_up).await;
            if code.upgrade().is_none_or(|code| code.tier() == Tier::Optimized) {
                return;
            }
            let began = Instant::now();
            let says = |seconds| info!(bytes, seconds, "optimizing compiled code; it serves meanwhile");
            let optimized = tokio::select! {
                optimized = log_progress(says, self.optimized(&compiler, digest, bytes, &kept)) => optimized,
                // A file is waiting, and needs the cores.
                () = turn.wanted() => {
                    gave_up = true;
                    continue;
                }
            };
            drop(turn);
            let error = match optimized {
                Ok(optimized) => {
                    if let Some(code) = code.upgrade() {
                        code.replace(Source::File(optimized), &self.0.plain);
                        info!(bytes, took = ?began.elapsed(), "compiled code is optimized");
                    }
                    // Dropping the old code frees the engine's data of it.
                    let _given_back = blocking(allocator::give_back_freed).await;
                    return;
                }
                Err(error) => error,
            };
            let passes = error.passes();
            let error = anyhow::Error::new(error);
            if !passes {
                warn!(error = format!("{error:#}"), "cannot optimize compiled code; it serves as it is");
                return;
            }
            let again_in = pause;
            warn!(error = format!("{error:#}"), ?again_in, "could not optimize compiled code; it serves as it is");
            let mut left = pause;
            while !left.is_zero() {
                tokio::time::sleep(AGAIN).await;
                if code.strong_count() == 0 {
                    return;
                }
                left = left.saturating_sub(AGAIN);
            }
            (pause, gave_up) = ((pause * 2).min(AT_LAST), false);
        }
    }

    /// Finds the optimized code of the file in `kept`, or compiles it.
    async fn optimized(
        &self,
        compiler: &Compiler,
        digest: Digest,
        bytes: usize,
        kept: &File,
    ) -> Result<File, LoadError> {
        let (engine, kept) = (self.clone(), kept.try_clone().map_err(LoadError::Compiler)?);
        let read = move || {
            // Another host may have compiled the same file.
            if let Some((found, _)) = engine.find(digest) {
                return Ok(Ok(found));
            }
            let mut file = vec![0; bytes];
            kept.read_exact_at(&mut file, 0)?;
            let file = PluginFile::new(file);
            // The code is stored under this digest, so the file must match it.
            let is_whole = file.digest() == digest;
            is_whole.then_some(Err(file)).ok_or_else(|| io::Error::other("the copy of the file is damaged"))
        };
        match blocking(read).await?.map_err(LoadError::Compiler)? {
            Ok(found) => Ok(found),
            Err(file) => counted(&self.0.counts.optimized, self.compile_kept(compiler, &self.0.plain, &file)).await,
        }
    }

    /// Writes a file to disk, or to memory if no disk has room.
    fn put_aside(&self, file: &PluginFile) -> io::Result<File> {
        let mut last = io::Error::from(io::ErrorKind::Unsupported);
        for place in Location::ALL {
            let aside = self.unnamed(place).and_then(|aside| {
                aside.write_all_at(file.bytes(), 0)?;
                Ok(aside)
            });
            match aside {
                Ok(aside) => return Ok(aside),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns the file's code, if it is loaded or in the cache.
    async fn look(&self, digest: Digest, size: usize) -> Result<Option<Compiled>, LoadError> {
        let engine = self.clone();
        blocking(move || {
            let loaded = engine.0.codes.lock().get(&digest).and_then(Weak::upgrade);
            if let Some(code) = loaded {
                return Some(Compiled::new(&engine, code, digest, size));
            }
            let (file, sandbox) = engine.find(digest)?;
            // It was damaged after the check, a moment ago.
            let code = code(Source::File(file), &sandbox).ok()?;
            let found = || _ = engine.0.counts.hits.fetch_add(1, Ordering::Relaxed);
            Some(engine.enter_with(digest, code, size, found))
        })
        .await
    }

    /// Returns the sandboxes whose code is kept in the cache, the faster code first.
    fn kept(&self) -> impl Iterator<Item = Arc<Sandbox>> {
        let baseline = (self.0.optimizing == Optimizing::Never).then(|| self.baseline()).flatten();
        iter::once(self.0.plain.clone()).chain(baseline)
    }

    /// Returns the file's code and the sandbox that it was compiled for, if it is in the cache.
    fn find(&self, digest: Digest) -> Option<(File, Arc<Sandbox>)> {
        let cache = self.0.cache.as_ref()?;
        self.kept().find_map(|sandbox| match cache.find(&Key::new(&sandbox.engine, digest)) {
            Ok(found) => found.map(|file| (file, sandbox)),
            Err(damage) => {
                self.0.counts.rejected.fetch_add(1, Ordering::Relaxed);
                warn!(%digest, error = %damage, "cached code is damaged; the file is compiled again");
                None
            }
        })
    }

    /// Runs the compiler for `sandbox`. The code becomes a cached file, or an unnamed one if there is no cache or it is
    /// full.
    async fn compile_kept(
        &self,
        compiler: &Compiler,
        sandbox: &Arc<Sandbox>,
        file: &PluginFile,
    ) -> Result<File, LoadError> {
        let Some(cache) = &self.0.cache else {
            return self.compile_unnamed(compiler, sandbox, file, &Location::ELSEWHERE).await;
        };
        let compiled = match cache.begin() {
            Ok(temporary) => self.compile_into(compiler, sandbox, file, Output::Cached(temporary)).await,
            Err(error) => Err(LoadError::Compiler(error)),
        };
        match compiled {
            Err(LoadError::Compiler(error)) => {
                warn!(directory = %cache.dir().display(), %error, "cannot keep compiled code");
                self.compile_unnamed(compiler, sandbox, file, &Location::ELSEWHERE).await
            }
            compiled => compiled,
        }
    }

    /// Runs the compiler for `sandbox`. The code becomes an unnamed file, in the first of these places with room for
    /// it.
    async fn compile_unnamed(
        &self,
        compiler: &Compiler,
        sandbox: &Arc<Sandbox>,
        file: &PluginFile,
        places: &[Location],
    ) -> Result<File, LoadError> {
        let mut last = io::Error::from(io::ErrorKind::Unsupported);
        for &place in places {
            let compiled = match self.unnamed(place) {
                Ok(unnamed) => self.compile_into(compiler, sandbox, file, Output::Unnamed(unnamed)).await,
                Err(error) => Err(LoadError::Compiler(error)),
            };
            match compiled {
                Err(LoadError::Compiler(error)) => last = error,
                compiled => return compiled,
            }
        }
        Err(LoadError::Compiler(last))
    }

    /// Runs the compiler for `sandbox`, and verifies what it wrote.
    async fn compile_into(
        &self,
        compiler: &Compiler,
        sandbox: &Arc<Sandbox>,
        file: &PluginFile,
        output: Output,
    ) -> Result<File, LoadError> {
        let (engine, sandbox, digest) = (self.clone(), Arc::clone(sandbox), file.digest());
        let (attempt, writer) =
            (self.attempt(digest, sandbox.tier).await?, output.writer().map_err(LoadError::Compiler)?);
        let compiled = compiler.compile(sandbox.tier, file.bytes(), writer, attempt.as_ref()).await;
        let is_verdict = compiled.as_ref().map_or_else(|error| !error.passes() && error.kind() != "memory", |()| true);
        if let Some(attempt) = attempt.filter(|_| is_verdict) {
            attempt.settle();
        }
        compiled?;
        blocking(move || {
            let key = Key::new(&sandbox.engine, digest);
            let code = output.reader().map_err(LoadError::Compiler)?;
            verify(&code, &key).map_err(|damage| LoadError::Compiler(io::Error::other(damage)))?;
            if let (Output::Cached(temporary), Some(cache)) = (output, &engine.0.cache)
                && let Err(error) = cache.keep(&key, temporary, &engine.used())
            {
                warn!(directory = %cache.dir().display(), %error, "cannot keep compiled code");
            }
            Ok(code)
        })
        .await?
    }

    /// Marks in the cache directory that the file is being compiled. Each tier has its own mark, because the compilers
    /// fail independently.
    async fn attempt(&self, digest: Digest, tier: Tier) -> Result<Option<Attempt>, LoadError> {
        let engine = self.clone();
        let begin = move || match &engine.0.cache {
            Some(cache) => Attempt::begin(cache.dir(), &format!("{digest}-{}", tier.as_str()), SystemTime::now()),
            None => Ok(None),
        };
        blocking(begin).await?.map_err(|Suspect { ended, wait, mark }| LoadError::Suspect { ended, wait, mark })
    }

    /// Returns the keys of loaded code.
    fn used(&self) -> HashSet<Key> {
        let codes = self.0.codes.lock();
        let alive = codes.iter().filter(|(_, code)| code.strong_count() > 0);
        let sandboxes: Vec<_> = self.kept().collect();
        alive.flat_map(|(digest, _)| sandboxes.iter().map(|sandbox| Key::new(&sandbox.engine, *digest))).collect()
    }

    /// Creates a file without a name, which ends with this process.
    fn unnamed(&self, place: Location) -> io::Result<File> {
        match place {
            Location::Cache => tempfile::tempfile_in(self.0.cache.as_ref().ok_or(io::ErrorKind::NotFound)?.dir()),
            Location::Temporary => tempfile::tempfile(),
            Location::Memory => memory_file(),
        }
    }
}

/// Where an unnamed file lies.
#[derive(Clone, Copy)]
enum Location {
    /// In the cache directory, which has room for code.
    Cache,
    /// In the system's temporary directory.
    Temporary,
    Memory,
}

impl Location {
    const ALL: [Self; 3] = [Self::Cache, Self::Temporary, Self::Memory];
    /// The places to use if there is no cache, or it is full.
    const ELSEWHERE: [Self; 2] = [Self::Temporary, Self::Memory];
}

/// Where a compiler writes.
enum Output {
    /// A file that the cache may keep.
    Cached(NamedTempFile),
    /// A file that ends with this process.
    Unnamed(File),
}

impl Output {
    fn writer(&self) -> io::Result<File> {
        match self {
            Self::Cached(file) => file.as_file().try_clone(),
            Self::Unnamed(file) => file.try_clone(),
        }
    }

    fn reader(&self) -> io::Result<File> {
        match self {
            // Read-only: nobody writes through it.
            Self::Cached(file) => reopened(file.as_file(), file.path()),
            Self::Unnamed(file) => file.try_clone(),
        }
    }
}

/// Opens a file again by its name. Fails if the name leads to another file, which somebody with write access to a
/// parent directory could arrange.
fn reopened(file: &File, name: &Path) -> io::Result<File> {
    let again = File::open(name)?;
    let (one, other) = (file.metadata()?, again.metadata()?);
    if (one.dev(), one.ino()) == (other.dev(), other.ino()) {
        Ok(again)
    } else {
        Err(io::Error::other(format!("{} was replaced by another file", name.display())))
    }
}

/// Creates a file in memory.
#[cfg(target_os = "linux")]
fn memory_file() -> io::Result<File> {
    let file = rustix::fs::memfd_create("pilothouse-code", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(file.into())
}

/// Fails: there are no files in memory on this platform.
#[cfg(not(target_os = "linux"))]
fn memory_file() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Wraps what was compiled for `sandbox`.
pub(crate) fn code(source: Source, sandbox: &Arc<Sandbox>) -> Result<Code, LoadError> {
    Code::new(source, sandbox).map_err(|error| LoadError::Code(format!("cannot read its end: {error}")))
}

/// Counts the result of a compilation, unless it is cancelled.
async fn counted<T>(counts: &Compiles, compiling: impl Future<Output = Result<T, LoadError>>) -> Result<T, LoadError> {
    let began = Instant::now();
    let compiled = compiling.await;
    counts.count(began.elapsed(), compiled.is_ok());
    compiled
}

/// When a message that many tasks may log was last logged.
#[derive(Default)]
pub(crate) struct LogThrottle(Mutex<Option<tokio::time::Instant>>);

impl LogThrottle {
    /// Returns `true` if the message is due, and records that it is logged. It is due after half of the interval, so
    /// that a single task always logs it.
    fn is_due(&self) -> bool {
        let (now, last) = (tokio::time::Instant::now(), &mut *self.0.lock());
        let is_due = last.is_none_or(|last| now.duration_since(last) >= PROGRESS / 2);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

/// Calls `say` with the seconds passed, at intervals until `lasts` ends.
async fn log_progress<T>(say: impl Fn(u64), lasts: impl Future<Output = T>) -> T {
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
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| LoadError::Code(format!("a task of the host failed: {error}")))
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

    #[tokio::test(start_paused = true)]
    async fn long_compilations_are_logged_every_five_seconds_and_short_ones_are_not() {
        let said = Mutex::new(Vec::new());
        let lasts =
            |seconds| log_progress(|passed| said.lock().push(passed), tokio::time::sleep(Duration::from_secs(seconds)));
        lasts(4).await;
        assert_eq!(*said.lock(), [0; 0]);
        lasts(12).await;
        assert_eq!(*said.lock(), [5, 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_log_line_stands_for_all_waiting_files() {
        let (said, lines) = (LogThrottle::default(), Mutex::new(Vec::new()));
        let all = (0..1000).map(|number| {
            let say = |passed| {
                if said.is_due() {
                    lines.lock().push(passed);
                }
            };
            // The first ones have their turn before the others.
            log_progress(say, tokio::time::sleep(Duration::from_secs(7 + number / 100)))
        });
        futures::future::join_all(all).await;
        assert_eq!(*lines.lock(), [5, 10, 15]);
    }
}
