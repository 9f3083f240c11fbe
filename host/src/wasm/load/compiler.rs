//! Starts compiler processes, and interprets how they end.

use std::{
    fs::File,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
};

use super::{
    super::{
        contract::text::{MAX_MESSAGE, shorten},
        tier::Tier,
    },
    attempt::Attempt,
    budget::Budget,
    child::{self, Refused},
    error::LoadError,
};

/// Wall-clock limit of a compiler: five times its CPU time, because it runs at the lowest priority.
const DEADLINE: Duration = Duration::from_secs(600);

/// Most threads of a compiler. Each takes address space.
const THREADS: usize = 4;

/// The least memory in MiB after halving: what a small plugin takes. Memory is halved for each time that the host ended
/// over the file.
const LEAST_HALVED: u64 = 64;

/// What the allocator or the engine prints when memory runs out, whichever limit was reached. The engine may panic over
/// it.
const OUT_OF_MEMORY: [&str; 2] = ["memory allocation of ", "out of memory (failed to allocate "];

/// glibc's allocator settings. Each arena reserves address space, which is limited. A compiler allocates much and ends
/// soon: with small requests and small pages, a fifth of its time would be spent in the kernel.
const ALLOCATOR: &str = "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1:glibc.malloc.top_pad=16777216:\
    glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824";

/// Bytes of a compiler's standard error that are kept, from its end.
const SAID: usize = 16 << 10;

/// The program that compiles: this one, as a process of its own.
#[derive(Debug, Clone)]
pub struct Compiler {
    program: PathBuf,
    /// Shared by all running compilers.
    budget: Budget,
}

impl Compiler {
    /// Uses the running program, which has the command `compile`. Works even if its file was replaced meanwhile.
    ///
    /// # Errors
    /// If the path of the program is not known.
    pub fn this_program() -> std::io::Result<Self> {
        let program = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
        Ok(Self { program, budget: Budget::new("/") })
    }

    /// Compiles `file` for engines of this tier into `code`, which is the compiler's standard output. The compiler gets
    /// less memory if the host has ended over this file before.
    ///
    /// # Errors
    /// If the file is rejected, or the compiler fails.
    ///
    /// # Cancellation
    /// Dropping the future kills the compiler.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time. The compiler ends with the thread that starts it. So call this on a
    /// worker thread of the runtime, not on a blocking thread.
    pub(crate) async fn compile(
        &self,
        tier: Tier,
        file: &[u8],
        code: File,
        attempt: Option<&Attempt>,
    ) -> Result<(), LoadError> {
        let memory = child::memory(file.len());
        let halved = attempt.map_or(0, Attempt::ended);
        let wanted = memory.checked_shr(halved).unwrap_or(0).max(LEAST_HALVED);
        let grant = self.budget.take(wanted).await?;
        let exceeded = || match (attempt, grant.limit) {
            (Some(attempt), _) if halved > 0 => {
                LoadError::Halved { mib: grant.mib, ended: halved, mark: attempt.path().to_owned() }
            }
            (_, Some(limit)) => LoadError::Container { mib: grant.mib, limit },
            (_, None) => LoadError::Memory(grant.mib),
        };
        let mut compiler = Command::new(&self.program);
        compiler
            .arg0("pilothouse")
            .args(["compile", "--parent", &std::process::id().to_string()])
            .args(["--memory", &memory.to_string(), "--data", &grant.mib.to_string()])
            .args((tier == Tier::Baseline).then_some("--baseline"))
            // A process that reads an untrusted file must not have the host's secrets.
            .env_clear()
            .env("RAYON_NUM_THREADS", threads().to_string())
            .env("GLIBC_TUNABLES", ALLOCATOR)
            .stdin(Stdio::piped())
            .stdout(Stdio::from(code))
            .stderr(Stdio::piped())
            // Signals of a terminal go to the host alone.
            .process_group(0)
            .kill_on_drop(true);
        let mut running = compiler.spawn().map_err(LoadError::Compiler)?;
        let (input, said) = (running.stdin.take(), running.stderr.take());
        let feed = async {
            if let Some(mut input) = input {
                // If the compiler ended early, its exit status says why.
                let _ = input.write_all(file).await;
            }
        };
        let all = async { tokio::join!(feed, tail(said), running.wait()) };
        match tokio::time::timeout(DEADLINE, all).await {
            Ok((_, said, ended)) => understand(ended.map_err(LoadError::Compiler)?, &said, exceeded),
            Err(_) => Err(LoadError::Deadline(DEADLINE)),
        }
    }
}

/// Returns the number of compiler threads: one fewer than cores.
///
/// With all cores, a preempted worker thread would wait milliseconds for its core, however low the compiler's priority
/// is. Also, everyone in a container shares its CPU quota.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).clamp(1, THREADS))
}

