//! `cache`: reads from the host's cache.

use std::sync::Arc;

use pilothouse_core::{
    field::FieldPath,
    key::{Key, TypeMeta},
    object::Object,
    selector::{self, Selector},
};
use wasmtime::Result;

use super::{
    super::{
        arguments::{self, MAX_KEY, invalid, key_bytes, object_bytes, text_bytes, type_meta_bytes, within},
        bindings::pilothouse::plugin::{cache, types, types::KeyResult},
    },
    host_state::{HostState, json},
    interface,
};
pub use crate::wasm::contract::bindings::pilothouse::plugin::cache::ReadError;

interface!(CacheCall, "cache", { Get = "get", List = "list", Keys = "keys" });

/// Bytes of an index's name: the bound of the manifest.
const MAX_INDEX: usize = 63;

/// Bytes of a value that is looked up in an index: several times the longest image name. For longer texts, index a
/// digest.
const MAX_VALUE: usize = 4 << 10;

/// Bytes of [`Query::after`], which is a key as text.
const MAX_AFTER: usize = MAX_KEY;

/// Bytes of a selector's text: twice the bound of [its parts](selector::MAX_BYTES), which leaves room for separators.
const MAX_LABELS: usize = 2 * selector::MAX_BYTES;

/// Field paths of a query. Every path is compared with each object.
const MAX_FIELDS: usize = 64;

/// What the caller supplies for `cache`.
pub trait CacheImports {
    /// Returns a cached object, or `None` if the cache has no such object.
    ///
    /// # Errors
    /// Not granted, not cached for this plugin, or larger than a page.
    fn cached(&self, of: &TypeMeta, key: &Key) -> Result<Option<Arc<Object>>, ReadError>;

    /// Returns one page of cached objects, at most 4 MiB of JSON.
    ///
    /// # Errors
    /// Not granted, not cached for this plugin, not valid, or an object that is larger than a page.
    fn cached_list(&self, query: &Query) -> Result<Page, ReadError>;

    /// Returns one page of the keys of cached objects.
    ///
    /// # Errors
    /// Not granted, not cached for this plugin, or not valid.
    fn cached_keys(&self, query: &Query) -> Result<KeyPage, ReadError>;
}

/// Selects cached objects.
#[derive(Debug, Clone)]
pub struct Query {
    /// Their kind.
    pub of: TypeMeta,
    /// `None` selects every granted namespace.
    pub namespace: Option<String>,
    /// The labels that the objects must have.
    pub labels: Selector,
    /// The name of an index and the value to look up in it.
    pub index: Option<(String, String)>,
    /// Field paths to return. Empty returns whole objects.
    pub fields: Vec<FieldPath>,
    /// The largest number of items in a page. 0 means 500 objects or 10,000 keys.
    pub limit: u32,
    /// [`Page::next`] of the page before.
    pub after: Option<String>,
}

/// Objects, ordered by namespace and then name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The objects as JSON text, with the fields that the query selects.
    pub items: Vec<String>,
    /// Where the next page begins. `None` if this was the last page.
    pub next: Option<String>,
}

/// Keys, ordered by namespace and then name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys.
    pub items: Vec<Key>,
    /// Where the next page begins. `None` if this was the last page.
    pub next: Option<String>,
}

impl cache::Host for HostState {
    fn get(&mut self, of: types::TypeMeta, name: KeyResult) -> Result<Result<Option<String>, ReadError>> {
        let imports = self.open(CacheCall::Get, object_bytes(&of, &name))?;
        let object = arguments::object(&of, &name).map_err(ReadError::Invalid);
        let object = object.and_then(|(of, key)| imports.cached(&of, &key));
        let object = object.map(|object| object.as_ref().map(json));
        self.give(object, |object| object.as_ref().ok().and_then(Option::as_ref).map_or(0, String::len))
    }

    fn list(&mut self, asked: cache::Query) -> Result<Result<cache::Page, ReadError>> {
        let imports = self.open(CacheCall::List, query_bytes(&asked))?;
        let page = query(asked).and_then(|query| imports.cached_list(&query));
        let page = page.map(|page| cache::Page { items: page.items, next: page.next });
        self.give(page, |page| page.as_ref().map_or(0, |page| page.items.iter().map(String::len).sum()))
    }

    fn keys(&mut self, asked: cache::Query) -> Result<Result<cache::KeyPage, ReadError>> {
        let imports = self.open(CacheCall::Keys, query_bytes(&asked))?;
        let page = query(asked).and_then(|query| imports.cached_keys(&query));
        let page = page.map(|page| cache::KeyPage { items: page.items.iter().map(wit_key).collect(), next: page.next });
        self.give(page, |page| page.as_ref().map_or(0, |page| page.items.iter().map(key_bytes).sum()))
    }
}

fn wit_key(key: &Key) -> KeyResult {
    KeyResult { namespace: key.namespace.as_deref().map(str::to_owned), name: key.name.as_ref().to_owned() }
}

