//! The fuzz targets' corpus, replayed through the laws that they check.
#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{fs, panic::catch_unwind, path::Path};

#[expect(unreachable_pub, reason = "a library to the fuzz targets, a module here")]
#[path = "../fuzz/src/lib.rs"]
mod laws;

fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut broken = Vec::new();
    let mut files = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        files += 1;
        if catch_unwind(|| check(&bytes)).is_err() {
            broken.push(path);
        }
    }
    assert!(files > 0, "nothing in {}", folder.display());
    assert!(broken.is_empty(), "laws are broken by {broken:?}");
}

#[test]
fn objects_of_the_corpus_read_as_serde_json_reads_them() {
    replay("object", laws::object::check);
}

#[test]
fn pages_and_lines_of_the_corpus_are_split_as_serde_json_would() {
    replay("list", laws::list::check);
}

#[test]
fn selectors_of_the_corpus_mean_what_they_write() {
    replay("selector", laws::selector::check);
}
