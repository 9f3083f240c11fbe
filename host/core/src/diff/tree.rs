//! JSON as a tree that borrows from its text. Names and strings are copied only if they contain escapes.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::Number;

/// Like `serde_json::Value`, for a text that is read once.
#[derive(Debug, PartialEq)]
pub(super) enum Tree<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Tree<'a>>),
    Map(Members<'a, Tree<'a>>),
}

/// The members of an object, by name. Of a repeated name the last one counts, as in serde_json.
#[derive(Debug, PartialEq)]
pub(super) struct Members<'a, T>(Vec<(Cow<'a, str>, T)>);

/// The name of a member.
#[derive(Deserialize)]
pub(super) struct Name<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

impl<'a, T> Members<'a, T> {
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    /// Takes members in any order.
    pub(super) fn new(mut members: Vec<(Cow<'a, str>, T)>) -> Self {
        // The API server writes most of them sorted.
        if !members.is_sorted_by(|(a, _), (b, _)| a < b) {
            // Of equal names the last one then comes first, and stays.
            members.reverse();
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            members.dedup_by(|(a, _), (b, _)| a == b);
        }
        Self(members)
    }

    fn place(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(own, _)| (**own).cmp(name))
    }

    pub(super) fn get(&self, name: &str) -> Option<&T> {
        self.place(name).ok().and_then(|place| self.0.get(place)).map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<T> {
        self.place(name).ok().map(|place| self.0.remove(place).1)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Members<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading<'a, T>(PhantomData<(&'a (), T)>);

        impl<'de: 'a, 'a, T: Deserialize<'de>> Visitor<'de> for Reading<'a, T> {
            type Value = Members<'a, T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                members(map)
            }
        }

        deserializer.deserialize_map(Reading(PhantomData))
    }
}

fn members<'de: 'a, 'a, T: Deserialize<'de>, A: MapAccess<'de>>(mut map: A) -> Result<Members<'a, T>, A::Error> {
    let mut members = Vec::new();
    while let Some(Name(name)) = map.next_key()? {
        members.push((name, map.next_value()?));
    }
    Ok(Members::new(members))
}

impl<'de: 'a, 'a> Deserialize<'de> for Tree<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Reading<'a> {
            type Value = Tree<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Tree::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
                Ok(Tree::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
                Ok(Tree::Number(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
                Ok(Tree::Number(value.into()))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
                Number::from_f64(value).map(Tree::Number).ok_or_else(|| E::custom("a number is none"))
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Tree::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Tree::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = list.next_element()? {
                    elements.push(element);
                }
                Ok(Tree::List(elements))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                members(map).map(Tree::Map)
            }
        }

        deserializer.deserialize_any(Reading(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_duplicate_members_counts() {
        let members: Members<'_, u32> =
            serde_json::from_str(r#"{"b":1,"a":2,"b":3,"a\u0062":4,"b":5}"#).expect("an object");
        assert_eq!(members.names().collect::<Vec<_>>(), ["a", "ab", "b"]);
        assert_eq!(["a", "ab", "b", "c"].map(|name| members.get(name).copied()), [Some(2), Some(4), Some(5), None]);
    }

    #[test]
    fn nothing_is_copied_that_stands_as_it_is_meant() {
        let tree: Tree<'_> = serde_json::from_str(r#"{"a":["b","\n"]}"#).expect("JSON");
        let Tree::Map(Members(members)) = tree else { panic!("it is an object") };
        let [(Cow::Borrowed("a"), Tree::List(list))] = &members[..] else { panic!("{members:?}") };
        assert!(
            matches!(&list[..], [Tree::Text(Cow::Borrowed("b")), Tree::Text(Cow::Owned(escaped))] if escaped == "\n")
        );
    }
}
