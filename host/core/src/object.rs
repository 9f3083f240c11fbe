//! One Kubernetes object: its JSON text, and what the host itself reads of it.
//!
//! An [`Object`] is parsed and checked in one walk over its bytes, and never changes. It keeps the text for plugins and
//! the diff, and beside it what the store, the routes and the queues need often. The host does not interpret the rest
//! of the text (spec, status, annotations).
//!
//! ```
//! use pilothouse_core::{key::TypeMeta, object::Object};
//!
//! let item = br#"{"metadata":{"name":"a","namespace":"b","uid":"1","resourceVersion":"7","managedFields":[]},"data":{}}"#;
//! let object = Object::parse(item, &TypeMeta::new("v1", "ConfigMap"))?;
//! assert_eq!(
//!     object.json(),
//!     r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"b","uid":"1","resourceVersion":"7"},"data":{}}"#,
//! );
//! assert_eq!(object.key().to_string(), "b/a");
//! # Ok::<(), pilothouse_core::ParseError>(())
//! ```

use std::{borrow::Cow, fmt, iter, num::NonZeroI64, ops::Range, sync::Arc};

use crate::{
    dictionary::Dictionary,
    json::{self, ParseError, Reader},
    key::{Key, TypeMeta},
};

mod keep;
mod outline;
mod scan;
mod settled;
mod text;

pub use keep::{Keep, KeepError};
pub use outline::{UNREADABLE, Unreadable};
use settled::Note;
use text::{Places, Text};

/// A point in the history of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceVersion(pub u64);

impl ResourceVersion {
    /// Accepts digits only. Since Kubernetes 1.35 a resourceVersion is guaranteed to be a growing decimal number.
    pub fn parse(text: &str) -> Option<Self> {
        if !text.bytes().all(|b| b.is_ascii_digit()) || (text.len() > 1 && text.starts_with('0')) {
            return None;
        }
        text.parse().ok().map(Self)
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `metadata.uid`: identifies one life of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Uid {
    /// A UUID in its usual form (lower case, 8-4-4-4-12), as kube-apiserver assigns.
    Uuid([u8; 16]),
    /// Any other text.
    Other(Box<str>),
}

impl Uid {
    /// Parses any text; [`Display`](fmt::Display) returns the same text.
    pub fn parse(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut digits = [0; 16];
        let mut count = 0;
        for (i, byte) in bytes.iter().enumerate() {
            let digit = match byte {
                b'-' if matches!(i, 8 | 13 | 18 | 23) => continue,
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                _ => return Self::Other(text.into()),
            };
            if matches!(i, 8 | 13 | 18 | 23) || i >= 36 {
                return Self::Other(text.into());
            }
            digits[count / 2] = digits[count / 2] << 4 | digit;
            count += 1;
        }
        if count == 32 { Self::Uuid(digits) } else { Self::Other(text.into()) }
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(digits) => {
                for (i, byte) in digits.iter().enumerate() {
                    if matches!(i, 4 | 6 | 8 | 10) {
                        f.write_str("-")?;
                    }
                    write!(f, "{byte:02x}")?;
                }
                Ok(())
            }
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// A part of an object that the API server reads and writes separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subresource {
    /// `status`.
    Status,
    /// `scale`.
    Scale,
    /// `eviction`, of Pods.
    Eviction,
    /// `log`, of Pods.
    Log,
    /// `approval`, of CertificateSigningRequests.
    Approval,
    /// `ephemeralcontainers`, of Pods.
    EphemeralContainers,
    /// `resize`, of Pods.
    Resize,
}

impl Subresource {
    /// Every subresource.
    pub const ALL: [Self; 7] =
        [Self::Status, Self::Scale, Self::Eviction, Self::Log, Self::Approval, Self::EphemeralContainers, Self::Resize];

    /// Returns its name in paths and in managedFields.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Eviction => "eviction",
            Self::Log => "log",
            Self::Approval => "approval",
            Self::EphemeralContainers => "ephemeralcontainers",
            Self::Resize => "resize",
        }
    }

    /// Returns the subresource of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subresource| subresource.as_str() == name)
    }
}

impl fmt::Display for Subresource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One of `metadata.ownerReferences`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerRef<'a> {
    /// `apps/v1`.
    pub api_version: Cow<'a, str>,
    /// `ReplicaSet`.
    pub kind: Cow<'a, str>,
    /// The owner's name. Its namespace is the child's; a cluster-scoped owner has none.
    pub name: Cow<'a, str>,
    /// The owner's uid.
    pub uid: Uid,
    /// `true` for the one owner that controls the object.
    pub controller: bool,
}

/// Prefix of this host's field managers, whose Apply entries of managedFields are kept.
const MANAGER_PREFIX: &str = "pilothouse.";

