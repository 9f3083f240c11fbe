//! Which parts of an informer's objects are kept. The rest is cut out before they are stored.

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use super::{Object, text::Places};
use crate::{
    field::{FieldPath, FieldSet},
    json::{ParseError, Reader},
    key::TypeMeta,
};

/// Largest number of fields that may be left out. Each is searched for in every object.
const MAX_FIELDS: usize = 64;

/// Members that identify an object, or that the store, the routes and garbage collection depend on.
const IDENTITY: [&str; 11] = [
    "apiVersion",
    "kind",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.resourceVersion",
    "metadata.labels",
    "metadata.ownerReferences",
    "metadata.finalizers",
    "metadata.deletionTimestamp",
    "metadata.generation",
];

/// Which parts of objects are kept.
///
/// ```
/// use pilothouse_core::{field::FieldPath, key::TypeMeta, object::{Keep, Object}};
///
/// let json = br#"{"metadata":{"name":"a","uid":"1","resourceVersion":"7"},"spec":{"unit":"m"},"status":{"images":[]}}"#;
/// let keep = Keep::new(false, [FieldPath::parse("status.images")?])?;
/// assert_eq!(
///     Object::parse_kept(json, &TypeMeta::new("v1", "Node"), &keep)?.json(),
///     r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a","uid":"1","resourceVersion":"7"},"spec":{"unit":"m"},"status":{}}"#,
/// );
/// assert!(Keep::new(false, [FieldPath::parse("metadata.labels.app")?]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Keep {
    metadata_only: bool,
    /// Sorted, none within another. `None` rather than an empty set.
    without: Option<Arc<FieldSet>>,
}

/// A field that cannot be left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeepError {
    /// Without it, the host could not distinguish or select objects, or follow their owners.
    #[error(
        "cannot leave out {path}: {member} identifies the object or decides its fate, and is always kept; name the fields beside it"
    )]
    Identity {
        /// The field to leave out.
        path: FieldPath,
        /// The identifying member that it contains, or that contains it.
        member: &'static str,
    },
    /// There are more than 64 fields.
    #[error("cannot leave out {0} fields: at most {MAX_FIELDS} are allowed; name a field that contains several")]
    TooMany(usize),
}

impl Keep {
    /// `metadata_only` keeps only apiVersion, kind and metadata. `without` lists fields to leave out, with everything
    /// in them.
    ///
    /// `metadata.managedFields` is never kept; naming it is allowed.
    ///
    /// # Errors
    /// Fails if there are more than 64 fields. Fails if a field is, contains or lies in a member that identifies an
    /// object: apiVersion, kind, and in metadata name, namespace, uid, resourceVersion, labels, ownerReferences,
    /// finalizers, deletionTimestamp, generation.
    pub fn new(metadata_only: bool, without: impl IntoIterator<Item = FieldPath>) -> Result<Self, KeepError> {
        let without: Vec<FieldPath> = without.into_iter().collect();
        if without.len() > MAX_FIELDS {
            return Err(KeepError::TooMany(without.len()));
        }
        for path in &without {
            let touches = |member: &&&str| {
                let member = named(member);
                path.covers(&member) || member.covers(path)
            };
            if let Some(member) = IDENTITY.iter().find(touches) {
                return Err(KeepError::Identity { path: path.clone(), member });
            }
        }
        Ok(Self::of(metadata_only, without))
    }

    fn of(metadata_only: bool, mut without: Vec<FieldPath>) -> Self {
        let metadata = named("metadata");
        let gone = named("metadata.managedFields");
        without.retain(|path| !gone.covers(path) && (!metadata_only || metadata.covers(path)));
        without.sort_unstable();
        // Fields within a field sort right after it.
        without.dedup_by(|path, field| field.covers(path));
        Self { metadata_only, without: (!without.is_empty()).then(|| Arc::new(FieldSet::new(without))) }
    }

    /// Returns `true` if only apiVersion, kind and metadata are kept, so that the API server need not send more.
    pub fn metadata_only(&self) -> bool {
        self.metadata_only
    }

    /// Returns the fields that are left out, sorted, without those that are never kept.
    pub fn without(&self) -> &[FieldPath] {
        self.without.as_ref().map_or(&[], |without| without.paths())
    }

    /// Returns `true` if whole objects are kept, apart from `metadata.managedFields`.
    pub fn is_whole(&self) -> bool {
        !self.metadata_only && self.without.is_none()
    }

    /// Returns `true` if this keeps everything that `other` keeps.
    pub fn covers(&self, other: &Self) -> bool {
        (other.metadata_only || !self.metadata_only) && self.without().iter().all(|path| other.drops(path))
    }

