#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::fs;

use super::problems;

/// Writes the files of a crate, whose lib.rs lists `order`, and returns what is wrong with it.
fn report(order: &str, files: &[(&str, &str)], allowed: &[&str]) -> Vec<String> {
    let src = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = src.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let head = if path.ends_with("lib.rs") {
            format!("//! A crate.\n//!\n//! # Layers\n//!\n{order}\n")
        } else {
            String::new()
        };
        fs::write(path, head + text).unwrap();
    }
    problems(src.path(), allowed)
}

const ORDER: &str = "//! - `low`: holds `things`\n//! - [`mid`],\n//!   [`high`]: the rest";

#[test]
fn imports_that_point_down_are_accepted() {
    let files = [
        ("lib.rs", "mod high; mod low; pub mod mid;"),
        ("low.rs", "use std::fmt;"),
        ("mid/mod.rs", "pub mod part; use part::P; pub use crate::low::Low;"),
        ("mid/part.rs", "use super::{Low, super::low}; pub struct P;"),
        ("high.rs", "use crate::{low::{self, Low as L}, mid::part::{P}};"),
    ];
    assert_eq!(report(ORDER, &files, &[]), Vec::<String>::new());
}

#[test]
fn an_import_against_the_order_is_named_with_its_line() {
    let files = [
        ("lib.rs", "mod high; mod low; mod mid;"),
        ("low.rs", "use crate::{\n    mid::{a::A, b},\n};\nfn f() { crate::high::f() }"),
        ("mid.rs", ""),
        ("high.rs", ""),
    ];
    let expected = [
        "low imports high, which lib.rs lists after it: low.rs:4",
        "low imports mid, which lib.rs lists after it: low.rs:2",
    ];
    assert_eq!(report(ORDER, &files, &[]), expected);
}

#[test]
fn numbered_layers_are_read_and_must_name_every_module_once() {
    let order = "//! 1. `low`: first\n//! 2. `gone`, `low`: second";
    let files = [("lib.rs", "mod low; mod mid;"), ("low.rs", ""), ("mid.rs", "")];
    let expected = [
        "lib.rs does not list the module mid under \"# Layers\"",
        "lib.rs lists a module gone, which does not exist",
        "lib.rs lists the module low twice",
    ];
    assert_eq!(report(order, &files, &[]), expected);
}

/// A folder in which `a` and `b` need each other, the second through its child.
const CIRCLE: [(&str, &str); 6] = [
    ("lib.rs", "mod low;"),
    ("low.rs", "mod a; mod b; mod c;"),
    ("low/a.rs", "use super::b::child::Child;"),
    ("low/b.rs", "mod child { use super::super::a; }"),
    ("low/c.rs", "use super::{a, b};"),
    ("low/b/unused.rs", "no Rust"),
];

#[test]
fn a_circle_of_siblings_is_named_with_its_lines() {
    let expected = [
        "modules import each other in a circle: low::{a, b}",
        "    a imports b: low/a.rs:1",
        "    b imports a: low/b.rs:1",
    ];
    assert_eq!(report("//! - `low`", &CIRCLE, &[]), expected);
}

#[test]
fn an_allowed_circle_is_accepted_as_long_as_it_exists() {
    let expected = ["the allowed circle low::{b, c} does not exist"];
    assert_eq!(report("//! - `low`", &CIRCLE, &["low::{a, b}", "low::{b, c}"]), expected);
}

#[test]
fn a_name_passed_on_by_a_parent_counts_for_the_module_that_defines_it() {
    let files = [
        ("lib.rs", "mod high; mod low; pub use high::High;"),
        ("low.rs", "use crate::High;"),
        ("high.rs", "use crate::low; pub struct High;"),
    ];
    let expected = [
        "low imports high, which lib.rs lists after it: low.rs:1",
        "modules import each other in a circle: {high, low}",
        "    high imports low: high.rs:1",
        "    low imports high: low.rs:1",
    ];
    assert_eq!(report("//! - `low`, `high`", &files, &[]), expected);
}

#[test]
fn what_only_tests_compile_does_not_count() {
    let files = [
        ("lib.rs", "mod high; mod low; #[cfg(test)] mod testing; #[cfg(not(test))] mod real;"),
        (
            "low.rs",
            "#[cfg(test)] use crate::high; #[cfg(test)] fn f(x: [u8; 2]) { crate::high::f() } mod tests;
            #[cfg(all(test, unix))] mod more { use crate::high; } pub(in crate::high) fn g() {}",
        ),
        ("high.rs", ""),
        ("real.rs", "use crate::low;"),
    ];
    assert_eq!(report("//! - `low`, `high`, `real`", &files, &[]), Vec::<String>::new());
}
