//! `pilothouse compile`: one file, compiled in a process of its own for the host that starts it.

use std::process::ExitCode;

use crate::wasm::{self, Tier};

/// Compile one plugin, for the host
///
/// The host starts this for each file that it has not compiled before. The file is standard input, its code standard output.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Who starts it: it ends with that process
    #[arg(long, value_name = "PID")]
    pub(super) parent: u32,
    /// How much address space it may take
    #[arg(long, value_name = "MIB")]
    pub(super) memory: u64,
    /// How much memory of its own it may take
    #[arg(long, value_name = "MIB")]
    pub(super) data: u64,
    /// Sooner, for code that runs longer
    #[arg(long)]
    pub(super) baseline: bool,
}

pub(super) fn main(args: &Args) -> ExitCode {
    let tier = if args.baseline { Tier::Baseline } else { Tier::Optimized };
    wasm::compile_for(args.parent, args.memory, args.data, tier)
}