/// What one of the host's field managers last applied.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Applied {
    manager: Box<str>,
    subresource: Option<Subresource>,
    fields: Box<str>,
}

/// What the host's field managers applied to one object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Appliers {
    first: Applied,
    /// Almost always empty.
    others: Box<[Applied]>,
    note: Note,
}

impl Appliers {
    fn all(&self) -> impl Iterator<Item = &Applied> {
        iter::once(&self.first).chain(&self.others)
    }

    fn bytes(&self) -> usize {
        let texts = self.all().map(|applied| applied.manager.len() + applied.fields.len()).sum::<usize>();
        // Without what the note has on the heap: it may grow when the store has counted the object already.
        size_of::<Self>() + size_of_val(&*self.others) + texts
    }
}

/// An object as the API server sent it. Never changes, except for a [note](Self::settle) that is not part of it.
///
/// There is one for every watched object of the cluster, so its fields are packed tightly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    text: Text,
    of: TypeMeta,
    key: Key,
    uid: Uid,
    resource_version: ResourceVersion,
    generation: Option<NonZeroI64>,
    /// `None` for most objects.
    applied: Option<Box<Appliers>>,
    deleting: bool,
    /// Set if the text is an [outline](Object::outline).
    unreadable: Option<Unreadable>,
}

impl Object {
    /// Parses an object as it comes off the network.
    ///
    /// Inserts the apiVersion and kind of `default` if the text has none, as in lists of built-in kinds. Cuts out
    /// `metadata.managedFields`; the Apply entries of managers whose names begin with `pilothouse.` stay available
    /// through [`applied`](Self::applied). Every other byte stays.
    ///
    /// # Guarantees
    /// The whole text is valid UTF-8, and valid JSON that `serde_json` reads into a `Value`. Every byte is checked
    /// once, here, so a broken server cannot reach plugins or the diff.
    ///
    /// # Errors
    /// Fails if the bytes are not such JSON, if `metadata` lacks name, uid or a decimal resourceVersion, or if a member
    /// that is read here has another type or appears twice.
    pub fn parse(json: &[u8], default: &TypeMeta) -> Result<Self, ParseError> {
        let text = json::utf8(json)?;
        let scan = scan::scan(text)?;
        if scan.metadata_end == 0 {
            return Err(ParseError::new(scan.object.end - 1, "metadata is missing"));
        }
        let missing = |what: &str| ParseError::new(scan.metadata_end - 1, format!("metadata.{what} is missing"));
        if scan.name.is_none() {
            return Err(missing("name"));
        }
        if scan.uid.is_none() {
            return Err(missing("uid"));
        }
        let version = scan.resource_version.as_deref().ok_or_else(|| missing("resourceVersion"))?;
        let resource_version = ResourceVersion::parse(version).ok_or_else(|| {
            let what = format!("metadata.resourceVersion {:?} is not a decimal number", json::excerpt(version));
            ParseError::new(scan.resource_version_at, what)
        })?;
        Self::scanned(text, scan, resource_version, default)
    }

    /// Parses an answer about something that the server does not store: a review, or an object of an aggregated API
    /// that has no uid or version. A missing name or uid is empty, a missing version 0.
    ///
    /// # Errors
    /// Fails as [`parse`](Self::parse) does, except for missing members.
    pub fn parse_unstored(json: &[u8], default: &TypeMeta) -> Result<Self, ParseError> {
        let text = json::utf8(json)?;
        let scan = scan::scan(text)?;
        let resource_version = scan.resource_version.as_deref().and_then(ResourceVersion::parse).unwrap_or_default();
        Self::scanned(text, scan, resource_version, default)
    }

    fn scanned(
        text: &str,
        scan: scan::Scan<'_>,
        resource_version: ResourceVersion,
        default: &TypeMeta,
    ) -> Result<Self, ParseError> {
        let [name, uid] = [&scan.name, &scan.uid].map(|text| text.as_deref().unwrap_or_default());
        let of = of_text(scan.api_version.as_deref(), scan.kind.as_deref(), default);
        let mut head = String::new();
        if scan.api_version.is_none() {
            push_member(&mut head, "apiVersion", &of.api_version);
        }
        if scan.kind.is_none() {
            push_member(&mut head, "kind", &of.kind);
        }
        let mut canonical = String::with_capacity(head.len() + scan.object.len() - scan.cut.len());
        let inside = scan.object.start + 1;
        canonical.push('{');
        canonical.push_str(&head);
        canonical.push_str(&text[inside..scan.cut.start.max(inside)]);
        canonical.push_str(&text[scan.cut.end.max(inside)..scan.object.end]);

        let moved = |place: &Range<usize>| {
            if place.is_empty() {
                return Range::default();
            }
            let cut = if place.start < scan.cut.start { 0 } else { scan.cut.len() };
            let at = |at: usize| at - cut - scan.object.start + head.len();
            at(place.start)..at(place.end)
        };
        let places = Places { labels: moved(&scan.places.labels), owners: moved(&scan.places.owners) };
        Ok(Self {
            text: text_of(canonical, &places, scan.object.end)?,
            key: Key::new(scan.namespace.as_deref(), name),
            uid: Uid::parse(uid),
            resource_version,
            generation: scan.generation.and_then(NonZeroI64::new),
            applied: appliers(scan.applied),
            deleting: scan.deleting,
            unreadable: None,
            of,
        })
    }