/// Checks a query and parses its texts.
fn query(query: cache::Query) -> Result<Query, ReadError> {
    let parse = || {
        let of = arguments::type_meta(&query.of)?;
        arguments::namespace(query.namespace.as_deref())?;
        if let Some((name, value)) = &query.index {
            within("the index's name", name, MAX_INDEX)?;
            within("the index's value", value, MAX_VALUE)?;
        }
        if let Some(after) = &query.after {
            within("after", after, MAX_AFTER)?;
        }
        let labels = query.labels.as_deref().unwrap_or_default();
        within("labels", labels, MAX_LABELS)?;
        let labels = Selector::parse(labels).map_err(|error| invalid("labels", error))?;
        if query.fields.len() > MAX_FIELDS {
            let many = format!("{} are more than the {MAX_FIELDS} that a query may name", query.fields.len());
            return Err(invalid("fields", many));
        }
        let fields: Result<_, _> = query.fields.iter().map(|path| FieldPath::parse(path)).collect();
        Ok((of, labels, fields.map_err(|error| invalid("fields", error))?))
    };
    let (of, labels, fields) = parse().map_err(ReadError::Invalid)?;
    let cache::Query { namespace, index, limit, after, .. } = query;
    Ok(Query { of, namespace, labels, index, fields, limit, after })
}

fn query_bytes(query: &cache::Query) -> usize {
    let cache::Query { of, namespace, labels, index, fields, limit: _, after } = query;
    let texts: usize = [namespace, labels, after].into_iter().map(|text| text_bytes(text.as_ref())).sum();
    let index = index.as_ref().map_or(0, |(name, value)| name.len() + value.len());
    type_meta_bytes(of) + texts + index + fields.iter().map(String::len).sum::<usize>()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::{
        super::super::super::testing::{Fake, state},
        *,
    };

    fn all() -> cache::Query {
        let of = types::TypeMeta { api_version: "v1".to_owned(), kind: "ConfigMap".to_owned() };
        cache::Query { of, namespace: None, labels: None, index: None, fields: Vec::new(), limit: 0, after: None }
    }

    #[test]
    fn cache_is_not_read_for_an_empty_name() {
        let mut state = state(&Arc::new(Fake::default()));
        let empty = KeyResult { namespace: None, name: String::new() };
        let rejected = cache::Host::get(&mut state, all().of, empty).unwrap().unwrap_err();
        assert!(matches!(rejected, ReadError::Invalid(why) if why == "the name is empty"));
    }

    #[test]
    fn each_part_of_a_query_is_bounded() {
        let text = |bytes: usize| "a".repeat(bytes);
        let fits = cache::Query {
            namespace: Some(text(63)),
            labels: Some(format!("a,b{}", " ".repeat(8189))),
            index: Some((text(63), text(4096))),
            fields: vec![text(1024); 64],
            after: Some(text(63 + 1 + 1024)),
            ..all()
        };
        assert!(query(fits).is_ok());
        let too_much = [
            cache::Query { of: types::TypeMeta { kind: text(64), ..all().of }, ..all() },
            cache::Query { namespace: Some(text(64)), ..all() },
            cache::Query { labels: Some(" ".repeat(8193)), ..all() },
            cache::Query { labels: Some("!a,".repeat(65)), ..all() },
            cache::Query { index: Some((text(64), text(1))), ..all() },
            cache::Query { index: Some((text(1), text(4097))), ..all() },
            cache::Query { fields: vec![text(1); 65], ..all() },
            cache::Query { after: Some(text(63 + 1 + 1025)), ..all() },
        ];
        let why = too_much.map(|asked| match query(asked) {
            Err(ReadError::Invalid(why)) => why,
            other => panic!("it is not rejected: {other:?}"),
        });
        let selector = &"!a,".repeat(65)[..80];
        assert_eq!(
            why,
            [
                "the kind: has 64 bytes, and at most 63 are taken".to_owned(),
                "the namespace: has 64 bytes, and at most 63 are taken".to_owned(),
                "labels: has 8193 bytes, and at most 8192 are taken".to_owned(),
                format!("labels: cannot read label selector {selector:?}…: has more than 64 requirements"),
                "the index's name: has 64 bytes, and at most 63 are taken".to_owned(),
                "the index's value: has 4097 bytes, and at most 4096 are taken".to_owned(),
                "fields: 65 are more than the 64 that a query may name".to_owned(),
                "after: has 1089 bytes, and at most 1088 are taken".to_owned(),
            ]
        );
    }

    #[test]
    fn every_text_is_measured() {
        let asked = cache::Query {
            namespace: Some("1".to_owned()),
            labels: Some("22".to_owned()),
            index: Some(("333".to_owned(), "4444".to_owned())),
            fields: vec!["55555".to_owned(), "666666".to_owned()],
            after: Some("7777777".to_owned()),
            ..all()
        };
        assert_eq!(query_bytes(&asked), "v1ConfigMap".len() + 1 + 2 + 3 + 4 + 5 + 6 + 7);
    }
}
