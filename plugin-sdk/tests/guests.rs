//! The guests in `tests/guests` are complete. They are built for the sandbox only, so their own crate runs no tests.

use std::{collections::BTreeSet, fs, path::Path};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn examples(extension: &str) -> BTreeSet<String> {
    let files = fs::read_dir(Path::new(ROOT).join("tests/guests/examples")).expect("the folder exists");
    let files = files.map(|file| file.expect("the folder can be read").path());
    let files = files.filter(|path| path.extension().is_some_and(|found| found == extension));
    files.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
}

#[test]
fn every_example_has_its_grants() {
    assert_eq!(examples("rs"), examples("yaml"));
}

#[test]
fn every_example_is_built_as_a_component() {
    let manifest = include_str!("../../tests/guests/Cargo.toml");
    for name in examples("rs") {
        let entry = format!("[[example]]\nname = \"{name}\"\ncrate-type = [\"cdylib\"]\n");
        assert!(manifest.contains(&entry), "Cargo.toml lacks\n{entry}");
    }
}

#[test]
fn every_example_names_a_test_that_uses_it() {
    for name in examples("rs") {
        let source = fs::read_to_string(Path::new(ROOT).join(format!("tests/guests/examples/{name}.rs")));
        let source = source.expect("the example can be read");
        let test = source.split_once("//! Used by `").and_then(|(_, rest)| rest.split_once("`.\n"));
        let (test, _) = test.unwrap_or_else(|| panic!("the head of {name} lacks \"Used by `path`.\""));
        let uses = fs::read_to_string(Path::new(ROOT).join(test));
        assert!(uses.is_ok_and(|text| text.contains(&format!("\"{name}\""))), "{test} does not use {name}");
    }
}
