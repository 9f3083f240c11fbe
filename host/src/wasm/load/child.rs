//! The compiler process: compiles one file under limits.
//!
//! A plugin's file is untrusted. Converting or compiling it may take hundreds of megabytes, seconds of every core, or
//! crash the process. For example, one damaged byte can make a cycle of packages, which wit-parser follows until the
//! stack overflows. So it happens in a process of its own.
//!
//! ```text
//! standard input   the plugin's file
//! standard output  a file, which receives the code and its seal
//! standard error   for REFUSED, a last line of JSON
//! ```

use std::{
    borrow::Cow,
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::AsFd as _,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Duration,
};

use rustix::process::{self, Resource, Rlimit};
use serde::{Deserialize, Serialize};
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wasmparser::{Parser, Payload};
use wit_component::ComponentEncoder;

use super::{
    super::{
        MAX_FILE,
        contract::{
            error::chain,
            text::{MAX_MESSAGE, shorten},
        },
        tier::Tier,
    },
    cache::{Key, seal},
    confinement, contents,
    digest::Digest,
    error::LoadError,
    header::{Layer, header},
    settings::settings,
    turns::SMALL,
};
use crate::prompt::{NICE, NICE_AWAITED, be_last};

/// Address space in MiB: five times what a plugin of 18 MB with an embedded interpreter takes.
const MEMORY: u64 = 2 << 10;

/// Address space in MiB for a small file, which is compiled beside others. Three times what a plugin in Rust takes;
/// most of that is the program itself.
const MEMORY_SMALL: u64 = 512;

/// CPU time on all cores: ten times what such a plugin takes.
pub(crate) const CPU: Duration = Duration::from_secs(120);

/// Bytes of code that a compiler may write: eight times the largest accepted file, and half of the cache.
pub(crate) const CODE: u64 = 512 << 20;

/// Open files. A compiler has three, and needs one more to confine itself.
const FILES: u64 = 16;

/// Exit code: the file was rejected. The last line of standard error says why.
pub(crate) const REFUSED: u8 = 3;
/// Exit code: the code could not be written.
pub(crate) const UNWRITTEN: u8 = 4;

/// Why the compiler rejected a file. Passed from the compiler to the host.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refused {
    Metadata,
    Componentise(String),
    Compile(String),
}

impl Refused {
    /// Cuts the text, which may quote the file.
    fn shortened(self) -> Self {
        let short = |why| shorten(why, MAX_MESSAGE);
        match self {
            Self::Metadata => Self::Metadata,
            Self::Componentise(why) => Self::Componentise(short(why)),
            Self::Compile(why) => Self::Compile(short(why)),
        }
    }
}

impl From<Refused> for LoadError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Metadata => Self::Metadata,
            Refused::Componentise(why) => Self::Componentise(why),
            Refused::Compile(why) => Self::Compile(why),
        }
    }
}

/// Returns the address space in MiB for a file of this size.
pub(crate) fn memory(bytes: usize) -> u64 {
    if bytes < SMALL { MEMORY_SMALL } else { MEMORY }
}

/// Runs the compiler: standard input to standard output, for engines of this tier.
///
/// `memory` bounds the address space and `data` the process's own memory, both in MiB. The process ends when its
/// parent, `parent`, ends.
pub fn compile_for(parent: u32, memory: u64, data: u64, tier: Tier) -> ExitCode {
    if let Err(error) = confine(parent, memory, data, tier) {
        eprintln!("cannot confine the compiler: {error}");
        return ExitCode::FAILURE;
    }
    let mut file = Vec::new();
    // One byte more than allowed, so that a file that is too large is noticed.
    if let Err(error) = io::stdin().lock().take(MAX_FILE as u64 + 1).read_to_end(&mut file) {
        eprintln!("cannot read the file: {error}");
        return ExitCode::FAILURE;
    }
    let engine = match wasmtime::Engine::new(&settings(tier)) {
        Ok(engine) => engine,
        Err(error) => {
            eprintln!("cannot set up the engine: {}", chain(&error));
            return ExitCode::FAILURE;
        }
    };
    let code = match compile(&engine, &file) {
        Ok(code) => code,
        Err(refused) => {
            eprintln!("{}", serde_json::to_string(&refused.shortened()).unwrap_or_default());
            return ExitCode::from(REFUSED);
        }
    };
    let key = Key::new(&engine, Digest::of(&file));
    if let Err(error) = write(&code, &seal(&key, &code), tier) {
        eprintln!("{error}");
        return ExitCode::from(UNWRITTEN);
    }
    ExitCode::SUCCESS
}

