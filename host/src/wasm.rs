//! The sandbox: loads WebAssembly components and calls them.
//!
//! Owns everything that knows the engine: compiling, linking, limits, deadlines, and the contract's types. It knows
//! objects and manifests from `pilothouse-core`, and nothing of files, informers or the API server. A caller passes
//! what a guest may reach as [`Imports`].
//!
//! ```text
//! file ── Engine::load ──► Compiled ── link ──► Linked ── describe(config) ──► Revision ── reconcile ──► Outcome
//!         is it a plugin?             fits the            says what it                     an            │ Failure
//!              │                      contract?           is and needs                     instance      │ CallError
//!              └─► cache, else a compiler: a process of its own
//! ```
//!
//! Four rooms, lowest first. Each imports only those before it.
//!
//! - leaves: `limits` ([`Limits`]), `tier` ([`Tier`], [`Optimizing`]) and `memory` (the count of a plugin's memory)
//! - `contract`: what host and plugins say to each other. Types, imports, exports, calls and their errors
//! - `load`: from a file to code. Reads, compiles, keeps on disk, maps and links
//! - `run`: the engine, its clock, instances, and calls of a [`Revision`]
//!
//! Bounds of one call:
//!
//! | what | bound | error |
//! |---|---|---|
//! | time, with waiting for the API server | the manifest's deadline, or the administrator's; up to nine times more without a thread or core | [`CallError::Deadline`] |
//! | memory of an instance, and of all instances | [`Limits::memory`], [`Limits::total_memory`] | [`CallError::Memory`] |
//! | stack | 512 kB; 4 MiB until the code is optimized | [`CallError::Stack`] |
//! | elements of its tables | 100,000 | [`CallError::Table`] |
//! | core instances; memories | 64; 8 | [`CallError::Instantiate`] |
//! | functions and globals of all core instances; a function's name | 32 MiB; 16 kB | [`LoadError::Compile`] |
//! | host calls; bytes of their arguments and answers | [`Limits::host_calls`]; [`Limits::host_bytes`] | [`CallError::HostCalls`] |
//! | bytes passed to the host at once | [`MAX_TRANSFER`] | [`CallError::HostCalls`], [`CallError::Answer`] |
//! | texts | UTF-8; children and status are JSON objects | [`CallError::Decode`] |
//! | children, outcome, object, keys of a mapping | [`MAX_CHILDREN`], [`MAX_OUTCOME`], [`MAX_OBJECT`], [`MAX_KEYS`] | [`CallError::Answer`] |
//! | log | the bounds of [`LogLine`] | cut |
//!
//! A reused instance may hold half of [`Limits::memory`] between calls. The callers bound how often a plugin is called,
//! and how much it logs over many calls.

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
    call::{Child, Children, Failure, MAX_CHILDREN, MAX_KEYS, MAX_OBJECT, MAX_OUTCOME, Outcome, Phase, Request},
    error::{CallError, DescribeError},
    export::Export,
    imports::{
        CallCounts, Import, Imports,
        cache::{CacheCall, CacheImports, KeyPage, Page, Query, ReadError},
        client::{
            ClientCall, ClientError, ClientImports, ListPage, ListQuery, LogQuery, MAX_ITEMS, MAX_LOG, MAX_PAGE,
            PatchBody, Preconditions, Propagation, Reason, StatusError,
        },
        clock::{ClockCall, ClockImports},
        events::{EventError, EventsCall, EventsImports},
        host::HostCall,
        host_state::Excess,
        http::{HttpCall, HttpError, HttpImports, HttpRequest, HttpResponse, MAX_HTTP_BODY},
        log::{LOG_FIELDS, LOG_TARGET, Level, LogCall, LogImports, LogLine},
        metrics::{MetricsCall, MetricsImports},
        random::{RandomCall, RandomImports},
        wasi::WasiCall,
    },
    review::{Decision, MAX_ANNOTATION, MAX_NOTES, MAX_WARNING, Review, User},
    text::MAX_MESSAGE,
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
    engine::{
        CompileFigures, Engine, EngineError, Figures,
        component::{Compiled, Linked},
    },
    revision::{DESCRIBE_DEADLINE, Revision},
    tally::InstanceFigures,
};
pub use tier::{Optimizing, Tier};

/// The largest file that is compiled, in bytes. A plugin in Rust has 0.6 to 1.2 MB, one with an embedded interpreter 12
/// to 20 MB.
pub const MAX_FILE: usize = 64 << 20;

/// The most bytes that a guest may pass to the host at once, as arguments of an import or as an outcome.
///
/// Ten times what the API server accepts in a request (3 MiB). It bounds what the host copies. That may be more than
/// the guest's memory, because many strings may share one place.
pub const MAX_TRANSFER: usize = 32 << 20;

#[cfg(test)]
mod tests;
