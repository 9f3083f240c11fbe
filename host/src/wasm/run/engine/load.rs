//! From a plugin's file to its code: loaded, kept on disk, or compiled.
//!
//! ```text
//! file ─┬─ loaded already ─────────────────────────────► code
//!       ├─ in the cache ───────────────────────────────► code, optimized
//!       └─ its turn ─ compiled by the baseline compiler ► code ── last in line ─ compiled again ─ the cache ─► the same code, optimized
//! ```
//!
//! A reload is awaited by somebody, and a first start by many. So what is new serves as soon as it can, and better as soon as no other file is
//! to be compiled. What the baseline compiler cannot do, as it does not know every instruction, is left to the other at once; and so is
//! everything where there is no baseline compiler.

use std::{
    collections::HashSet,
    fs::File,
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::Path,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use tempfile::NamedTempFile;
use tracing::{Instrument as _, info, warn};

use super::{
    super::{
        super::load::{
            attempt::{Attempt, Suspect},
            cache::{Key, verify},
            code::{Code, Sandbox, Source},
            compiler::Compiler,
            digest::Digest,
            error::LoadError,
            file::PluginFile,
            header::header,
        },
        component::Compiled,
    },
    Compiles, Engine, Tier,
};
use crate::allocator;

/// How often is said that a file is still being compiled, or waits for that: one with an interpreter inside takes some seconds.
const PROGRESS: Duration = Duration::from_secs(5);

/// So long after it was compiled code is not compiled again: it begins to serve, or is replaced by the next that somebody builds.
const SETTLES: Duration = Duration::from_secs(1);

/// When it is first tried again to optimize what could not be, for want of something. Then in twice the time, and so on.
const AGAIN: Duration = Duration::from_secs(60);

/// The longest of those.
const AT_LAST: Duration = Duration::from_secs(3600);

impl Engine {
    /// Loads a plugin's file: what is loaded or in the cache is not compiled again. Else it is compiled where the engine was told to, when
    /// it is its turn: one large file after another, and small ones beside them. What is compiled here is compiled soon where it can be, and
    /// well in a task of its own, for which nobody waits.
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
        saying(|seconds| info!(bytes, seconds, "compiling"), self.compile_new(compiler, file)).await
    }

    /// Compiles what is neither loaded nor in the cache.
    async fn compile_new(&self, compiler: &Compiler, file: PluginFile) -> Result<Compiled, LoadError> {
        let (digest, bytes) = (file.digest(), file.bytes().len());
        if let Some(baseline) = self.baseline() {
            let compiling = self.compile_unnamed(compiler, &baseline, &file, &Place::ALL);
            match counted(&self.0.counts.baseline, compiling).await {
                Ok(compiled) => {
                    let code = code(Source::File(compiled), &baseline)?;
                    let compiled = self.enter(digest, code, bytes);
                    let optimizing = self.clone().optimize(compiled.code(), compiler.clone(), file);
                    tokio::spawn(optimizing.in_current_span());
                    return Ok(compiled);
                }
                // What both would say.
                Err(error @ (LoadError::Metadata | LoadError::Componentise(_))) => return Err(error),
                Err(error) if error.passes() => return Err(error),
                // Whether that is the file's fault, the other one finds out.
                Err(_) => {}
            }
        }
        let compiled = counted(&self.0.counts.optimized, self.compile_well(compiler, &file)).await?;
        Ok(self.enter(digest, code(Source::File(compiled), &self.0.plain)?, bytes))
    }

    /// Has `code`, which `file` was compiled to, compiled again, as well as can be. As long as that is not done it serves as it is.
    async fn optimize(self, code: Weak<Code>, compiler: Compiler, file: PluginFile) {
        let (digest, bytes) = (file.digest(), file.bytes().len());
        let engine = self.clone();
        // A thousand may wait, and each has as many bytes.
        let kept =
            match blocking(move || engine.put_aside(&file)).await.and_then(|kept| kept.map_err(LoadError::Compiler)) {
                Ok(kept) => kept,
                Err(error) => {
                    let error = anyhow::Error::new(error);
                    warn!(error = format!("{error:#}"), "compiled code is not optimized before the next start");
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
            let says = |seconds| info!(bytes, seconds, "optimizing compiled code, which serves meanwhile");
            let optimized = tokio::select! {
                optimized = saying(says, self.optimized(&compiler, digest, bytes, &kept)) => optimized,
                // Somebody waits for what is compiled now, and is to have the cores.
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
                    // With the old code goes what the engine knew of it.
                    let _given_back = blocking(allocator::give_back_freed).await;
                    return;
                }
                Err(error) => error,
            };
            let passes = error.passes();
            let error = anyhow::Error::new(error);
            if !passes {
                warn!(error = format!("{error:#}"), "compiled code cannot be optimized, and serves as it is");
                return;
            }
            let again_in = pause;
            warn!(error = format!("{error:#}"), ?again_in, "compiled code could not be optimized, and serves as it is");
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

    /// Finds the optimized code of the file that `kept` holds, or makes it.
    async fn optimized(
        &self,
        compiler: &Compiler,
        digest: Digest,
        bytes: usize,
        kept: &File,
    ) -> Result<File, LoadError> {
        let (engine, kept) = (self.clone(), kept.try_clone().map_err(LoadError::Compiler)?);
        let read = move || {
            // Another host may have compiled the same.
            if let Some(found) = engine.find(digest) {
                return Ok(Ok(found));
            }
            let mut file = vec![0; bytes];
            kept.read_exact_at(&mut file, 0)?;
            let file = PluginFile::new(file);
            // It would be compiled to code that is told from another's by this one's digest.
            let is_whole = file.digest() == digest;
            is_whole.then_some(Err(file)).ok_or_else(|| io::Error::other("the copy of the file is damaged"))
        };
        match blocking(read).await?.map_err(LoadError::Compiler)? {
            Ok(found) => Ok(found),
            Err(file) => counted(&self.0.counts.optimized, self.compile_well(compiler, &file)).await,
        }
    }

    /// Writes a file to where it takes no memory, unless there is no such place.
    fn put_aside(&self, file: &PluginFile) -> io::Result<File> {
        let mut last = io::Error::from(io::ErrorKind::Unsupported);
        for place in Place::ALL {
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

    /// The file's code, if it is loaded or in the cache.
    async fn look(&self, digest: Digest, size: usize) -> Result<Option<Compiled>, LoadError> {
        let engine = self.clone();
        blocking(move || {
            let loaded = engine.0.codes.lock().get(&digest).and_then(Weak::upgrade);
            if let Some(code) = loaded {
                return Some(Compiled::new(&engine, code, digest, size));
            }
            let file = engine.find(digest)?;
            // Damaged since it was read through, a moment ago.
            let code = code(Source::File(file), &engine.0.plain).ok()?;
            let found = || _ = engine.0.counts.hits.fetch_add(1, Ordering::Relaxed);
            Some(engine.enter_with(digest, code, size, found))
        })
        .await
    }

    /// The file's code, if it is in the cache.
    fn find(&self, digest: Digest) -> Option<File> {
        match self.0.cache.as_ref()?.find(&Key::new(&self.0.plain.engine, digest)) {
            Ok(found) => found,
            Err(damage) => {
                self.0.counts.rejected.fetch_add(1, Ordering::Relaxed);
                warn!(%digest, error = %damage, "compiled code is not used, and compiled anew");
                None
            }
        }
    }

    /// Lets another process compile as well as can be. The code is a file of the cache, or, where there is none or it is full, one without
    /// a name.
    async fn compile_well(&self, compiler: &Compiler, file: &PluginFile) -> Result<File, LoadError> {
        let Some(cache) = &self.0.cache else {
            return self.compile_unnamed(compiler, &self.0.plain, file, &Place::ELSEWHERE).await;
        };
        let compiled = match cache.begin() {
            Ok(temporary) => self.compile_into(compiler, &self.0.plain, file, Output::Cached(temporary)).await,
            Err(error) => Err(LoadError::Compiler(error)),
        };
        match compiled {
            Err(LoadError::Compiler(error)) => {
                warn!(directory = %cache.dir().display(), %error, "cannot keep compiled code");
                self.compile_unnamed(compiler, &self.0.plain, file, &Place::ELSEWHERE).await
            }
            compiled => compiled,
        }
    }

    /// Lets another process compile for `sandbox`, to a file without a name in the first of these places that has room for it.
    async fn compile_unnamed(
        &self,
        compiler: &Compiler,
        sandbox: &Arc<Sandbox>,
        file: &PluginFile,
        places: &[Place],
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

    /// Lets another process compile for `sandbox`.
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

    /// Marks on disk that the file of this digest is being compiled, where there is a cache. Each tier has its own mark: that one compiler
    /// comes to its end says nothing of the other.
    async fn attempt(&self, digest: Digest, tier: Tier) -> Result<Option<Attempt>, LoadError> {
        let engine = self.clone();
        let begin = move || match &engine.0.cache {
            Some(cache) => Attempt::begin(cache.dir(), &format!("{digest}-{}", tier.as_str()), SystemTime::now()),
            None => Ok(None),
        };
        blocking(begin).await?.map_err(|Suspect { ended, wait, mark }| LoadError::Suspect { ended, wait, mark })
    }

    /// Keys of what is loaded.
    fn used(&self) -> HashSet<Key> {
        let codes = self.0.codes.lock();
        let alive = codes.iter().filter(|(_, code)| code.strong_count() > 0);
        alive.map(|(digest, _)| Key::new(&self.0.plain.engine, *digest)).collect()
    }

    /// A new file that ends with this process.
    fn unnamed(&self, place: Place) -> io::Result<File> {
        match place {
            Place::Cache => tempfile::tempfile_in(self.0.cache.as_ref().ok_or(io::ErrorKind::NotFound)?.dir()),
            Place::Temporary => tempfile::tempfile(),
            Place::Memory => memory_file(),
        }
    }
}

/// Where a file without a name may lie.
#[derive(Clone, Copy)]
enum Place {
    /// Beside the cache's, where there is one: that was meant for so much.
    Cache,
    /// Where the system has such files.
    Temporary,
    Memory,
}

impl Place {
    const ALL: [Self; 3] = [Self::Cache, Self::Temporary, Self::Memory];
    /// Where the cache has no room, or there is none.
    const ELSEWHERE: [Self; 2] = [Self::Temporary, Self::Memory];
}

/// Where a compiler writes.
enum Output {
    /// To a file that the cache may keep.
    Cached(NamedTempFile),
    /// To one that ends with this process.
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
            // Nobody writes through this one.
            Self::Cached(file) => reopened(file.as_file(), file.path()),
            Self::Unnamed(file) => file.try_clone(),
        }
    }
}

/// A file that is open, opened once more by its name: if that leads to another by now, whoever may write to a directory above put it there.
fn reopened(file: &File, name: &Path) -> io::Result<File> {
    let again = File::open(name)?;
    let (one, other) = (file.metadata()?, again.metadata()?);
    if (one.dev(), one.ino()) == (other.dev(), other.ino()) {
        Ok(again)
    } else {
        Err(io::Error::other(format!("{} was replaced by another file", name.display())))
    }
}

/// A file that is nowhere but in memory.
#[cfg(target_os = "linux")]
fn memory_file() -> io::Result<File> {
    let file = rustix::fs::memfd_create("pilothouse-code", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(file.into())
}

/// A file that is nowhere but in memory.
#[cfg(not(target_os = "linux"))]
fn memory_file() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// What was compiled for `sandbox`.
pub(crate) fn code(source: Source, sandbox: &Arc<Sandbox>) -> Result<Code, LoadError> {
    Code::new(source, sandbox).map_err(|error| LoadError::Code(format!("cannot read its end: {error}")))
}

/// Counts what becomes of a compilation, unless nobody waits for its end.
async fn counted<T>(counts: &Compiles, compiling: impl Future<Output = Result<T, LoadError>>) -> Result<T, LoadError> {
    let began = Instant::now();
    let compiled = compiling.await;
    counts.count(began.elapsed(), compiled.is_ok());
    compiled
}

/// When something was said last that many may have a reason to say.
#[derive(Default)]
pub(crate) struct Said(Mutex<Option<tokio::time::Instant>>);

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
