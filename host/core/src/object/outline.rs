//! Outlines: the metadata of objects whose text cannot be parsed.
//!
//! The store holds such an object as its metadata alone, with an annotation that says why. So its deletion is
//! reconciled, no plugin sees its former content, and each reader sees that it is unreadable.

use std::fmt;

use super::{Keep, Object};
use crate::{
    json::{self, MAX_DEPTH, ParseError, Reader},
    key::TypeMeta,
};

/// The annotation of an outline. Its value says why the object cannot be read.
pub const UNREADABLE: &str = "pilothouse/unreadable";

/// Members of `metadata` that are kept if they can be read.
const KEPT: [&str; 10] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "deletionTimestamp",
    "finalizers",
    "labels",
    "ownerReferences",
    "managedFields",
];

/// Members that an outline must have, if the object has them.
const NEEDED: [&str; 6] = ["name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp"];

/// Why an object is only an outline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It nests deeper than the limit.
    TooDeep,
    /// Its text has another defect.
    Malformed,
}

impl Unreadable {
    fn of(error: &ParseError) -> Self {
        if error.is_too_deep() { Self::TooDeep } else { Self::Malformed }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooDeep => {
                write!(f, "the object cannot be read: it nests deeper than {MAX_DEPTH} levels of objects and lists")
            }
            Self::Malformed => {
                f.write_str("the object cannot be read: the host's log says what is wrong with its JSON")
            }
        }
    }
}

impl Object {
    /// Parses as much of an object's metadata as can be read, after [`parse_kept`](Self::parse_kept) failed with
    /// `error`.
    ///
    /// Returns `None` if its name, uid or version cannot be read.
    pub fn outline(json: &[u8], default: &TypeMeta, keep: &Keep, error: &ParseError) -> Option<Self> {
        let why = Unreadable::of(error);
        let (head, metadata) = parts(json::utf8(json).ok()?)?;
        let annotation = format!("\"annotations\":{{\"{UNREADABLE}\":\"{why}\"}}");
        let read = |members: &[&str]| {
            let members = kept(metadata, members)?;
            let text = format!("{{{head}\"metadata\":{{{members}{annotation}}}}}");
            Self::parse_kept(text.as_bytes(), default, keep).ok()
        };
        let outline = read(&KEPT).or_else(|| read(&NEEDED))?;
        Some(Self { unreadable: Some(why), ..outline })
    }

    /// Returns why the object is only an outline, or `None` if it is whole.
    pub fn unreadable(&self) -> Option<Unreadable> {
        self.unreadable
    }
}

/// Returns the members apiVersion and kind, each with a comma, and the text of `metadata`.
fn parts(text: &str) -> Option<(String, &str)> {
    let mut reader = Reader::new(text);
    let (mut head, mut metadata) = (String::new(), None);
    reader.enter_object("text").ok()?;
    while let Some(name) = reader.member().ok()? {
        let value = reader.skip().ok()?;
        match &*name.decode() {
            "metadata" if metadata.is_some() => return None,
            "metadata" => metadata = Some(value),
            name @ ("apiVersion" | "kind") if is_json(value) => head.push_str(&format!("\"{name}\":{value},")),
            _ => {}
        }
    }
    Some((head, metadata?))
}

/// Returns the members of an object that can be read, each with a comma.
fn kept(metadata: &str, names: &[&str]) -> Option<String> {
    let mut reader = Reader::new(metadata);
    let mut kept = String::new();
    reader.enter_object("metadata").ok()?;
    while let Some(name) = reader.member().ok()? {
        let value = reader.skip().ok()?;
        if let Some(name) = names.iter().find(|known| name.decode() == **known)
            // Parsing the outline walks through them, and they may nest deeper than the rest.
            && (*name == "managedFields" || is_json(value))
        {
            kept.push_str(&format!("\"{name}\":{value},"));
        }
    }
    Some(kept)
}

fn is_json(value: &str) -> bool {
    let mut reader = Reader::new(value);
    reader.value().is_ok() && reader.end().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(json: &str) -> Option<Object> {
        let of = TypeMeta::new("v1", "ConfigMap");
        let error = Object::parse(json.as_bytes(), &of).expect_err("it cannot be read");
        Object::outline(json.as_bytes(), &of, &Keep::default(), &error)
    }

    fn deep(levels: usize) -> String {
        format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels))
    }

    #[test]
    fn an_object_that_nests_too_deep_is_known_by_its_metadata() {
        let metadata = r#""name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{"app":"x"},"annotations":{"b":"c"}"#;
        let outline =
            outline(&format!(r#"{{"kind":"Tree","apiVersion":"v1","spec":{},"metadata":{{{metadata}}}}}"#, deep(200)));
        let outline = outline.expect("it is known");
        assert_eq!(outline.unreadable(), Some(Unreadable::TooDeep));
        insta::assert_snapshot!(outline.json(), @r#"{"kind":"Tree","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{"app":"x"},"annotations":{"pilothouse/unreadable":"the object cannot be read: it nests deeper than 127 levels of objects and lists"}}}"#);
    }

    #[test]
    fn members_of_metadata_that_cannot_be_read_are_left_out() {
        let ids = r#""name":"a","uid":"u","resourceVersion":"7""#;
        for odd in [r#""labels":{"a":1}"#, r#""ownerReferences":[{}]"#, r#""finalizers":["\ud800"]"#] {
            let outline = outline(&format!(r#"{{"metadata":{{{ids},{odd}}},"data":"\ud800"}}"#)).expect("it is known");
            assert_eq!(outline.unreadable(), Some(Unreadable::Malformed));
            assert_eq!(outline.uid().to_string(), "u");
            assert_eq!(outline.labels().count() + outline.owners().count(), 0);
        }
    }

    #[test]
    fn an_object_that_does_not_say_which_it_is_has_no_outline() {
        for text in [
            r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#,
            r#"{"metadata":{"name":"a","uid":"u","uid":"v","resourceVersion":"7"}}"#,
            r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"7"},"metadata":{}}"#,
            r#"{"metadata":{"name":"a","uid":"u""#,
            "[",
            "",
        ] {
            assert_eq!(outline(text), None, "{text}");
        }
    }

    #[test]
    fn managed_fields_do_not_count_towards_the_depth() {
        let of = TypeMeta::new("v1", "ConfigMap");
        let managed = |manager: &str| {
            let fields = deep(200).replace(":1", ":{}");
            let entry = format!(r#"{{"manager":"{manager}","operation":"Apply","fieldsV1":{fields}}}"#);
            let text = format!(
                r#"{{"metadata":{{"name":"a","uid":"u","resourceVersion":"7","managedFields":[{entry}]}},"spec":{}}}"#,
                deep(126),
            );
            Object::parse(text.as_bytes(), &of).expect("it is read")
        };
        assert!(managed("kubectl").applied("kubectl", None).is_none());
        // Too deep to compare anything with: as if this host had applied nothing.
        assert!(managed("pilothouse.a").applied("pilothouse.a", None).is_none());
    }
}