    /// Leaves out only what both leave out, and so serves both.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let of_both = |one: &Self, other: &Self| -> Vec<FieldPath> {
            one.without().iter().filter(|path| other.drops(path)).cloned().collect()
        };
        let mut without = of_both(self, other);
        without.append(&mut of_both(other, self));
        Self::of(self.metadata_only && other.metadata_only, without)
    }

    /// Returns the first part of the member `name` with value `value` that is not kept, and so cannot be compared. This
    /// is `name` itself, or the first member of the value that is not kept whole. Returns `None` if all of it can be
    /// compared.
    ///
    /// ```
    /// use pilothouse_core::{field::FieldPath, object::Keep};
    /// use serde_json::json;
    ///
    /// let keep = Keep::new(false, ["spec", "status.images"].map(|path| FieldPath::parse(path).expect("a path")))?;
    /// let missing = |status: serde_json::Value| keep.missing("status", status.as_object()?).map(|path| path.to_string());
    /// assert_eq!(missing(json!({ "phase": "Ready" })), None);
    /// assert_eq!(missing(json!({ "phase": "Ready", "images": [] })), Some("status.images".to_owned()));
    /// # Ok::<(), pilothouse_core::object::KeepError>(())
    /// ```
    pub fn missing(&self, name: &str, value: &serde_json::Map<String, serde_json::Value>) -> Option<FieldPath> {
        if self.is_whole() {
            return None;
        }
        let within = named(name);
        if self.drops(&within) {
            return Some(within);
        }
        let cut = |path: &FieldPath| self.without().iter().any(|gone| gone.covers(path) || path.covers(gone));
        value.keys().map(|member| within.member(member)).find(cut)
    }

    /// Returns `true` if the value at `path` is kept, perhaps without fields inside it.
    pub fn keeps(&self, path: &FieldPath) -> bool {
        !self.drops(path)
    }

    fn drops(&self, path: &FieldPath) -> bool {
        let beside = || !["metadata", "apiVersion", "kind"].iter().any(|kept| named(kept).covers(path));
        self.metadata_only && beside() || self.without().iter().any(|field| field.covers(path))
    }

    /// Cuts an object of kind `of` down to what is kept. Returns `None` if nothing is to be cut.
    fn cut(&self, json: &str, of: &TypeMeta) -> Result<Option<String>, ParseError> {
        let metadata = if self.metadata_only { Some(metadata_alone(json, of)?) } else { None };
        let Some(without) = &self.without else { return Ok(metadata) };
        Ok(match without.cut(metadata.as_deref().unwrap_or(json))? {
            Cow::Owned(cut) => Some(cut),
            Cow::Borrowed(_) => metadata,
        })
    }
}

impl Object {
    /// Parses an object and cuts it down to what `keep` keeps.
    ///
    /// With [`Keep::metadata_only`], a `PartialObjectMetadata` becomes an object of kind `default`. A whole object,
    /// from a server that does not support these, loses the rest.
    ///
    /// # Errors
    /// Fails as [`parse`](Self::parse) does.
    pub fn parse_kept(json: &[u8], default: &TypeMeta, keep: &Keep) -> Result<Self, ParseError> {
        let mut object = Self::parse(json, default)?;
        if keep.is_whole() {
            return Ok(object);
        }
        if keep.metadata_only && &*object.of.kind == "PartialObjectMetadata" && is_meta(&object.of.api_version) {
            object.of = default.clone();
        }
        object.keep(keep)
    }

    /// Returns the same object with only what `keep` keeps: for the whole object in an answer to a write, or for a
    /// reader that is allowed less than the store holds.
    #[must_use]
    pub fn kept(&self, keep: &Keep) -> Self {
        self.keep(keep).expect("the text of an object is JSON, and gets shorter")
    }

    fn keep(&self, keep: &Keep) -> Result<Self, ParseError> {
        let Some(json) = keep.cut(&self.json(), &self.of)? else { return Ok(self.clone()) };
        let places = places_in(&json)?;
        let end = json.len();
        let mut kept = self.with_text(super::text_of(json, &places, end)?);
        if keep.metadata_only {
            // The diff would have nothing to compare it with.
            kept.applied = None;
        }
        Ok(kept)
    }
}

fn is_meta(api_version: &str) -> bool {
    matches!(api_version, "meta.k8s.io/v1" | "meta.k8s.io/v1beta1")
}

/// Parses one of this file's own paths.
fn named(path: &str) -> FieldPath {
    FieldPath::parse(path).expect("it is a list of plain names")
}

/// Returns `json` with only its type and metadata.
fn metadata_alone(json: &str, of: &TypeMeta) -> Result<String, ParseError> {
    let mut head = String::from("{");
    super::push_member(&mut head, "apiVersion", &of.api_version);
    super::push_member(&mut head, "kind", &of.kind);
    head.push_str("\"metadata\":");
    let mut reader = Reader::new(json);
    reader.enter_object("text")?;
    while let Some(name) = reader.member()? {
        let value = reader.skip()?;
        if name.decode() == "metadata" {
            head.push_str(value);
        }
    }
    head.push('}');
    Ok(head)
}

/// Finds labels, if they are an object, and owner references, if they are an array.
fn places_in(json: &str) -> Result<Places, ParseError> {
    let mut places = Places::default();
    let mut reader = Reader::new(json);
    reader.enter_object("text")?;
    while let Some(name) = reader.member()? {
        if name.decode() != "metadata" {
            reader.skip()?;
            continue;
        }
        reader.enter_object("metadata")?;
        while let Some(name) = reader.member()? {
            let at = reader.at();
            let value = reader.skip()?;
            let place = at..at + value.len();
            match &*name.decode() {
                "labels" if value.starts_with('{') => places.labels = place,
                "ownerReferences" if value.starts_with('[') => places.owners = place,
                _ => {}
            }
        }
    }
    Ok(places)
}

/// Prints for example `metadata only, without metadata.annotations`, and nothing for whole objects.
impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.metadata_only {
            f.write_str("metadata only")?;
        }
        let Some((first, others)) = self.without().split_first() else { return Ok(()) };
        write!(f, "{}without {first}", if self.metadata_only { ", " } else { "" })?;
        others.iter().try_for_each(|path| write!(f, ", {path}"))
    }
}

impl PartialEq for Keep {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Keep {}

impl PartialOrd for Keep {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Keep {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.metadata_only, self.without()).cmp(&(other.metadata_only, other.without()))
    }
}

impl Hash for Keep {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.metadata_only, self.without()).hash(state);
    }
}

#[cfg(test)]
mod tests;
