//! `pilothouse compile`: compiles one file, in a process of its own that the host starts.

use std::process::ExitCode;

use crate::wasm::{self, Tier};

/// Compile one plugin, for the host
///
/// The host starts this for each file that is not in its cache. Reads the file from standard input, and writes code to standard output.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The process that starts it, and with which it ends
    #[arg(long, value_name = "PID")]
    pub(super) parent: u32,
    /// Limit of address space
    #[arg(long, value_name = "MIB")]
    pub(super) memory: u64,
    /// Limit of private memory
    #[arg(long, value_name = "MIB")]
    pub(super) data: u64,
    /// Compile faster, to slower code
    #[arg(long)]
    pub(super) baseline: bool,
}

pub(super) fn main(args: &Args) -> ExitCode {
    let tier = if args.baseline { Tier::Baseline } else { Tier::Optimized };
    wasm::compile_for(args.parent, args.memory, args.data, tier)
}
