//! For `bad-1`, returns a status that is not UTF-8. For other `bad-*`, logs a line that is not UTF-8.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

#![cfg(target_arch = "wasm32")]
#![expect(unsafe_code, reason = "safe code cannot create such a text")]

use pilothouse_guests::apple::{self, MyApple, is_bad};
use pilothouse_sdk::{
    Error, Object as _, Plugin, contract,
    contract::exports::pilothouse::plugin::controller::{
        Children, Failure, Guest, Manifest, Outcome, Request, Watches,
    },
    entry,
    log::{self, Level},
};

struct Garbling;

fn plugin() -> Plugin {
    apple::plugin("Returns text that is not UTF-8.", apple::well_behaved)
}

fn garbled() -> String {
    // SAFETY: nothing in this component reads the text.
    unsafe { String::from_utf8_unchecked(b"{\"available\": \"\xff\xfe\"}".to_vec()) }
}

impl Guest for Garbling {
    fn describe(config: String) -> Result<Manifest, String> {
        entry::describe(&plugin, env!("CARGO_PKG_VERSION"), &config)
    }

    fn reconcile(config: String, request: Request) -> Result<Outcome, Failure> {
        let apple: MyApple = serde_json::from_str(&request.object).map_err(Error::from)?;
        if !is_bad(&apple) {
            return entry::reconcile(&plugin, &config, request);
        }
        if apple.name() != "bad-1" {
            log::write(Level::Info, &garbled(), &[]);
        }
        Ok(Outcome {
            children: Children::Unchanged,
            status: Some(garbled()),
            requeue_after: None,
            watches: Watches::Unchanged,
            events: Vec::new(),
        })
    }
}

contract::export!(Garbling with_types_in contract);
