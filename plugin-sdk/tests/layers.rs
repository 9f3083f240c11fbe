//! Modules import downwards, in the order that lib.rs states.

#[test]
fn modules_import_downwards() {
    pilothouse_layers::check(concat!(env!("CARGO_MANIFEST_DIR"), "/src"), &[]);
}
