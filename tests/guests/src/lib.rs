//! Hostile and unusual plugins for tests: one example each, in `examples/`, with the file of its grants beside it.
//!
//! The head of each example says what it does and which test uses it. `plugin-sdk/tests/guests.rs` checks that.
//!
//! Most guests are for `MyApple` of `stable.example.com/v1`, and misbehave only for objects whose name begins with
//! `bad-`. For other objects they are [well behaved](apple::well_behaved), so a test can show that other keys go on. No
//! guest brings the CustomResourceDefinition of `MyApple`: a test loads the plugin `myapple`, too.
//!
//! `plugins/build.sh guests` builds them to `target/guests/<name>.wasm`.

pub mod apple;
