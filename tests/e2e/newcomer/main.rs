//! Does what `docs/getting-started.md` says, in an empty directory, and prints how long each step takes.
//!
//! `make test-newcomer` does the steps in Rust and Python, `make test-languages` those in all languages. A language
//! whose toolchain is missing is ignored, with the reason.
//!
//! What Cargo downloads and compiles lies in `target/newcomer`, so that only the first run compiles dependencies.

mod page;
mod project;
mod steps;

use std::{process::ExitCode, time::Duration};

use pilothouse_e2e::{suite, tests};

/// Time for a test. The first run compiles all dependencies of a project: for this machine, for a host, and for
/// development.
const LIMIT: Duration = Duration::from_secs(1800);

fn main() -> ExitCode {
    suite::run_within(
        LIMIT,
        tests! {
            steps {
                rust_from_an_empty_directory_to_an_edit_that_reloads,
                python_from_an_empty_directory_to_an_edit_that_reloads,
                javascript_from_an_empty_directory_to_an_edit_that_reloads,
                typescript_from_an_empty_directory_to_an_edit_that_reloads,
                go_from_an_empty_directory_to_an_edit_that_reloads,
            }
        },
    )
}