    /// Returns the whole text: with apiVersion and kind, without managedFields. For a packed object this unpacks it,
    /// which takes some microseconds: call it once, and not under a lock.
    pub fn json(&self) -> Cow<'_, str> {
        self.text.json()
    }

    /// Returns the length of [`json`](Self::json) in bytes, without unpacking it.
    pub fn json_len(&self) -> usize {
        self.text.json_len()
    }

    /// Returns the same object with its text packed. Labels, owners and all other fields stay directly readable.
    /// Returns `None` if it would not be smaller, or is packed already.
    pub fn pack(&self, dictionary: &Arc<Dictionary>) -> Option<Self> {
        Some(self.with_text(self.text.pack(dictionary)?))
    }

    fn with_text(&self, text: Text) -> Self {
        Self {
            text,
            of: self.of.clone(),
            key: self.key.clone(),
            uid: self.uid.clone(),
            resource_version: self.resource_version,
            generation: self.generation,
            applied: self.applied.clone(),
            deleting: self.deleting,
            unreadable: self.unreadable,
        }
    }

    /// Returns the dictionary of a packed object.
    pub fn dictionary(&self) -> Option<&Arc<Dictionary>> {
        self.text.dictionary()
    }

    /// Returns the object's own apiVersion and kind.
    pub fn type_meta(&self) -> &TypeMeta {
        &self.of
    }

    /// Returns namespace and name.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns `metadata.uid`.
    pub fn uid(&self) -> &Uid {
        &self.uid
    }

    /// Returns `metadata.resourceVersion`.
    pub fn resource_version(&self) -> ResourceVersion {
        self.resource_version
    }

    /// Returns `metadata.generation`. Kinds without a spec have none. 0 counts as none: Kubernetes does not write it.
    pub fn generation(&self) -> Option<i64> {
        self.generation.map(NonZeroI64::get)
    }

    /// Returns `true` if `metadata.deletionTimestamp` is set.
    pub fn is_deleting(&self) -> bool {
        self.deleting
    }

    /// Reads `metadata.labels` from the text; each key appears once.
    pub fn labels(&self) -> Labels<'_> {
        let mut reader = Reader::new(self.labels_json());
        let entered = reader.enter_object("labels").is_ok();
        Labels { reader: entered.then_some(reader) }
    }

    /// Reads `metadata.labels` from the text, for several look-ups.
    pub fn sorted_labels(&self) -> SortedLabels<'_> {
        let mut labels: Vec<_> = self.labels().collect();
        labels.sort_unstable();
        SortedLabels(labels)
    }

    /// Returns the text of `metadata.labels`; empty if there is none.
    pub(crate) fn labels_json(&self) -> &str {
        self.text.labels()
    }

    /// Reads `metadata.ownerReferences` from the text.
    pub fn owners(&self) -> Owners<'_> {
        let mut reader = Reader::new(self.owners_json());
        let entered = reader.enter_array("owners").is_ok();
        Owners { reader: entered.then_some(reader) }
    }

    /// Returns the text of `metadata.ownerReferences`; empty if there is none.
    pub(crate) fn owners_json(&self) -> &str {
        self.text.owners()
    }

    /// Returns the owner that controls this object.
    pub fn controller(&self) -> Option<OwnerRef<'_>> {
        self.owners().find(|owner| owner.controller)
    }

    /// Returns `true` if `metadata.finalizers` has this one. For a packed object this unpacks it.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers().iter().any(|other| other == finalizer)
    }

    /// Reads `metadata.finalizers` from the text, in their order. For a packed object this unpacks it.
    pub fn finalizers(&self) -> Vec<String> {
        serde_json::from_str(metadata(&self.json(), "finalizers")).unwrap_or_default()
    }

    /// Returns what `manager`, one of this host's, last applied: fieldsV1 JSON without white space.
    pub fn applied(&self, manager: &str, subresource: Option<Subresource>) -> Option<&str> {
        let mut all = self.applied.iter().flat_map(|appliers| appliers.all());
        let entry = all.find(|a| &*a.manager == manager && a.subresource == subresource);
        entry.map(|entry| &*entry.fields)
    }

    /// Returns the managers of this host (`pilothouse.…`) that have applied something, once for each part of the
    /// object.
    pub fn managers(&self) -> impl Iterator<Item = &str> {
        self.applied.iter().flat_map(|appliers| appliers.all()).map(|applied| &*applied.manager)
    }

    /// Returns the heap bytes of an `Arc` of this object, as requested from the allocator. Kind and namespace, which a
    /// whole store shares, do not count, nor does the dictionary of a packed object.
    pub fn bytes(&self) -> usize {
        let uid = |uid: &Uid| if let Uid::Other(text) = uid { text.len() } else { 0 };
        let name = ARC + self.key.name.len();
        let applied = self.applied.as_ref().map_or(0, |appliers| appliers.bytes());
        ARC + size_of::<Self>() + self.text.bytes() + name + uid(&self.uid) + applied
    }

    /// Shares equal parts of `older`, an earlier version of the same key, and takes over its notes.
    pub(crate) fn share_with(&mut self, older: &Self) {
        self.key = older.key.clone();
        self.of.share(&older.of);
        if let (Some(own), Some(older)) = (&self.applied, &older.applied) {
            own.inherit(older);
        }
    }

    /// Shares equal texts that a whole store holds once.
    pub(crate) fn share_words(&mut self, of: &TypeMeta, namespace: Option<&Arc<str>>) {
        self.of.share(of);
        if let (Some(own), Some(namespace)) = (&mut self.key.namespace, namespace)
            && own == namespace
        {
            own.clone_from(namespace);
        }
    }
}

