//! `Object::parse` reads what `serde_json` reads, and refuses what no API server sends.

use std::collections::BTreeSet;

use pilothouse_core::{
    key::{Key, TypeMeta},
    object::{Object, OwnerRef, ResourceVersion, Subresource, Uid},
};

use super::tree::Tree;

const API_VERSION: &str = "apps/v1";
/// Not to be inserted as it stands.
const KIND: &str = "Thing \"quoted\"";

/// An error's message repeats at most 100 bytes of the text, each perhaps as an escape.
const LONGEST_ERROR: usize = 1_500;

/// Reads the bytes as an object, and asks `serde_json` about each thing that was read.
///
/// # Panics
/// When `Object::parse` and `serde_json` differ on these bytes.
pub fn check(bytes: &[u8]) {
    let default = TypeMeta::new(API_VERSION, KIND);
    let parsed = Object::parse(bytes, &default);
    if let Err(error) = &parsed {
        assert!(error.at <= bytes.len(), "{error} of {}", bytes.len());
        assert!(error.to_string().len() <= LONGEST_ERROR, "a long error: {error}");
    }
    let tree = Tree::parse(bytes);
    match (parsed, tree.as_ref().map(expected)) {
        (Ok(object), Ok(Some(expected))) => {
            assert_eq!(Read::of(&object, &expected), expected, "metadata");
            let tree = tree.expect("it was read");
            assert_eq!(Tree::parse(object.json().as_bytes()).ok().as_ref(), Some(&stored(&tree)), "text");
            is_cut_once(bytes, &object, &tree);
            reads_itself(&object, &default);
        }
        (Ok(object), Ok(None)) => panic!("accepted without proper metadata: {}", object.json()),
        (Ok(object), Err(error)) => panic!("accepted: {}\nserde_json: {error}", object.json()),
        (Err(error), Ok(Some(_))) => assert!(is_minus_zero(&tree), "refused: {error}"),
        (Err(_), Ok(None) | Err(_)) => {}
    }
}

/// What is read of an object.
#[derive(Debug, PartialEq)]
struct Read {
    of: TypeMeta,
    key: Key,
    uid: String,
    resource_version: ResourceVersion,
    generation: Option<i64>,
    labels: Vec<(String, String)>,
    owners: Vec<OwnerRef<'static>>,
    deleting: bool,
    applied: Vec<(String, Option<Subresource>, Tree)>,
}

impl Read {
    /// What the object says; of what was applied, by the managers that `expected` knows.
    fn of(object: &Object, expected: &Self) -> Self {
        let applied = expected.applied.iter().filter_map(|(manager, subresource, _)| {
            let fields = object.applied(manager, *subresource)?;
            Some((manager.clone(), *subresource, Tree::parse(fields.as_bytes()).expect("fieldsV1 is JSON")))
        });
        Self {
            of: object.type_meta().clone(),
            key: object.key().clone(),
            uid: object.uid().to_string(),
            resource_version: object.resource_version(),
            generation: object.generation(),
            labels: object.labels().map(|(name, value)| (name.into_owned(), value.into_owned())).collect(),
            owners: object.owners().map(owned).collect(),
            deleting: object.is_deleting(),
            applied: applied.collect(),
        }
    }
}

/// A member that is not there, or null, or of the type that is asked for; else the outer `None`.
fn optional<'a, T>(of: &'a Tree, name: &str, read: impl Fn(&'a Tree) -> Option<T>) -> Option<Option<T>> {
    match of.get(name) {
        None | Some(Tree::Null) => Some(None),
        Some(value) => read(value).map(Some),
    }
}

/// A string with something in it.
fn word<'a>(of: &'a Tree, name: &str) -> Option<&'a str> {
    of.get(name)?.as_str().filter(|text| !text.is_empty())
}

/// A non-empty string, or `default` if the member is absent.
fn word_or<'a>(of: &'a Tree, name: &str, default: &'a str) -> Option<&'a str> {
    if of.get(name).is_some() { word(of, name) } else { Some(default) }
}

/// Returns what should be read of an object; `None` if it should be rejected.
fn expected(object: &Tree) -> Option<Read> {
    if !matches!(object, Tree::Object(_)) || object.repeats(&["apiVersion", "kind", "metadata"]) {
        return None;
    }
    let metadata = object.get("metadata").filter(|metadata| matches!(metadata, Tree::Object(_)))?;
    let read = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "labels",
        "ownerReferences",
        "deletionTimestamp",
        "managedFields",
    ];
    if metadata.repeats(&read) {
        return None;
    }
    let version = word(metadata, "resourceVersion")?;
    let number: u64 = version.parse().ok()?;
    Some(Read {
        of: TypeMeta::new(word_or(object, "apiVersion", API_VERSION)?, word_or(object, "kind", KIND)?),
        key: Key::new(optional(metadata, "namespace", Tree::as_str)?, word(metadata, "name")?),
        uid: word(metadata, "uid")?.to_owned(),
        // Without leading zeros or a sign.
        resource_version: (number.to_string() == version).then_some(ResourceVersion(number))?,
        generation: optional(metadata, "generation", |value| integer(value.as_number()?))?
            .filter(|number| *number != 0),
        labels: optional(metadata, "labels", labels)?.unwrap_or_default(),
        owners: optional(metadata, "ownerReferences", |list| each(list, owner))?.unwrap_or_default(),
        deleting: optional(metadata, "deletionTimestamp", Tree::as_str)?.is_some(),
        applied: optional(metadata, "managedFields", applied)?.unwrap_or_default(),
    })
}

/// `serde_json` takes `-0` for a float: see [`is_minus_zero`].
fn integer(number: &serde_json::Number) -> Option<i64> {
    if is_negative_zero(number) { Some(0) } else { number.as_i64() }
}

