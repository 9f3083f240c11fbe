//! Modules of the host import downwards, in the order that lib.rs states.

/// Circles that are one thought in several files.
const ACCEPTED: [&str; 1] = ["informer::{handover, lease, moment, registry}"];

/// Circles that are to be cut.
const LEFT: [&str; 1] = ["cluster::{connect, credentials, kubeconfig}"];

#[test]
fn modules_import_downwards() {
    pilothouse_layers::check(concat!(env!("CARGO_MANIFEST_DIR"), "/src"), &[&ACCEPTED[..], &LEFT[..]].concat());
}
