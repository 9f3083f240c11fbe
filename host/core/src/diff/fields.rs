//! Parses field sets as the API server writes them (`fieldsV1` in `metadata.managedFields`) into a tree.
//!
//! ```text
//! {"f:spec":{"f:ports":{"k:{\"port\":80}":{".":{},"f:port":{}}}}}
//!
//! Members(spec ─► Members(ports ─► Elements(port=80 ─► Members(port ─► Leaf))))
//! ```
//!
//! The format is that of structured-merge-diff's `fieldpath` (`serialize.go`, `serialize-pe.go`). `"."` marks a node
//! with children as owned itself. That follows from the schema and the value, so it is not compared.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value;

use super::tree::{Members, Name};

/// What a manager owns below one node.
#[derive(Debug, PartialEq)]
pub(super) enum Fields<'a> {
    /// The node as a whole: a scalar, an atomic value, an empty map, or null.
    Leaf,
    /// `f:`: these members of a map.
    Members(Members<'a, Fields<'a>>),
    /// `k:`: these elements of an associative list.
    Elements {
        /// Names of the key fields, equal for all elements of a list.
        keys: Vec<String>,
        elements: Vec<Element<'a>>,
    },
    /// `v:`: these elements of a set.
    Set(Vec<Value>),
}

/// One owned element of an associative list.
#[derive(Debug, PartialEq)]
pub(super) struct Element<'a> {
    /// Values of the key fields, in the order of `keys`, including defaulted ones.
    pub(super) key: Vec<Value>,
    pub(super) fields: Fields<'a>,
}

impl<'a> Fields<'a> {
    /// Returns `None` if an apply does not write such a text: other JSON, unknown path elements (`i:`), several kinds
    /// of elements in one node, or nesting deeper than serde_json's limit of 128.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns the members of a node that can only be a map; none for a leaf.
    pub(super) fn into_members(self) -> Option<Members<'a, Fields<'a>>> {
        match self {
            Self::Leaf => Some(Members::none()),
            Self::Members(members) => Some(members),
            Self::Elements { .. } | Self::Set(_) => None,
        }
    }
}

/// The content of one node while its kind is unknown.
#[derive(Default)]
struct Node<'a> {
    members: Vec<(Cow<'a, str>, Fields<'a>)>,
    keys: Option<Vec<String>>,
    elements: Vec<Element<'a>>,
    set: Vec<Value>,
}

impl<'a> Node<'a> {
    /// Returns `None` for what is not a path element, or does not fit this node.
    fn take(&mut self, name: Cow<'a, str>, fields: Fields<'a>) -> Option<()> {
        match name.get(..2)? {
            "f:" => self.members.push((stripped(name), fields)),
            "k:" => {
                let key: BTreeMap<String, Value> = serde_json::from_str(&name[2..]).ok()?;
                let (names, key): (Vec<_>, Vec<_>) = key.into_iter().unzip();
                // A list has at least one key.
                if names.is_empty() || *self.keys.get_or_insert_with(|| names.clone()) != names {
                    return None;
                }
                self.elements.push(Element { key, fields });
            }
            "v:" if fields == Fields::Leaf => self.set.push(serde_json::from_str(&name[2..]).ok()?),
            _ => return None,
        }
        Some(())
    }

    /// Returns `None` if there are several kinds of elements.
    fn close(self) -> Option<Fields<'a>> {
        Some(match (self.members.is_empty(), self.keys, self.set.is_empty()) {
            (true, None, true) => Fields::Leaf,
            (false, None, true) => Fields::Members(Members::new(self.members)),
            (true, Some(keys), true) => Fields::Elements { keys, elements: self.elements },
            (true, None, false) => Fields::Set(self.set),
            _ => return None,
        })
    }
}

/// Returns the name without its first two bytes.
fn stripped(name: Cow<'_, str>) -> Cow<'_, str> {
    match name {
        Cow::Borrowed(name) => Cow::Borrowed(&name[2..]),
        Cow::Owned(name) => Cow::Owned(name[2..].to_owned()),
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Reading<'a> {
            type Value = Fields<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field set")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut node = Node::default();
                while let Some(Name(name)) = map.next_key()? {
                    let taken = match &*name {
                        "." => (map.next_value::<Members<'_, IgnoredAny>>()?.len() == 0).then_some(()),
                        _ => node.take(name, map.next_value()?),
                    };
                    taken.ok_or_else(|| A::Error::custom("no path element of a field set"))?;
                }
                node.close().ok_or_else(|| A::Error::custom("several kinds of path elements in one node"))
            }
        }

        deserializer.deserialize_map(Reading(PhantomData))
    }
}
