//! Field sets as the API server writes them (`fieldsV1` in `metadata.managedFields`), read into a tree.
//!
//! ```text
//! {"f:spec":{"f:ports":{"k:{\"port\":80}":{".":{},"f:port":{}}}}}
//!
//! Members(spec ─► Members(ports ─► Elements(port=80 ─► Members(port ─► Leaf))))
//! ```
//!
//! The format is that of structured-merge-diff's `fieldpath` (`serialize.go`, `serialize-pe.go`). `"."` says that a node with
//! children is itself owned too; since that follows from the schema and the value, it carries nothing to compare.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// What a manager owns below one node.
#[derive(Debug, PartialEq)]
pub(super) enum Fields {
    /// The node as a whole: a scalar, something atomic, an empty map, or null.
    Leaf,
    /// `f:`: these members of a map.
    Members(BTreeMap<String, Fields>),
    /// `k:`: these elements of an associative list.
    Elements {
        /// Names of the key fields: the same for all elements of a list.
        keys: Vec<String>,
        elements: Vec<Element>,
    },
    /// `v:`: these elements of a set.
    Set(Vec<Value>),
}

/// One owned element of an associative list.
#[derive(Debug, PartialEq)]
pub(super) struct Element {
    /// Values of the key fields, in the order of `keys`; a key that was applied by its default is here too.
    pub(super) key: Vec<Value>,
    pub(super) fields: Fields,
}

impl Fields {
    /// None if the text is no field set that an apply writes: other JSON, unknown path elements (`i:`), kinds mixed in one
    /// node, or nested deeper than serde_json reads (128).
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::of(serde_json::from_str(text).ok()?)
    }

    fn of(value: Value) -> Option<Self> {
        let Value::Object(mut map) = value else { return None };
        if let Some(itself) = map.remove(".") {
            itself.as_object().filter(|inner| inner.is_empty())?;
        }
        let Some(kind) = map.keys().next().map(|first| first.get(..2).unwrap_or_default().to_owned()) else {
            return Some(Self::Leaf);
        };
        match kind.as_str() {
            "f:" => Self::members(map),
            "k:" => Self::elements(map),
            "v:" => Self::set(map),
            _ => None,
        }
    }

    fn members(map: Map<String, Value>) -> Option<Self> {
        let members =
            map.into_iter().map(|(name, fields)| Some((name.strip_prefix("f:")?.to_owned(), Self::of(fields)?)));
        Some(Self::Members(members.collect::<Option<_>>()?))
    }

    fn elements(map: Map<String, Value>) -> Option<Self> {
        let mut keys: Option<Vec<String>> = None;
        let mut elements = Vec::with_capacity(map.len());
        for (key, fields) in map {
            let key: BTreeMap<String, Value> = serde_json::from_str(key.strip_prefix("k:")?).ok()?;
            let (names, values): (Vec<_>, Vec<_>) = key.into_iter().unzip();
            if *keys.get_or_insert_with(|| names.clone()) != names {
                return None;
            }
            elements.push(Element { key: values, fields: Self::of(fields)? });
        }
        // A list is keyed by something.
        let keys = keys.filter(|keys| !keys.is_empty())?;
        Some(Self::Elements { keys, elements })
    }

    fn set(map: Map<String, Value>) -> Option<Self> {
        let values = map.into_iter().map(|(value, fields)| {
            (Self::of(fields)? == Self::Leaf).then_some(())?;
            serde_json::from_str(value.strip_prefix("v:")?).ok()
        });
        Some(Self::Set(values.collect::<Option<_>>()?))
    }

    /// The members of a node that can only be a map; a leaf has none.
    pub(super) fn into_members(self) -> Option<BTreeMap<String, Fields>> {
        match self {
            Self::Leaf => Some(BTreeMap::new()),
            Self::Members(members) => Some(members),
            Self::Elements { .. } | Self::Set(_) => None,
        }
    }
}
