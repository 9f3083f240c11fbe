//! What is around objects on the wire is split as `serde_json` would split it.
//!
//! The splitting itself does not check the objects, so text that `serde_json` refuses may come through: what is then
//! asked is that the pieces are pieces of it. `Status`, which is read whole, must be JSON.

use std::{ops::Range, time::Duration};

use pilothouse_core::list::{ListMeta, Status, WatchLine, list_page, watch_line};

use super::tree::Tree;

/// Reads the bytes as a list page, as a line of a watch and as a `Status`, and asks `serde_json`.
///
/// # Panics
/// When `list_page`, `watch_line` or `Status::parse` and `serde_json` differ on these bytes.
pub fn check(bytes: &[u8]) {
    // Which of two members of one name counts is not said. In objects, two that matter are an error.
    let tree = Tree::parse(bytes);
    let judge = tree.as_ref().ok().filter(|tree| !tree.repeats_anything());
    page(bytes, judge);
    line(bytes, judge);

    let status = Status::parse(bytes);
    assert!(status.is_err() || tree.is_ok(), "accepted: {status:?}");
    if let (Some(_), Some(exact)) = (judge, exact_status(&tree)) {
        assert_eq!(status.ok(), exact, "status");
    }
}

/// Where `piece`, a part of `whole`, stands in it.
fn place(whole: &[u8], piece: &[u8]) -> Range<usize> {
    let range = whole.as_ptr_range();
    assert!(range.contains(&piece.as_ptr()) || piece.as_ptr() == range.end, "a piece of another text");
    let start = piece.as_ptr().addr() - range.start.addr();
    assert!(start + piece.len() <= whole.len(), "a piece beyond the text");
    start..start + piece.len()
}

/// A string that is not there, is null, or is one; else the outer `None`.
fn text(of: &Tree, name: &str) -> Option<Option<String>> {
    match of.get(name) {
        None | Some(Tree::Null) => Some(None),
        Some(value) => value.as_str().map(|text| Some(text.to_owned())),
    }
}

fn page(bytes: &[u8], judge: Option<&Tree>) {
    let split = list_page(bytes);
    match &split {
        Err(error) => assert!(error.at <= bytes.len(), "{error}"),
        Ok((_, items)) => {
            let mut end = 0;
            for item in items {
                let place = place(bytes, item);
                assert!(place.start > end, "items overlap");
                end = place.end;
            }
        }
    }
    let Some(judge) = judge else { return };
    let expected = (|| {
        let metadata = judge.get("metadata").filter(|metadata| matches!(metadata, Tree::Object(_)))?;
        let filled = |name| text(metadata, name).map(|text| text.filter(|text| !text.is_empty()));
        let meta = ListMeta { resource_version: filled("resourceVersion")?, continue_token: filled("continue")? };
        match judge.get("items")? {
            Tree::Null => Some((meta, Vec::new())),
            Tree::Array(items) => Some((meta, items.clone())),
            _ => None,
        }
    })();
    let item = |item: &&[u8]| Tree::parse(item).expect("an item of JSON is JSON");
    let split = split.ok().map(|(meta, items)| (meta, items.iter().map(item).collect()));
    assert_eq!(split, expected, "page");
}

fn line(bytes: &[u8], judge: Option<&Tree>) {
    let split = watch_line(bytes);
    match &split {
        Err(error) => assert!(error.at <= bytes.len(), "{error}"),
        Ok(WatchLine::Added(object) | WatchLine::Modified(object) | WatchLine::Deleted(object)) => {
            place(bytes, object);
        }
        Ok(WatchLine::Bookmark { resource_version, .. }) => assert!(!resource_version.is_empty()),
        Ok(WatchLine::Error(_)) => {}
    }
    let Some(judge) = judge else { return };
    let r#type = judge.get("type").and_then(Tree::as_str);
    match (split, r#type) {
        (Ok(WatchLine::Added(object)), Some("ADDED"))
        | (Ok(WatchLine::Modified(object)), Some("MODIFIED"))
        | (Ok(WatchLine::Deleted(object)), Some("DELETED")) => {
            // With more members after it, the object is not valid JSON by itself, and parsing it fails.
            let alone = judge.members().len() == 2;
            match Tree::parse(object) {
                Ok(object) => assert_eq!(Some(&object), judge.get("object")),
                Err(error) => assert!(!alone, "cut wrongly: {error}"),
            }
        }
        (Ok(WatchLine::Bookmark { resource_version, initial_events_end }), Some("BOOKMARK")) => {
            let metadata = judge.get("object").and_then(|object| object.get("metadata"));
            let metadata = metadata.expect("a bookmark has metadata");
            assert_eq!(text(metadata, "resourceVersion").flatten(), Some(resource_version));
            let end = metadata.get("annotations").and_then(|all| text(all, "k8s.io/initial-events-end")?);
            assert_eq!(initial_events_end, end.as_deref() == Some("true"));
        }
        (Ok(WatchLine::Error(status)), Some("ERROR")) => {
            let object = judge.get("object").cloned().ok_or("nothing");
            let exact = exact_status(&object).expect("without a number that is no integer");
            assert_eq!(Some(status), exact);
        }
        (Err(error), Some("ADDED" | "MODIFIED" | "DELETED")) => {
            assert!(judge.get("object").is_none(), "refused: {error}");
        }
        (Err(_), _) => {}
        (Ok(split), _) => panic!("accepted {split:?} of {judge:?}"),
    }
}

/// What `Status::parse` should give; the outer `None` where this cannot tell.
fn exact_status<E>(status: &Result<Tree, E>) -> Option<Option<Status>> {
    let Ok(status) = status else { return Some(None) };
    if !matches!(status, Tree::Object(_)) {
        return Some(None);
    }
    // `-0` and `-0.0` look the same once they are read.
    let integer = |of: &Tree, name: &str| match of.get(name) {
        None | Some(Tree::Null) => Some(Ok(None)),
        Some(Tree::Number(number)) if number.as_f64() == Some(0.0) && number.is_f64() => None,
        Some(Tree::Number(number)) => Some(number.as_i64().map(Some).ok_or(())),
        Some(_) => Some(Err(())),
    };
    let code = integer(status, "code")?;
    let after = match status.get("details") {
        None | Some(Tree::Null) => Ok(None),
        Some(details @ Tree::Object(_)) => integer(details, "retryAfterSeconds")?,
        Some(_) => Err(()),
    };
    Some((|| {
        let seconds = after.ok()?.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
        Some(Status {
            code: code.ok()?.unwrap_or(0).try_into().ok()?,
            reason: text(status, "reason")?.unwrap_or_default(),
            message: text(status, "message")?.unwrap_or_default(),
            retry_after: seconds.map(Duration::from_secs),
        })
    })())
}
