//! One Kubernetes object: its JSON text and what the host itself reads of it.

use std::{borrow::Cow, fmt, sync::Arc};

use crate::{
    ParseError,
    key::{Key, TypeMeta},
};

/// A point in the history of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceVersion(pub u64);

impl ResourceVersion {
    /// Digits only: since Kubernetes 1.35 a resourceVersion is promised to be a decimal number that grows.
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

/// `metadata.uid`: names one life of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Uid {
    /// A UUID in its usual writing (lower case, 8-4-4-4-12), as kube-apiserver gives out.
    Uuid([u8; 16]),
    /// Any other text.
    Other(Box<str>),
}

impl Uid {
    /// Keeps the text: [`Display`](fmt::Display) gives it back.
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
        if count == 32 {
            Self::Uuid(digits)
        } else {
            Self::Other(text.into())
        }
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
}

impl Subresource {
    /// As it stands in paths and in managedFields.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Scale => "scale",
        }
    }
}

impl fmt::Display for Subresource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One of `metadata.ownerReferences`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerRef {
    /// `apps/v1`.
    pub api_version: Arc<str>,
    /// `ReplicaSet`.
    pub kind: Arc<str>,
    /// The owner's name; its namespace is the child's, or none if it is cluster-scoped.
    pub name: Arc<str>,
    /// The owner's uid.
    pub uid: Uid,
    /// True for the one owner that controls the object.
    pub controller: bool,
}

/// What one of the host's field managers applied last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Applied {
    manager: Box<str>,
    subresource: Option<Subresource>,
    fields: Box<str>,
}

/// An object as the API server gave it. Never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    json: Box<str>,
    of: TypeMeta,
    key: Key,
    uid: Uid,
    resource_version: ResourceVersion,
    generation: Option<i64>,
    deleting: bool,
    labels: Box<[(Box<str>, Box<str>)]>,
    owners: Arc<[OwnerRef]>,
    applied: Box<[Applied]>,
}

impl Object {
    /// Reads an object off the network.
    ///
    /// # Errors
    /// When the bytes are no Kubernetes object.
    pub fn parse(json: &[u8], default: &TypeMeta) -> Result<Self, ParseError> {
        let mut value: serde_json::Value =
            serde_json::from_slice(json).map_err(|e| ParseError::new(0, e.to_string()))?;
        let root = value
            .as_object_mut()
            .ok_or_else(|| ParseError::new(0, "not an object"))?;
        let mut word = |name: &str, default: &str| {
            let word = root.entry(name).or_insert_with(|| default.into());
            word.as_str().unwrap_or_default().to_owned()
        };
        let of = TypeMeta::new(
            &word("apiVersion", &default.api_version),
            &word("kind", &default.kind),
        );
        let meta = root
            .get_mut("metadata")
            .and_then(|m| m.as_object_mut())
            .ok_or_else(|| ParseError::new(0, "metadata is missing"))?;
        let managed = meta.remove("managedFields").unwrap_or_default();
        let text = |v: &serde_json::Value, name: &str| {
            v.get(name)
                .and_then(|v| v.as_str())
                .unwrap_or_default()
                .to_owned()
        };
        let applied =
            managed.as_array().into_iter().flatten().filter(|e| {
                e["operation"] == "Apply" && text(e, "manager").starts_with("pilothouse.")
            });
        let applied = applied
            .map(|e| Applied {
                manager: text(e, "manager").into(),
                subresource: match e["subresource"].as_str() {
                    Some("status") => Some(Subresource::Status),
                    Some("scale") => Some(Subresource::Scale),
                    _ => None,
                },
                fields: e["fieldsV1"].to_string().into(),
            })
            .collect();
        let meta = serde_json::Value::Object(meta.clone());
        let owners = meta["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|o| OwnerRef {
                api_version: text(o, "apiVersion").into(),
                kind: text(o, "kind").into(),
                name: text(o, "name").into(),
                uid: Uid::parse(&text(o, "uid")),
                controller: o["controller"] == true,
            })
            .collect();
        let resource_version = ResourceVersion::parse(&text(&meta, "resourceVersion"))
            .ok_or_else(|| ParseError::new(0, "no resourceVersion"))?;
        Ok(Self {
            of,
            key: Key::new(meta["namespace"].as_str(), &text(&meta, "name")),
            uid: Uid::parse(&text(&meta, "uid")),
            resource_version,
            generation: meta["generation"].as_i64(),
            deleting: meta["deletionTimestamp"].is_string(),
            labels: meta["labels"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, v)| (k.as_str().into(), v.as_str().unwrap_or_default().into()))
                .collect(),
            owners,
            applied,
            json: value.to_string().into(),
        })
    }

    /// The whole text: with apiVersion and kind, without managedFields.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// The object's own apiVersion and kind.
    pub fn type_meta(&self) -> &TypeMeta {
        &self.of
    }

    /// Namespace and name.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &Uid {
        &self.uid
    }

    /// `metadata.resourceVersion`.
    pub fn resource_version(&self) -> ResourceVersion {
        self.resource_version
    }

    /// `metadata.generation`, which kinds without a spec do not have.
    pub fn generation(&self) -> Option<i64> {
        self.generation
    }

    /// True if `metadata.deletionTimestamp` is set.
    pub fn is_deleting(&self) -> bool {
        self.deleting
    }

    /// `metadata.labels`.
    pub fn labels(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        self.labels
            .iter()
            .map(|(k, v)| (Cow::Borrowed(&**k), Cow::Borrowed(&**v)))
    }

    /// `metadata.ownerReferences`.
    pub fn owners(&self) -> &[OwnerRef] {
        &self.owners
    }

    /// The owner that controls this object.
    pub fn controller(&self) -> Option<&OwnerRef> {
        self.owners.iter().find(|owner| owner.controller)
    }

    /// The fieldsV1 text of what `manager` applied last.
    pub fn applied(&self, manager: &str, subresource: Option<Subresource>) -> Option<&str> {
        let entry = self
            .applied
            .iter()
            .find(|a| &*a.manager == manager && a.subresource == subresource);
        entry.map(|entry| &*entry.fields)
    }

    /// Bytes held on the heap.
    pub fn bytes(&self) -> usize {
        self.json.len() + size_of::<Self>()
    }
}