/// Writes without a buffer. Code that is kept is synced to disk.
fn write(code: &[u8], seal: &[u8], tier: Tier) -> io::Result<()> {
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    out.write_all(code)?;
    out.write_all(seal)?;
    match tier {
        Tier::Baseline => Ok(()),
        Tier::Optimized => out.sync_all(),
    }
}

/// Applies the compiler's limits to this process.
fn confine(parent: u32, memory: u64, data: u64, tier: Tier) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        process::set_parent_process_death_signal(Some(process::Signal::KILL))?;
        // If memory runs out, the kernel ends the compiler before the host. The file does not exist everywhere.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    }
    // The parent may have ended before the signal was set.
    if std::os::unix::process::parent_id() != parent {
        return Err(io::Error::other("the parent process has ended"));
    }
    limit(Resource::As, memory.saturating_mul(1 << 20), 0)?;
    // What counts against a container's limit. The rest of the address space is the program, which the host has in
    // memory too.
    limit(Resource::Data, data.saturating_mul(1 << 20), 0)?;
    limit(Resource::Fsize, CODE, 0)?;
    limit(Resource::Nofile, FILES, 0)?;
    limit(Resource::Core, 0, 0)?;
    // At the first limit the kernel sends a signal, at the second it kills.
    limit(Resource::Cpu, CPU.as_secs(), 1)?;
    // The nice value works everywhere. `be_last` adds long time slices on Linux.
    let nice = match tier {
        Tier::Baseline => NICE_AWAITED,
        Tier::Optimized => NICE,
    };
    process::nice(nice)?;
    be_last(nice);
    confinement::confine();
    Ok(())
}

/// Sets a limit to `most`, and the hard limit `more` above it. A lower limit of the environment stays.
fn limit(resource: Resource, most: u64, more: u64) -> io::Result<()> {
    let allowed = process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let (current, maximum) = (most.min(allowed), most.saturating_add(more).min(allowed));
    Ok(process::setrlimit(resource, Rlimit { current: Some(current), maximum: Some(maximum) })?)
}

/// Bytes that an instance needs for functions and globals. Appended to the engine's code, little-endian.
pub(crate) type Room = u64;

/// Compiles a file in this process. The result ends with the [`Room`].
pub(crate) fn compile(engine: &wasmtime::Engine, file: &[u8]) -> Result<Vec<u8>, Refused> {
    let component = match header(file).map_err(|error| Refused::Compile(error.to_string()))? {
        Layer::Component => Cow::Borrowed(file),
        Layer::Module => Cow::Owned(componentise(engine, file)?),
    };
    let mut code = engine.precompile_component(&component).map_err(|error| Refused::Compile(chain(&error)))?;
    // After the engine, whose own errors come first.
    let room = contents::check(&component).map_err(Refused::Compile)?;
    // The engine ignores what follows its code.
    code.extend(Room::try_from(room).unwrap_or(Room::MAX).to_le_bytes());
    Ok(code)
}

/// Converts a core module into a component. The module carries the contract's types in a custom section, as wit-bindgen
/// writes it. It may import preview 1 of WASI, as modules of Go's compiler do: an adapter turns that into WASI 0.2.
fn componentise(engine: &wasmtime::Engine, module: &[u8]) -> Result<Vec<u8>, Refused> {
    // The encoder trusts its input, so the engine validates it first.
    wasmtime::Module::validate(engine, module).map_err(|error| Refused::Compile(chain(&error)))?;
    // Nobody validates the custom section. If the encoder panics over it, the file is to blame.
    let encoded = catch_unwind(AssertUnwindSafe(|| {
        let (stripped, _) =
            wit_component::metadata::decode(module).map_err(|e| Refused::Componentise(format!("{e:#}")))?;
        if stripped.is_none() {
            return Err(Refused::Metadata);
        }
        let mut encoder = ComponentEncoder::default();
        // The engine validates the result when it compiles it.
        encoder.validate(false);
        encode(&mut encoder, module).map_err(|e| Refused::Componentise(format!("{e:#}")))
    }));
    encoded.unwrap_or_else(|_| Err(Refused::Componentise("its component metadata is damaged".to_owned())))
}

fn encode(encoder: &mut ComponentEncoder, module: &[u8]) -> anyhow::Result<Vec<u8>> {
    encoder.module(module)?;
    // With an adapter, the component has the adapter's imports, even if the module needs none.
    if imports_from(module, WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME) {
        encoder.adapter(WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER)?;
    }
    encoder.encode()
}

/// Returns `true` if a valid core module imports anything from a module of this name.
fn imports_from(module: &[u8], name: &str) -> bool {
    Parser::new(0).parse_all(module).filter_map(Result::ok).any(|payload| match payload {
        Payload::ImportSection(imports) => imports.into_imports().flatten().any(|import| import.module == name),
        _ => false,
    })
}
