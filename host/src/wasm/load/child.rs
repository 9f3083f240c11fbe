//! The compiler's side of a compilation: a process of its own, for one file.
//!
//! Making a component of a core module and compiling it read what nobody has looked at before. Either may take hundreds of megabytes,
//! seconds of every core, or the process with it: wit-parser follows a cycle of packages, which one damaged byte makes, until the
//! stack is at its end. So that happens here and not where everybody is served.
//!
//! ```text
//! standard input   the plugin's file
//! standard output  a file, which gets the code and its seal
//! standard error   at the end, for REFUSED, a line of JSON
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
use wit_component::ComponentEncoder;

use super::{
    super::{
        MAX_FILE,
        contract::{
            call::{MAX_MESSAGE, shorten},
            error::chain,
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

/// Address space in MiB: five times what a plugin of 18 MB with an interpreter inside takes.
const MEMORY: u64 = 2 << 10;

/// The same for a small file, as one of those is compiled beside others: three times what a plugin in Rust takes, most of which is the
/// program itself.
const MEMORY_SMALL: u64 = 512;

/// Time on all cores together: ten times what such a plugin takes.
pub(crate) const CPU: Duration = Duration::from_secs(120);

/// Bytes of code that it may write: eight times the largest file that is taken, and half of what the cache keeps.
pub(crate) const CODE: u64 = 512 << 20;

/// Open files: it has three, and needs one more while it is confined.
const FILES: u64 = 16;

/// The file will not do: the last line of standard error says why.
pub(crate) const REFUSED: u8 = 3;
/// The file is compiled, and the code could not be written.
pub(crate) const UNWRITTEN: u8 = 4;

/// Why a file is not compiled, from one process to the other.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refused {
    Metadata,
    Componentise(String),
    Compile(String),
}

impl Refused {
    /// The same in no more words than are read: they may name what is in the file.
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

/// MiB of address space that it takes at most to compile a file of so many bytes.
pub(crate) fn memory(bytes: usize) -> u64 {
    if bytes < SMALL { MEMORY_SMALL } else { MEMORY }
}

/// Compiles standard input to standard output for engines of this tier, in at most `memory` MiB of address space and `data` MiB of
/// memory of its own, and under its other limits. Ends when `parent`, which started it, does.
pub fn compile_for(parent: u32, memory: u64, data: u64, tier: Tier) -> ExitCode {
    if let Err(error) = confine(parent, memory, data, tier) {
        eprintln!("cannot confine the compiler: {error}");
        return ExitCode::FAILURE;
    }
    let mut file = Vec::new();
    // One more than is allowed, so that it is noticed.
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

/// Unbuffered, and on the disk before it returns if it is kept.
fn write(code: &[u8], seal: &[u8], tier: Tier) -> io::Result<()> {
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    out.write_all(code)?;
    out.write_all(seal)?;
    match tier {
        Tier::Baseline => Ok(()),
        Tier::Optimized => out.sync_all(),
    }
}

/// Takes what a compiler may use, and no more.
fn confine(parent: u32, memory: u64, data: u64, tier: Tier) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        process::set_parent_process_death_signal(Some(process::Signal::KILL))?;
        // Where memory runs out for all, this goes before who serves. Not everywhere is there such a file.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    }
    // It may have ended before it was listened for.
    if std::os::unix::process::parent_id() != parent {
        return Err(io::Error::other("who started it has ended"));
    }
    limit(Resource::As, memory.saturating_mul(1 << 20), 0)?;
    // What counts towards a container's limit: address space besides is the program's, which the host has in memory anyway.
    limit(Resource::Data, data.saturating_mul(1 << 20), 0)?;
    limit(Resource::Fsize, CODE, 0)?;
    limit(Resource::Nofile, FILES, 0)?;
    limit(Resource::Core, 0, 0)?;
    // The kernel says so at the first, and kills at the second.
    limit(Resource::Cpu, CPU.as_secs(), 1)?;
    // The second is for the slices alone, and for Linux; the nice value is for all.
    let nice = match tier {
        Tier::Baseline => NICE_AWAITED,
        Tier::Optimized => NICE,
    };
    process::nice(nice)?;
    be_last(nice);
    confinement::confine();
    Ok(())
}

/// At most so much, and `more` before the kernel takes to harder means. Whoever started the host may allow less, which nobody may raise.
fn limit(resource: Resource, most: u64, more: u64) -> io::Result<()> {
    let allowed = process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let (current, maximum) = (most.min(allowed), most.saturating_add(more).min(allowed));
    Ok(process::setrlimit(resource, Rlimit { current: Some(current), maximum: Some(maximum) })?)
}

/// What follows the engine's code, little-endian: the bytes that an instance has for functions and globals.
pub(crate) type Room = u64;

/// From a file's bytes to code, in this process; its [`Room`] follows it.
pub(crate) fn compile(engine: &wasmtime::Engine, file: &[u8]) -> Result<Vec<u8>, Refused> {
    let component = match header(file).map_err(|error| Refused::Compile(error.to_string()))? {
        Layer::Component => Cow::Borrowed(file),
        Layer::Module => Cow::Owned(componentise(engine, file)?),
    };
    let mut code = engine.precompile_component(&component).map_err(|error| Refused::Compile(chain(&error)))?;
    // What the engine has against it is said in its words.
    let room = contents::check(&component).map_err(Refused::Compile)?;
    // The engine passes over what follows its code.
    code.extend(Room::try_from(room).unwrap_or(Room::MAX).to_le_bytes());
    Ok(code)
}

/// Makes a component of a core module that carries the contract's types in a custom section, as wit-bindgen leaves it.
fn componentise(engine: &wasmtime::Engine, module: &[u8]) -> Result<Vec<u8>, Refused> {
    // The encoder trusts its input; only what the engine finds valid goes there.
    wasmtime::Module::validate(engine, module).map_err(|error| Refused::Compile(chain(&error)))?;
    // And should it stumble all the same, over a custom section that nobody validates, that is the file's fault.
    let encoded = catch_unwind(AssertUnwindSafe(|| {
        let (stripped, _) =
            wit_component::metadata::decode(module).map_err(|e| Refused::Componentise(format!("{e:#}")))?;
        if stripped.is_none() {
            return Err(Refused::Metadata);
        }
        // What it makes is compiled next, and the engine looks at all of it then.
        ComponentEncoder::default()
            .validate(false)
            .module(module)
            .and_then(ComponentEncoder::encode)
            .map_err(|e| Refused::Componentise(format!("{e:#}")))
    }));
    encoded.unwrap_or_else(|_| Err(Refused::Componentise("its component metadata is damaged".to_owned())))
}
