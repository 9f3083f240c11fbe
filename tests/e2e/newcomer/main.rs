//! Does what `docs/getting-started.md` says, in an empty directory: `make test-newcomer`.
//!
//! What is downloaded and compiled for it lies in `target/newcomer`, so that only the first run compiles dependencies.

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
            }
        },
    )
}