/// `end`: the object's end in the text that was read, for the error.
fn text_of(json: String, places: &Places, end: usize) -> Result<Text, ParseError> {
    Text::new(json, places).map_err(|_| ParseError::new(end, "the object is longer than 4 GiB"))
}

fn appliers(all: Vec<Applied>) -> Option<Box<Appliers>> {
    let mut all = all.into_iter();
    all.next().map(|first| Box::new(Appliers { first, others: all.collect(), note: Note::default() }))
}

/// Bytes of the two counters in an `Arc`.
pub(crate) const ARC: usize = 2 * size_of::<usize>();

/// Returns `default` itself if the text has the same type or none.
fn of_text(api_version: Option<&str>, kind: Option<&str>, default: &TypeMeta) -> TypeMeta {
    let (api_version, kind) = (api_version.unwrap_or(&default.api_version), kind.unwrap_or(&default.kind));
    if *api_version == *default.api_version && *kind == *default.kind {
        default.clone()
    } else {
        TypeMeta::new(api_version, kind)
    }
}

fn push_member(head: &mut String, name: &str, value: &str) {
    let value = serde_json::Value::from(value);
    head.push_str(&format!("\"{name}\":{value},"));
}

/// Returns the text of one member of `metadata` of an object's text; empty if there is none.
pub(crate) fn metadata<'a>(json: &'a str, name: &str) -> &'a str {
    let mut reader = Reader::new(json);
    // The text was checked when the object was parsed, so this cannot fail.
    let mut find = || {
        reader.enter_object("text").ok()?;
        while let Some(member) = reader.member().ok()? {
            if member.decode() != "metadata" {
                reader.skip().ok()?;
                continue;
            }
            reader.enter_object("metadata").ok()?;
            while let Some(member) = reader.member().ok()? {
                let text = reader.skip().ok()?;
                if member.decode() == name {
                    return Some(text);
                }
            }
        }
        None
    };
    find().unwrap_or_default()
}

/// The labels of one object, in the order of the text.
#[derive(Clone, Debug)]
pub struct Labels<'a> {
    reader: Option<Reader<'a>>,
}

impl<'a> Iterator for Labels<'a> {
    type Item = (Cow<'a, str>, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        let reader = self.reader.as_mut()?;
        // The scan has checked this text, so reading it cannot fail.
        let name = reader.member().ok().flatten()?.decode();
        let value = reader.string().ok()?.decode();
        Some((name, value))
    }
}

/// The labels of one object, sorted by key.
#[derive(Clone, Debug)]
pub struct SortedLabels<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl SortedLabels<'_> {
    /// Returns the value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(one, _)| (**one).cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| &**value)
    }
}

/// The owner references of one object, in the order of the text.
#[derive(Clone, Debug)]
pub struct Owners<'a> {
    reader: Option<Reader<'a>>,
}

impl<'a> Iterator for Owners<'a> {
    type Item = OwnerRef<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let reader = self.reader.as_mut()?;
        // As for labels.
        if reader.element().ok()? { scan::owner(reader).ok() } else { None }
    }
}

#[cfg(test)]
mod tests;
