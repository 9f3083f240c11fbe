//! Modules of the host import downwards, in the order that lib.rs states.

/// Circles that are one thought in several files.
const ACCEPTED: [&str; 2] =
    ["cluster::{connect, credentials, kubeconfig}", "informer::{handover, lease, moment, registry}"];

#[test]
fn modules_import_downwards() {
    pilothouse_layers::check(concat!(env!("CARGO_MANIFEST_DIR"), "/src"), &ACCEPTED);
}
