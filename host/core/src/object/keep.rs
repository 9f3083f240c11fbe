//! What is kept of the objects of an informer, and what is cut out of them before they are held.

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

/// How many fields may be left out. Each is looked for in each object.
const MOST: usize = 64;

/// What identifies an object, and what store, routes and garbage collection go by: the members of `metadata`, and two beside it.
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

/// What is kept of objects: all of them, or less.
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
    /// In order, and none within another; none rather than no path at all.
    without: Option<Arc<FieldSet>>,
}

/// Something that cannot be left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeepError {
    /// The host could not tell objects apart, select them or follow their owners.
    #[error(
        "cannot leave out {path}: {member} says which object it is and what becomes of it, and is always kept; name what is beside it"
    )]
    Identity {
        /// What was to be left out.
        path: FieldPath,
        /// What is in it, or what it is in.
        member: &'static str,
    },
    /// So many walks cannot be guided at once.
    #[error("cannot leave out {0} fields: {MOST} at most; name what they are in")]
    TooMany(usize),
}

impl Keep {
    /// `metadata_only`: nothing but apiVersion, kind and metadata. `without`: fields that are left out, with all that is in them.
    ///
    /// `metadata.managedFields` is never kept, and may be named.
    ///
    /// # Errors
    /// When a field is, is in or has in it what identifies an object (apiVersion, kind, and of metadata: name, namespace, uid,
    /// resourceVersion, labels, ownerReferences, finalizers, deletionTimestamp, generation), or when there are more than 64.
    pub fn new(metadata_only: bool, without: impl IntoIterator<Item = FieldPath>) -> Result<Self, KeepError> {
        let without: Vec<FieldPath> = without.into_iter().collect();
        if without.len() > MOST {
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
        // Whatever is in a field comes right after it.
        without.dedup_by(|path, field| field.covers(path));
        Self { metadata_only, without: (!without.is_empty()).then(|| Arc::new(FieldSet::new(without))) }
    }

    /// Nothing but apiVersion, kind and metadata: the API server need not send more.
    pub fn metadata_only(&self) -> bool {
        self.metadata_only
    }

    /// What is left out, in order; nothing that is left out anyway.
    pub fn without(&self) -> &[FieldPath] {
        self.without.as_ref().map_or(&[], |without| without.paths())
    }

    /// Whole objects, but for `metadata.managedFields`.
    pub fn is_whole(&self) -> bool {
        !self.metadata_only && self.without.is_none()
    }

    /// True if objects that are kept so have all that `other` keeps.
    pub fn covers(&self, other: &Self) -> bool {
        (other.metadata_only || !self.metadata_only) && self.without().iter().all(|path| other.drops(path))
    }

    /// What serves both: nothing is left out but what both leave out.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let of_both = |one: &Self, other: &Self| -> Vec<FieldPath> {
            one.without().iter().filter(|path| other.drops(path)).cloned().collect()
        };
        let mut without = of_both(self, other);
        without.append(&mut of_both(other, self));
        Self::of(self.metadata_only && other.metadata_only, without)
    }

    /// What cannot be compared with a kept object, of `value` as a member of it: the top-level member `name` where that is not kept,
    /// or the first member of the value that is not kept whole. None: all that `value` names can be.
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

    /// True if what stands at `path` is kept, but for what is left out within it.
    pub fn keeps(&self, path: &FieldPath) -> bool {
        !self.drops(path)
    }

    fn drops(&self, path: &FieldPath) -> bool {
        let beside = || !["metadata", "apiVersion", "kind"].iter().any(|kept| named(kept).covers(path));
        self.metadata_only && beside() || self.without().iter().any(|field| field.covers(path))
    }

    /// The text with nothing but what is kept, of an object of kind `of`; none if that is all of it.
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
    /// [`parse`](Self::parse), of which `keep` is kept.
    ///
    /// With [`Keep::metadata_only`] a `PartialObjectMetadata`, as the API server sends it when asked, becomes an object of the
    /// kind `default`, and a whole object, as a server sends it that does not know of these, loses the rest.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
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

    /// The same object with nothing but what `keep` says: for an answer to a write, which is whole, or for a reader who is to see less
    /// than what is held.
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
            // For the diff, which has nothing to compare.
            kept.applied = None;
        }
        Ok(kept)
    }
}

fn is_meta(api_version: &str) -> bool {
    matches!(api_version, "meta.k8s.io/v1" | "meta.k8s.io/v1beta1")
}

/// One of our own paths.
fn named(path: &str) -> FieldPath {
    FieldPath::parse(path).expect("it is a list of plain names")
}

/// `json` with nothing but its type and metadata.
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

/// Where labels stand, if they are an object, and owner references, if they are an array.
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

/// `metadata only, without metadata.annotations`; of whole objects nothing.
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
