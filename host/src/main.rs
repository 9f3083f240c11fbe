//! The `pilothouse` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    pilothouse::cli::main()
}
