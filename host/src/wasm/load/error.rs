//! Why a file did not become a plugin.

use std::{path::PathBuf, time::Duration};

use super::super::{
    MAX_FILE,
    contract::{
        error::Said,
        export::CONTROLLER,
        imports::OFFERED,
        package::{PACKAGE, full_name},
    },
};

/// A file that is no plugin for this host; says what is wrong and what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// More than the host is ready to compile.
    #[error("the file has {0} bytes, and at most {max} are allowed", max = MAX_FILE)]
    Large(usize),
    /// WebAssembly's text format.
    #[error("the file is WebAssembly text: assemble it first, for example with `wasm-tools parse`")]
    Text,
    /// Something else altogether.
    #[error("the file is not WebAssembly: it begins with {0}")]
    Magic(String),
    /// Ends within its header.
    #[error("the file ends after {0} bytes, within WebAssembly's header: it is incomplete")]
    Short(usize),
    /// A version of the format that this engine does not know.
    #[error(
        "the file is WebAssembly of version {version}, layer {layer}, which this host does not know: it takes components and core modules"
    )]
    Version {
        /// As in the header.
        version: u16,
        /// As in the header: 0 is a core module, 1 a component.
        layer: u16,
    },
    /// A core module that no tool of the component model made.
    #[error(
        "the file is a plain core module without component metadata: build it against `wit/` with wit-bindgen, or make it a component with `wasm-tools component new`"
    )]
    Metadata,
    /// A core module that does not become a component.
    #[error("cannot make a component of the core module: {0}")]
    Componentise(String),
    /// Damaged, or uses a proposal that is not enabled.
    #[error("cannot compile: {0}")]
    Compile(String),
    /// Nests or loops deeper than any tool writes it.
    #[error("the compiler died of a stack overflow over the file: it is damaged")]
    Stack,
    /// Needs more memory than its compiler may have.
    #[error("the compiler needs more than its {0} MiB for the file: it is too large, or damaged")]
    Memory(u64),
    /// Needs more memory than the container leaves.
    #[error(
        "the compiler needs more than {mib} MiB for the file, which is what the container's memory limit of {limit} MiB leaves: raise the limit"
    )]
    Container {
        /// What it had, in MiB.
        mib: u64,
        /// The container's limit, in MiB.
        limit: u64,
    },
    /// Needs more memory than it gets since the host has ended over it.
    #[error(
        "the compiler needs more than {mib} MiB for the file, and gets no more because the host has ended while it compiled the file ({ended} times in a row): raise the container's memory limit, and remove {} to let it have all", mark.display()
    )]
    Halved {
        /// What it had, in MiB.
        mib: u64,
        /// How often in a row.
        ended: u32,
        /// The file that says so.
        mark: PathBuf,
    },
    /// The host has ended over it, and it is not time to try again.
    #[error(
        "the host has ended while it compiled the file ({ended} times in a row), as it does where the container is out of memory: the file is tried again in {} s, and before that if {} is removed", wait.as_secs(), mark.display()
    )]
    Suspect {
        /// How often in a row.
        ended: u32,
        /// For so long still.
        wait: Duration,
        /// The file that says so.
        mark: PathBuf,
    },
    /// The container has too little memory left for any compiler.
    #[error(
        "the container's memory limit of {limit} MiB leaves {left} MiB for a compiler, which is too little: raise the limit"
    )]
    NoRoom {
        /// What is left beside the host and its reserve, in MiB.
        left: u64,
        /// The container's limit, in MiB.
        limit: u64,
    },
    /// Needs more time than its compiler may have.
    #[error("the compiler was stopped over the file after {} s: it is too large, or damaged", .0.as_secs())]
    Deadline(Duration),
    /// Not by the host.
    #[error(
        "the compiler was killed over the file: by an administrator, or because the machine or the container is out of memory"
    )]
    Killed,
    /// In a way that nobody has thought of.
    #[error("the compiler died over the file ({how}){}", Said((!said.is_empty()).then_some(said)))]
    Died {
        /// Exit status or signal.
        how: String,
        /// The last line that it wrote.
        said: String,
    },
    /// It has not looked at the file: the machine is at its limits.
    #[error("cannot run the compiler")]
    Compiler(#[source] std::io::Error),
    /// Compiled, and not to be loaded.
    #[error("cannot load the compiled code: {0}")]
    Code(String),
    /// Imports that the contract does not have.
    #[error(
        "the component imports what this host does not offer: {names}; a plugin may import {offered} of {package} and nothing else",
        names = .0.join(", "), offered = OFFERED.join(", "), package = PACKAGE
    )]
    Imports(Vec<String>),
    /// Not built for the contract, or for another version of it.
    #[error("the component does not export {wanted}: {found}", wanted = full_name(CONTROLLER))]
    Export {
        /// What it has instead.
        found: String,
    },
    /// The right names with the wrong types.
    #[error("the component does not fit the contract {package}: {0}", package = PACKAGE)]
    Types(String),
}

impl LoadError {
    /// Whether it may pass by itself: the same file may come through another time.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Compiler(_) | Self::Killed | Self::Code(_) | Self::Suspect { .. } | Self::NoRoom { .. })
    }

    /// One word for metrics, of the same meaning as [`CallError::kind`](super::super::CallError::kind)'s: `decode` where it is no WebAssembly that this host takes, `link`
    /// where it does not fit the contract; of the compiler `deadline`, `memory`, `stack`, `died` or, where it is not the file's fault, `host`.
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
            Self::Imports(_) | Self::Export { .. } | Self::Types(_) => "link",
        }
    }
}
