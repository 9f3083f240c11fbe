//! Checks that tests named in the docs exist.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns the text of every Rust file below a folder, without build output.
fn sources(folder: &Path, text: &mut String) {
    let entries = fs::read_dir(folder).expect("a folder of the repository can be read");
    for path in entries.map(|entry| entry.expect("an entry can be read").path()) {
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("a source is text"));
        }
    }
}

#[test]
fn every_test_and_file_that_the_page_on_containment_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/design/containment.md")).expect("the page is there");
    let mut text = String::new();
    for folder in ["host", "tests"] {
        sources(&root.join(folder), &mut text);
    }
    let mut rows = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, resource, _, counted, shown, _] = cells[..] else { panic!("not four columns: {row}") };
        assert!(!shown.is_empty(), "{resource} has no test");
        // What stands between backticks is every second part.
        let quoted = |cell: &str| -> Vec<String> { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
        for name in quoted(shown).iter().chain(&quoted(counted)) {
            let file = match name.strip_prefix("core/") {
                Some(core) if core.starts_with("tests/") => root.join("host/core").join(core),
                Some(core) => root.join("host/core/src").join(core),
                None if name.starts_with("tests/") => root.join(name),
                None => root.join("host/src").join(name),
            };
            let there: PathBuf = root.join("tests/guests/examples").join(format!("{name}.rs"));
            // The reflector's tests are rows of a table: a name and a script.
            let named = [format!("fn {name}("), format!("\n    {name} {{")];
            let exists = file.is_file() || there.is_file() || named.iter().any(|named| text.contains(named));
            assert!(exists, "{resource}: there is no {name}");
        }
        rows += 1;
    }
    assert!(rows > 30, "{rows} rows were read");
}
