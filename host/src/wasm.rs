//! The sandbox: WebAssembly components in, calls and their outcomes out.
//!
//! Owns everything that knows the engine: compiling, linking, limits, deadlines, and the contract's types. Knows objects and
//! manifests as `pilothouse-core` has them, and nothing of files, informers or the API server: what a guest may reach is handed
//! in with each call as [`Imports`].
//!
//! ```text
//! file ── Engine::load ──► Compiled ── link ──► Linked ── describe(config) ──► Revision ── reconcile ──► Outcome
//!         is it a plugin?             fits the            says what it                     an            │ Failure
//!              │                      contract?           is and needs                     instance      │ CallError
//!              └─► cache, else a compiler: a process of its own
//! ```
//!
//! Of a file nothing but its header is looked at in this process until it is compiled. Its code is kept in a directory ([`Cache`]), and
//! is in memory while the plugin is called ([`Engine::unmap_idle`]). What is new serves as a baseline compiler made it, until it is optimized
//! ([`Tier`]).
//!
//! Three rooms, each of which knows those before it: `contract` (what plugins and host say to each other), `load` (a file to code), `run`
//! (engine, instances, calls). Below them lie [`Limits`], [`Tier`], and the count of a plugin's memory.
//!
//! A component may also export `mapper` and `observer`: then [`Revision::map`] and [`Revision::observe`] call them, under the same
//! limits. Each call has a fresh instance, unless the manifest asks for reuse: then one that has answered is kept, and serves the next call of
//! whichever of the three.
//!
//! What a guest may take, in one call:
//!
//! | what | bound | else |
//! |---|---|---|
//! | time, waiting for the API server included; up to nine times as much on top for want of a thread or a core | the manifest's deadline, or the administrator's | [`CallError::Deadline`] |
//! | memory, of all instances together | [`Limits::memory`], [`Limits::total_memory`] | [`CallError::Memory`] |
//! | stack | 512 kB, of the engine and so for all plugins; 4 MiB until the code is optimized | [`CallError::Stack`] |
//! | elements of its tables | 100,000 | [`CallError::Table`] |
//! | core instances; memories | 64; 8 | [`CallError::Instantiate`] |
//! | functions and globals of all core instances; the name of one | 32 MiB; 16 kB | [`LoadError::Compile`] |
//! | host calls, and what they are asked and answer | [`Limits::host_calls`], [`Limits::host_bytes`] | [`CallError::HostCalls`] |
//! | bytes handed to the host at once | [`MAX_TRANSFER`] | [`CallError::HostCalls`], [`CallError::Answer`] |
//! | texts | UTF-8; children and status JSON objects | [`CallError::Decode`] |
//! | children, children and status in bytes, one of them, keys of a mapping | [`MAX_CHILDREN`], [`MAX_OUTCOME`], [`MAX_OBJECT`], [`MAX_KEYS`] | [`CallError::Answer`] |
//! | log | [`LogLine`]'s bounds | cut |
//!
//! Over many calls an instance that is kept may hold half of [`Limits::memory`]. How much a plugin logs then, and how often it is called, is
//! for those who call.

mod contract;
mod limits;
mod load;
mod memory;
pub(crate) mod metrics;
mod run;
#[cfg(test)]
pub(crate) mod testing;
mod tier;

pub use contract::{
    call::{
        Child, Children, Failure, MAX_CHILDREN, MAX_KEYS, MAX_MESSAGE, MAX_OBJECT, MAX_OUTCOME, News, Outcome, Phase,
        Request,
    },
    error::{CallError, DescribeError},
    export::Export,
    host_state::Excess,
    imports::{
        CallCounts, Import, Imports,
        cache::{CacheCall, CacheImports, KeyPage, Page, Query, ReadError},
        client::{ClientCall, ClientError, ClientImports, PatchBody, Preconditions, Propagation, Reason, StatusError},
        clock::{ClockCall, ClockImports},
        log::{Level, LogCall, LogImports, LogLine},
    },
};
pub use limits::Limits;
pub use load::{
    cache::{CACHE_BYTES, Cache, CacheError},
    child::compile_for,
    compiler::Compiler,
    digest::Digest,
    error::LoadError,
    file::PluginFile,
};
pub use memory::MemoryCharge;
pub use run::{
    component::{Compiled, Linked},
    engine::{CompileFigures, Engine, EngineError, Figures},
    revision::{DESCRIBE_DEADLINE, Revision},
    tally::InstanceFigures,
};
pub use tier::Tier;

/// The largest file that is compiled, in bytes. A plugin in Rust has 0.6 to 1.2 MB, one with an interpreter inside 12 to 20 MB.
pub const MAX_FILE: usize = 64 << 20;

/// How many bytes a guest may hand to the host at once, as an import's arguments or as an outcome: ten times what the API
/// server takes in one request (3 MiB). It bounds what the host copies, which may be more than the guest has memory: many
/// strings may lie in the same place.
pub const MAX_TRANSFER: usize = 32 << 20;

#[cfg(test)]
mod tests;
