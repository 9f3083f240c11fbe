//! Imports the interface `test:greedy/secrets`, which no host offers. The host must reject it.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

#![cfg(target_arch = "wasm32")]
#![expect(missing_docs, unsafe_code, reason = "generated code, and the ABI of the component model needs unsafe code")]

wit_bindgen::generate!({
    path: "../../wit",
    inline: "
        package test:greedy;

        interface secrets {
            steal: func(name: string) -> string;
        }

        world greedy {
            import secrets;
            export pilothouse:plugin/controller@0.1.0;
        }
    ",
    world: "test:greedy/greedy",
    generate_all,
});

use exports::pilothouse::plugin::controller::{Failure, Guest, Manifest, Outcome, Request};
use test::greedy::secrets::steal;

struct Greedy;

impl Guest for Greedy {
    fn describe(config: String) -> Result<Manifest, String> {
        Err(steal(&config))
    }

    fn reconcile(_: String, request: Request) -> Result<Outcome, Failure> {
        Err(Failure { message: steal(&request.object), terminal: true, status: None, events: Vec::new() })
    }
}

export!(Greedy);