/// Reads all that a compiler prints, and returns the end of it.
async fn tail(said: Option<impl AsyncRead + Unpin>) -> String {
    let mut end = Vec::new();
    if let Some(mut said) = said {
        let mut part = [0; 4096];
        while let Ok(read @ 1..) = said.read(&mut part).await {
            end.extend_from_slice(part.get(..read).unwrap_or_default());
            end.drain(..end.len().saturating_sub(SAID));
        }
    }
    String::from_utf8_lossy(&end).into_owned()
}

/// Interprets the end of a compiler. `exceeded` makes the error for too little memory.
fn understand(ended: ExitStatus, said: &str, exceeded: impl Fn() -> LoadError) -> Result<(), LoadError> {
    use std::os::unix::process::ExitStatusExt as _;
    // The last line of a panic is a note on backtraces.
    let tells = |line: &&str| !line.is_empty() && !line.starts_with("note: ");
    let last = said.lines().map(str::trim).rfind(tells).unwrap_or_default();
    let is_out_of_memory = |said: &str| OUT_OF_MEMORY.iter().any(|words| said.contains(words));
    match (ended.code(), ended.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) if code == i32::from(child::REFUSED) => match serde_json::from_str::<Refused>(last) {
            Ok(Refused::Compile(why)) if is_out_of_memory(&why) => Err(exceeded()),
            Ok(refused) => Err(refused.into()),
            Err(_) => Err(died(ended, last)),
        },
        (Some(code), _) if code == i32::from(child::UNWRITTEN) => {
            Err(LoadError::Compiler(std::io::Error::other(format!("cannot write the compiled code: {last}"))))
        }
        _ if said.contains("has overflowed its stack") => Err(LoadError::Stack),
        _ if is_out_of_memory(said) => Err(exceeded()),
        (_, Some(signal)) if signal == rustix::process::Signal::XCPU.as_raw() => Err(LoadError::Deadline(child::CPU)),
        (_, Some(signal)) if signal == rustix::process::Signal::XFSZ.as_raw() => {
            Err(LoadError::Compile(format!("its code takes more than {} MiB", child::CODE >> 20)))
        }
        (_, Some(signal)) if signal == rustix::process::Signal::KILL.as_raw() => Err(LoadError::Killed),
        _ => Err(died(ended, last)),
    }
}

fn died(ended: ExitStatus, last: &str) -> LoadError {
    LoadError::Died { how: ended.to_string(), said: shorten(last.to_owned(), MAX_MESSAGE) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn end_of_a_compiler_is_understood() {
        let exit = |code: i32| ExitStatus::from_raw(code << 8);
        let signal = ExitStatus::from_raw;
        let (abort, segv, xcpu, kill, xfsz) = (6, 11, 24, 9, 25);
        let overflow = "\nthread 'main' (7) has overflowed its stack\nfatal runtime error: stack overflow, aborting\n";
        let unhandled = "thread 'main' (7) panicked at x:\nunhandled out-of-memory error: out of memory (failed to allocate 9 bytes)\n";
        for (ended, said, told) in [
            (exit(0), "", None),
            (exit(3), "{\"Compile\":\"no function\"}\n", Some("cannot compile: no function")),
            (exit(3), "\"Metadata\"", Some("the file is a plain core module")),
            (exit(4), "No space left on device\n", Some("cannot run the compiler")),
            (signal(abort), overflow, Some("the compiler overflowed its stack: the file is damaged")),
            (signal(abort), "memory allocation of 9 bytes failed\n", Some("the compiler needs more than its 2048 MiB")),
            (exit(101), unhandled, Some("the compiler needs more than its 2048 MiB")),
            (exit(3), "{\"Compile\":\"out of memory (failed to allocate 9 bytes)\"}", Some("more than its 2048 MiB")),
            (signal(xcpu), "", Some("the compiler timed out after 120 s")),
            (signal(xfsz), "", Some("cannot compile: its code takes more than 512 MiB")),
            (signal(kill), "", Some("the compiler was killed")),
            (signal(segv), "", Some("the compiler ended unexpectedly (signal: 11 (SIGSEGV)")),
            (
                exit(101),
                "panicked at x:\nat the disco\nnote: look there\n\n",
                Some("(exit status: 101); it said: at the disco"),
            ),
        ] {
            let understood = understand(ended, said, || LoadError::Memory(2048)).map_err(|error| error.to_string());
            match told {
                None => assert_eq!(understood, Ok(())),
                Some(told) => {
                    let error = understood.expect_err(told);
                    assert!(error.contains(told), "{error}");
                }
            }
        }
    }
}
