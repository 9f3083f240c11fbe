//! The command line: one file for each command, with its arguments.
//!
//! Owns arguments, the configuration file, logging, and everything that is printed.

mod apiserver;
mod build;
mod collect;
mod compile;
mod config;
mod controllers;
mod describe;
mod dev;
mod election;
mod endpoints;
mod feed;
mod fields;
mod inspect;
mod install;
mod language;
mod logging;
mod manifests;
mod new;
mod project;
mod rbac;
mod rebuild;
mod run;
mod sources;
mod test;
mod webhooks;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{allocator, app, causes::with_causes};

/// Runs Kubernetes operators as sandboxed WebAssembly plugins in one process.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    New(new::Args),
    Build(build::Args),
    Run(Box<run::Args>),
    Dev(dev::Args),
    Apiserver(apiserver::Args),
    Inspect(inspect::Args),
    Test(test::Args),
    Collect(collect::Args),
    Manifests(install::Args),
    Rbac(rbac::Args),
    #[command(hide = true)]
    Compile(compile::Args),
}

/// Runs the command that the process's arguments name, to its end.
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    // A compiler process ends soon, and is faster when it returns no memory before.
    if !matches!(command, Command::Compile(_)) {
        allocator::give_back_large_buffers();
    }
    let done = match command {
        Command::New(args) => new::main(&args),
        Command::Build(args) => build::main(&args),
        Command::Run(args) => run::main(*args),
        Command::Dev(args) => dev::main(args),
        Command::Apiserver(args) => apiserver::main(&args),
        Command::Inspect(args) => inspect::main(&args),
        Command::Test(args) => return test::main(args),
        Command::Collect(args) => collect::main(&args),
        Command::Manifests(args) => {
            install::main(&args, |plugins, namespace, name| block_on(rbac::of_plugins(plugins, namespace, name)))
        }
        Command::Rbac(args) => return rbac::main(args),
        Command::Compile(args) => return compile::main(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", with_causes(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Runs a command on the runtime for input and output. Does not wait for a compilation that is still running at its end.
fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = app::io_runtime()?;
    let done = runtime.block_on(command);
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_consistent_and_every_command_shows_examples() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        for command in
            command.get_subcommands().filter(|command| command.get_name() != "help" && !command.is_hide_set())
        {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Examples:\n  pilothouse "), "{help}");
        }
    }
}
