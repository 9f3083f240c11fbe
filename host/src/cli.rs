//! The command line: what a person or a Deployment says, turned into calls of the rest.
//!
//! Owns arguments, the configuration file, logging's form, and everything that is printed.

mod apiserver;
mod args;
mod config;
mod dev;
mod feed;
mod inspect;
mod logging;
mod manifests;
mod run;

use std::process::ExitCode;

use clap::Parser;

use self::args::{Args, Command};
use crate::{
    allocator,
    wasm::{self, Tier},
};

/// Runs the command that the process's arguments name. Never returns before it is done.
pub fn main() -> ExitCode {
    let args = Args::parse();
    // What compiles ends soon, and takes less time where it gives back nothing before.
    if !matches!(args.command, Command::Compile(_)) {
        allocator::give_back_large_buffers();
    }
    let done = match args.command {
        Command::Run(args) => run::main(args),
        Command::Dev(args) => dev::main(args),
        Command::Apiserver(args) => apiserver::main(&args),
        Command::Inspect(args) => inspect::main(&args),
        Command::Compile(args) => {
            let tier = if args.baseline { Tier::Baseline } else { Tier::Optimized };
            return wasm::compile_for(args.parent, args.memory, args.data, tier);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
