//! Modules of the host import downwards, in the order that lib.rs states.

/// Circles that are one thought in several files.
const ACCEPTED: [&str; 3] =
    ["informer::{handover, lease, moment, registry}", "plugin::{candidate, lifecycle, task}", "plugin::{look, source}"];

/// Circles that are to be cut.
const LEFT: [&str; 2] = ["cluster::{connect, credentials, kubeconfig}", "writer::{basis, desired, mark}"];

#[test]
fn modules_import_downwards() {
    pilothouse_layers::check(concat!(env!("CARGO_MANIFEST_DIR"), "/src"), &[&ACCEPTED[..], &LEFT[..]].concat());
}