fn is_negative_zero(number: &serde_json::Number) -> bool {
    number.is_f64() && number.as_f64().is_some_and(|number| number == 0.0 && number.is_sign_negative())
}

/// True if the generation is `-0`, an integer, or `-0.0`, which is none: once read, they look the same.
fn is_minus_zero(tree: &serde_json::Result<Tree>) -> bool {
    let generation = tree.as_ref().ok().and_then(|tree| tree.get("metadata")?.get("generation")?.as_number());
    generation.is_some_and(is_negative_zero)
}

fn labels(labels: &Tree) -> Option<Vec<(String, String)>> {
    let Tree::Object(members) = labels else { return None };
    let names: BTreeSet<_> = members.iter().map(|(name, _)| name).collect();
    let texts = members.iter().map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
    texts.collect::<Option<_>>().filter(|_| names.len() == members.len())
}

fn each<T>(list: &Tree, read: impl Fn(&Tree) -> Option<T>) -> Option<Vec<T>> {
    let Tree::Array(elements) = list else { return None };
    elements.iter().map(read).collect()
}

fn owner(owner: &Tree) -> Option<OwnerRef<'static>> {
    if owner.repeats(&["apiVersion", "kind", "name", "uid", "controller"]) {
        return None;
    }
    let bool = |value: &Tree| if let Tree::Bool(bool) = value { Some(*bool) } else { None };
    Some(OwnerRef {
        api_version: word(owner, "apiVersion")?.to_owned().into(),
        kind: word(owner, "kind")?.to_owned().into(),
        name: word(owner, "name")?.to_owned().into(),
        uid: Uid::parse(word(owner, "uid")?),
        controller: optional(owner, "controller", bool)?.unwrap_or(false),
    })
}

fn owned(owner: OwnerRef<'_>) -> OwnerRef<'static> {
    let [api_version, kind, name] = [owner.api_version, owner.kind, owner.name].map(|word| word.into_owned().into());
    OwnerRef { api_version, kind, name, ..owner }
}

/// What the managers of this host applied: the first entry of each manager and subresource.
fn applied(list: &Tree) -> Option<Vec<(String, Option<Subresource>, Tree)>> {
    let entries = each(list, |entry| {
        let whole = matches!(entry, Tree::Object(_));
        if !whole || entry.repeats(&["manager", "operation", "subresource", "fieldsV1"]) {
            return None;
        }
        let manager = optional(entry, "manager", Tree::as_str)?;
        let operation = optional(entry, "operation", Tree::as_str)?;
        let subresource = match optional(entry, "subresource", Tree::as_str)? {
            None | Some("") => Some(None),
            Some(name) => Subresource::of_name(name).map(Some),
        };
        let ours = manager.filter(|manager| manager.starts_with("pilothouse.") && operation == Some("Apply"));
        Some(ours.and_then(|manager| Some((manager.to_owned(), subresource?, entry.get("fieldsV1")?.clone()))))
    });
    let mut first: Vec<(String, Option<Subresource>, Tree)> = Vec::new();
    for entry in entries?.into_iter().flatten() {
        if !first.iter().any(|(manager, subresource, _)| *manager == entry.0 && *subresource == entry.1) {
            first.push(entry);
        }
    }
    Some(first)
}

/// The object as the store should hold it.
fn stored(object: &Tree) -> Tree {
    let absent =
        |name: &str, value: &str| object.get(name).is_none().then(|| (name.to_owned(), Tree::String(value.to_owned())));
    let own = object.members().iter().map(|(name, value)| {
        let is_metadata = name == "metadata";
        let kept = value.members().iter().filter(|(name, _)| name != "managedFields").cloned();
        (name.clone(), if is_metadata { Tree::Object(kept.collect()) } else { value.clone() })
    });
    Tree::Object(absent("apiVersion", API_VERSION).into_iter().chain(absent("kind", KIND)).chain(own).collect())
}

/// Besides what was inserted at its beginning, the text is what came in, with at most one piece missing.
fn is_cut_once(bytes: &[u8], object: &Object, tree: &Tree) {
    let inserted: usize = [("apiVersion", API_VERSION), ("kind", KIND)]
        .iter()
        .filter(|(name, _)| tree.get(name).is_none())
        .map(|(name, value)| format!("\"{name}\":{},", serde_json::Value::from(*value)).len())
        .sum();
    let text = object.json();
    let (came, kept) = (&bytes.trim_ascii()[1..], &text.as_bytes()[1 + inserted..]);
    let before = came.iter().zip(kept).take_while(|(a, b)| a == b).count();
    let after = came.iter().rev().zip(kept.iter().rev()).take_while(|(a, b)| a == b).count();
    assert!(before + after >= kept.len(), "more than one piece is missing: {}", object.json());
    let cut = tree.get("metadata").and_then(|metadata| metadata.get("managedFields")).is_some();
    assert_eq!(came.len() > kept.len(), cut, "a piece is missing just where there are managedFields");
}

/// What the store holds is read as the same object, but for what the host's managers applied.
fn reads_itself(object: &Object, default: &TypeMeta) {
    let again = Object::parse(object.json().as_bytes(), default).expect("the text that is kept is an object");
    assert_eq!(again.json(), object.json());
    let same = (object.type_meta(), object.key(), object.uid(), object.resource_version(), object.generation());
    assert_eq!((again.type_meta(), again.key(), again.uid(), again.resource_version(), again.generation()), same);
    assert_eq!(again.is_deleting(), object.is_deleting());
    assert!(again.owners().eq(object.owners()));
    assert!(again.labels().eq(object.labels()));
    assert!(object.bytes() >= again.bytes(), "what is kept beside the text is counted");
}
