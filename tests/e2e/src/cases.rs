//! `pilothouse test`: the cases of the plugins in this repository, and what the command says about others.

use std::{fs, path::PathBuf, process::Command};

use crate::host::{binary, built};

/// Runs the command in a new folder with these files. Returns its exit code, and both outputs.
fn test(plugin: &str, files: &[(&str, &str)], arguments: &[&str]) -> (i32, String) {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        fs::write(dir.path().join(name), text).expect("a file");
    }
    let mut command = Command::new(binary().expect("run `make build` first"));
    command.arg("test").arg(built("plugins").join(plugin)).args(arguments).current_dir(dir.path());
    let output = command.output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text.into_owned())
}

#[test]
fn cases_of_every_plugin_pass() {
    let mut count = 0;
    for folder in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins")).expect("the plugins") {
        let folder = folder.expect("an entry").path();
        let cases: PathBuf = folder.join("cases");
        if !cases.is_dir() {
            continue;
        }
        count += 1;
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let (code, said) = test(&format!("{name}.wasm"), &[], &[&cases.display().to_string()]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains(" 0 failed"), "{said}");
    }
    assert!(count > 1, "no cases were found");
}

const APPLE: &str = "{apiVersion: stable.example.com/v1, kind: MyApple, metadata: {name: pie}, \
                     spec: {color: red, size: small, quantity: 1}}";

#[test]
fn difference_is_shown_with_its_line_and_what_has_happened() {
    let text = format!(
        "name: one apple\nwhen:\n  apply: {APPLE}\nthen:\n  objects:\n    - apiVersion: v1\n      kind: ConfigMap\n      \
         metadata: {{name: pie-0}}\n      data: {{color: green}}\n  absent: [v1 ConfigMap default/pie-0]\n"
    );
    let (code, said) = test("myapple.wasm", &[("a.yaml", &text)], &["a.yaml"]);
    assert_eq!(code, 1, "{said}");
    for line in [
        "FAILED  a.yaml:1: one apple",
        "a.yaml:9: v1 ConfigMap default/pie-0: data.color: expected \"green\", found \"red\"",
        "a.yaml:10: v1 ConfigMap default/pie-0: expected none, found one",
        "apply ConfigMap default/pie-0",
        "0 passed, 1 failed",
    ] {
        assert!(said.contains(line), "{line}:\n{said}");
    }
}

#[test]
fn mistakes_in_case_files_are_told_with_their_lines_and_nothing_runs() {
    let unknown = "name: a\nwhen:\n  aply: {}\nthen: {}\n---\nname: a\nthen:\n  object: []\n";
    let files =
        [("unknown.yaml", unknown), ("broken.yaml", "name: [\n"), ("twice.yaml", "name: b\nname: c\nthen: {}\n")];
    let (code, said) = test("myapple.wasm", &files, &["."]);
    assert_eq!(code, 2, "{said}");
    for line in [
        "unknown.yaml:3: aply is not known here",
        "unknown.yaml:8: object is not known here",
        "broken.yaml: ",
        "twice.yaml:2: name is given twice",
    ] {
        assert!(said.contains(line), "{line}:\n{said}");
    }
    assert!(!said.contains("passed"), "{said}");
}
