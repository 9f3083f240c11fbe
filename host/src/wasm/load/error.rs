//! Why a file cannot be used as a plugin.

use std::{path::PathBuf, time::Duration};

use super::super::{
    MAX_FILE,
    contract::{
        error::Quoted,
        export::CONTROLLER,
        imports::OFFERED,
        package::{PACKAGE, full_name},
    },
};

/// Why a file cannot be used as a plugin, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It has no content.
    #[error("the file is empty")]
    Empty,
    /// It is larger than [`MAX_FILE`].
    #[error("the file has {0} bytes, and at most {max} are allowed", max = MAX_FILE)]
    Large(usize),
    /// It is WebAssembly's text format.
    #[error("the file is WebAssembly text: assemble it first, for example with `wasm-tools parse`")]
    Text,
    /// It is not WebAssembly.
    #[error("the file is not WebAssembly: it begins with {0}")]
    Magic(String),
    /// It ends within its header.
    #[error("the file ends after {0} bytes, within WebAssembly's header: it is incomplete")]
    Short(usize),
    /// It has a version of the format that this engine does not know.
    #[error(
        "the file is WebAssembly of version {version}, layer {layer}, which this host does not know: it takes components and core modules"
    )]
    Version {
        /// As in the header.
        version: u16,
        /// As in the header: 0 is a core module, 1 a component.
        layer: u16,
    },
    /// It is a core module that no tool of the component model made.
    #[error(
        "the file is a plain core module without component metadata: build it against `wit/` with wit-bindgen, or make it a component with `wasm-tools component new`"
    )]
    Metadata,
    /// It is a core module that cannot be converted into a component.
    #[error("cannot make a component of the core module: {0}")]
    Componentise(String),
    /// It is damaged, or uses a proposal that is not enabled.
    #[error("cannot compile: {0}")]
    Compile(String),
    /// It nests deeper than any tool writes it.
    #[error("the compiler overflowed its stack: the file is damaged")]
    Stack,
    /// It needs more memory than a compiler may have, in MiB.
    #[error("the compiler needs more than its {0} MiB: the file is too large, or damaged")]
    Memory(u64),
    /// It needs more memory than the container leaves.
    #[error(
        "the compiler needs more than {mib} MiB for the file, which is what the container's memory limit of {limit} MiB leaves: raise the limit"
    )]
    Container {
        /// What the compiler had, in MiB.
        mib: u64,
        /// The container's limit, in MiB.
        limit: u64,
    },
    /// It needs more memory than the compiler has after the host ended over it.
    #[error(
        "the compiler needs more than {mib} MiB for the file, and is limited to that because the host ended {ended} times in a row while it compiled this file: raise the container's memory limit, and remove {} to lift the limit", mark.display()
    )]
    Halved {
        /// What the compiler had, in MiB.
        mib: u64,
        /// Consecutive ends of the host.
        ended: u32,
        /// The file that records them.
        mark: PathBuf,
    },
    /// The host ended over it, and it has to wait.
    #[error(
        "the host ended {ended} times in a row while it compiled this file, probably because the container was out of memory: the file is tried again in {} s, or when {} is removed", wait.as_secs(), mark.display()
    )]
    Suspect {
        /// Consecutive ends of the host.
        ended: u32,
        /// How much longer it has to wait.
        wait: Duration,
        /// The file that records the ends.
        mark: PathBuf,
    },
    /// The container has too little memory for any compiler.
    #[error(
        "the container's memory limit of {limit} MiB leaves {left} MiB for a compiler, which is too little: raise the limit"
    )]
    NoRoom {
        /// What the host and its reserve leave, in MiB.
        left: u64,
        /// The container's limit, in MiB.
        limit: u64,
    },
    /// It needs more time than a compiler may have.
    #[error("the compiler timed out after {} s: the file is too large, or damaged", .0.as_secs())]
    Deadline(Duration),
    /// Somebody else killed the compiler.
    #[error("the compiler was killed: by an administrator, or because the machine or the container is out of memory")]
    Killed,
    /// The compiler ended in an unexpected way.
    #[error("the compiler ended unexpectedly ({how}){}", Quoted((!said.is_empty()).then_some(said)))]
    Died {
        /// Exit status or signal.
        how: String,
        /// The last line that it printed.
        said: String,
    },
    /// The compiler could not run or write: the machine is at its limits.
    #[error("cannot run the compiler")]
    Compiler(#[source] std::io::Error),
    /// The compiled code cannot be loaded.
    #[error("cannot load the compiled code: {0}")]
    Code(String),
    /// It imports what the contract does not have.
    #[error(
        "the component imports what this host does not offer: {names}; a plugin may import {offered} of {package}, and cli, clocks, filesystem, http, io, random and sockets of WASI 0.2",
        names = .0.join(", "), offered = OFFERED.join(", "), package = PACKAGE
    )]
    Imports(Vec<String>),
    /// It was not built for the contract, or for another version of it.
    #[error("the component does not export {wanted}: {found}", wanted = full_name(CONTROLLER))]
    Export {
        /// What it exports instead.
        found: String,
    },
    /// It was built for a later version of the contract, and uses what this host lacks.
    #[error(
        "the component was built for {newer} and uses what this host does not have, which has {package}: update the host, or build for this version; {reason}",
        package = PACKAGE
    )]
    Newer {
        /// An import or export of the later version.
        newer: String,
        /// What is missing.
        reason: String,
    },
    /// Its imports or exports have other types.
    #[error("the component does not fit the contract {package}: {0}", package = PACKAGE)]
    Types(String),
}

impl LoadError {
    /// Returns `true` if a retry of the same file may succeed.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Compiler(_) | Self::Killed | Self::Code(_) | Self::Suspect { .. } | Self::NoRoom { .. })
    }

    /// Returns one word for metrics, with the meanings of [`CallError::kind`](super::super::CallError::kind).
    ///
    /// - `decode`: not WebAssembly that this host accepts
    /// - `link`: does not fit the contract
    /// - `deadline`, `memory`, `stack`, `died`: of the compiler
    /// - `host`: not the file's fault
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Empty
            | Self::Large(_)
            | Self::Text
            | Self::Magic(_)
            | Self::Short(_)
            | Self::Version { .. }
            | Self::Metadata
            | Self::Componentise(_)
            | Self::Compile(_) => "decode",
            Self::Stack => "stack",
            Self::Memory(_) | Self::Container { .. } | Self::Halved { .. } | Self::NoRoom { .. } => "memory",
            Self::Deadline(_) => "deadline",
            Self::Died { .. } => "died",
            Self::Killed | Self::Compiler(_) | Self::Code(_) | Self::Suspect { .. } => "host",
            Self::Imports(_) | Self::Export { .. } | Self::Newer { .. } | Self::Types(_) => "link",
        }
    }
}
