//! Every test and file that the page on containment names exists.

use super::{cells, quoted, read, root, sources};

#[test]
fn every_test_and_file_that_the_page_on_containment_names_exists() {
    let page = read(&root().join("docs/design/containment.md"));
    let text = sources(&["host", "tests"]);
    let (mut rows, mut wrong) = (0, Vec::new());
    for row in page.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let [resource, _, counted, shown] = cells(row)[..] else { panic!("not four columns: {row}") };
        assert!(!shown.is_empty(), "{resource} has no test");
        for name in quoted(shown).into_iter().chain(quoted(counted)) {
            let file = match name.strip_prefix("core/") {
                Some(core) if core.starts_with("tests/") => root().join("host/core").join(core),
                Some(core) => root().join("host/core/src").join(core),
                None if name.starts_with("tests/") => root().join(name),
                None => root().join("host/src").join(name),
            };
            let guest = root().join("tests/guests/examples").join(format!("{name}.rs"));
            // The reflector's tests are rows of a table: a name and a script.
            let named = [format!("fn {name}("), format!("\n    {name} {{")];
            let exists = file.is_file() || guest.is_file() || named.iter().any(|named| text.contains(named));
            if !exists {
                wrong.push(format!("{resource}: {name} does not exist"));
            }
        }
        rows += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows > 30, "{rows} rows were read");
}
