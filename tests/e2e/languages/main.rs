//! Plugins in other languages, built by their SDKs and stock toolchains: `make test-languages`.
//!
//! A toolchain is installed into `target/languages`. Where that cannot be done, the test is ignored and says why.

mod hellos;
mod policies;
mod probes;
mod sdks;
mod toolchains;

use std::process::ExitCode;

use pilothouse_e2e::{suite, tests};

fn main() -> ExitCode {
    suite::run(tests! {
        probes {
            python_prints_tells_the_time_draws_numbers_and_raises,
            javascript_prints_tells_the_time_draws_numbers_and_throws,
            rust_for_wasip2_prints_tells_the_time_draws_numbers_and_panics,
            go_prints_tells_the_time_draws_numbers_and_panics,
        }
        hellos {
            python_greets,
            typescript_greets,
            go_greets,
        }
        policies {
            python_reviews_and_observes,
            typescript_reviews_and_observes,
        }
        sdks {
            python_passes_its_tests_and_can_be_published,
            javascript_passes_its_tests_and_can_be_published,
            go_passes_its_tests,
        }
    })
}
