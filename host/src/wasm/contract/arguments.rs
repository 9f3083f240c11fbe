//! What guests name, to imports and in answers: measured, and read into the host's own types.
//!
//! Much of it outlives its call: what a reconcile has read is remembered as long as nobody reads anew, and an error's text goes into logs. So
//! what names something has a length here that no such name exceeds, and is refused before anybody looks at it.

use std::fmt::Display;

use pilothouse_core::{
    field::FieldPath,
    key::{Key, TypeMeta},
    selector::Selector,
};

use super::{
    bindings::pilothouse::plugin::{cache, client, types},
    imports::Query,
};

/// Bytes of an object's name. Kubernetes lets most kinds have 253; names of RBAC are as long as a URL may be, and who writes one of a
/// thousand bytes is not known.
const MAX_NAME: usize = 1 << 10;

/// Bytes of a namespace, as Kubernetes has it: a DNS label.
const MAX_NAMESPACE: usize = 63;

/// Bytes of an apiVersion, as Kubernetes has it: a DNS subdomain, a slash and a DNS label.
const MAX_API_VERSION: usize = 253 + 1 + 63;

/// Bytes of a kind, as Kubernetes has it: in lower case a DNS label.
const MAX_KIND: usize = 63;

/// Bytes of an index's name: what a manifest may declare.
const MAX_INDEX: usize = 63;

/// Bytes of a value that is looked up in an index: several times the longest image's name. Who looks up texts looks up their digest.
const MAX_VALUE: usize = 4 << 10;

/// Bytes of [`Query::after`]: a key's text.
const MAX_AFTER: usize = MAX_NAMESPACE + 1 + MAX_NAME;

/// Bytes of a selector's text: twice what [its parts](pilothouse_core::selector::MAX_BYTES) may have, for what stands between them.
const MAX_LABELS: usize = 2 * pilothouse_core::selector::MAX_BYTES;

/// Field paths in a query: more than anybody reads of an object, and a bound on what is compared for each object.
const MAX_FIELDS: usize = 64;

/// What one object is named by.
pub(crate) fn object(of: &types::TypeMeta, name: &types::KeyResult) -> Result<(TypeMeta, Key), String> {
    Ok((type_meta(of)?, key(name.namespace.as_deref(), &name.name)?))
}

/// A key.
pub(crate) fn key(namespace: Option<&str>, name: &str) -> Result<Key, String> {
    self::namespace(namespace)?;
    within("the name", name, MAX_NAME)?;
    if name.is_empty() {
        return Err("the name is empty".to_owned());
    }
    Ok(Key::new(namespace, name))
}

/// A query, with what it writes as text read.
pub(crate) fn query(query: cache::Query) -> Result<Query, cache::ReadError> {
    let read = || {
        let of = type_meta(&query.of)?;
        namespace(query.namespace.as_deref())?;
        if let Some((name, value)) = &query.index {
            within("the index's name", name, MAX_INDEX)?;
            within("the index's value", value, MAX_VALUE)?;
        }
        if let Some(after) = &query.after {
            within("after", after, MAX_AFTER)?;
        }
        let labels = query.labels.as_deref().unwrap_or_default();
        within("labels", labels, MAX_LABELS)?;
        let labels = Selector::parse(labels).map_err(|error| said("labels", error))?;
        if query.fields.len() > MAX_FIELDS {
            let many = format!("{} are more than the {MAX_FIELDS} that a query may name", query.fields.len());
            return Err(said("fields", many));
        }
        let fields: Result<_, _> = query.fields.iter().map(|path| FieldPath::parse(path)).collect();
        Ok((of, labels, fields.map_err(|error| said("fields", error))?))
    };
    let (of, labels, fields) = read().map_err(cache::ReadError::Invalid)?;
    let cache::Query { namespace, index, limit, after, .. } = query;
    Ok(Query { of, namespace, labels, index, fields, limit, after })
}

fn type_meta(of: &types::TypeMeta) -> Result<TypeMeta, String> {
    within("the apiVersion", &of.api_version, MAX_API_VERSION)?;
    within("the kind", &of.kind, MAX_KIND)?;
    Ok(TypeMeta::new(&of.api_version, &of.kind))
}

fn namespace(namespace: Option<&str>) -> Result<(), String> {
    within("the namespace", namespace.unwrap_or_default(), MAX_NAMESPACE)
}

fn within(what: &str, text: &str, most: usize) -> Result<(), String> {
    if text.len() <= most {
        return Ok(());
    }
    Err(said(what, format!("has {} bytes, and at most {most} are taken", text.len())))
}

fn said(what: &str, why: impl Display) -> String {
    format!("{what}: {why}")
}

/// Bytes of what names an object.
pub(crate) fn object_bytes(of: &types::TypeMeta, name: &types::KeyResult) -> usize {
    type_meta_bytes(of) + key_bytes(name)
}

/// Bytes of a key.
pub(crate) fn key_bytes(key: &types::KeyResult) -> usize {
    key.name.len() + text_bytes(key.namespace.as_ref())
}

/// Bytes of a query.
pub(crate) fn query_bytes(query: &cache::Query) -> usize {
    let cache::Query { of, namespace, labels, index, fields, limit: _, after } = query;
    let texts: usize = [namespace, labels, after].into_iter().map(|text| text_bytes(text.as_ref())).sum();
    let index = index.as_ref().map_or(0, |(name, value)| name.len() + value.len());
    type_meta_bytes(of) + texts + index + fields.iter().map(String::len).sum::<usize>()
}

/// Bytes of a patch.
pub(crate) fn patch_bytes(body: &client::PatchBody) -> usize {
    match body {
        client::PatchBody::Json(text) | client::PatchBody::Merge(text) | client::PatchBody::StrategicMerge(text) => {
            text.len()
        }
    }
}

/// Bytes of preconditions.
pub(crate) fn preconditions_bytes(preconditions: &client::Preconditions) -> usize {
    let client::Preconditions { uid, resource_version } = preconditions;
    text_bytes(uid.as_ref()) + text_bytes(resource_version.as_ref())
}

/// Bytes of a line of the log.
pub(crate) fn line_bytes(message: &str, fields: &[(String, String)]) -> usize {
    message.len() + fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

fn type_meta_bytes(of: &types::TypeMeta) -> usize {
    of.api_version.len() + of.kind.len()
}

fn text_bytes(text: Option<&String>) -> usize {
    text.map_or(0, String::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps() -> types::TypeMeta {
        types::TypeMeta { api_version: "v1".to_owned(), kind: "ConfigMap".to_owned() }
    }

    fn all() -> cache::Query {
        let (of, fields) = (maps(), Vec::new());
        cache::Query { of, namespace: None, labels: None, index: None, fields, limit: 0, after: None }
    }

    #[test]
    fn what_names_an_object_is_bounded() {
        let named = |of: types::TypeMeta, namespace: usize, name: usize| {
            let key = types::KeyResult { namespace: Some("n".repeat(namespace)), name: "a".repeat(name) };
            object(&of, &key).map(drop)
        };
        assert_eq!(named(maps(), 63, 1024), Ok(()));
        let of =
            |version: usize, kind: usize| types::TypeMeta { api_version: "v".repeat(version), kind: "K".repeat(kind) };
        assert_eq!(named(of(317, 63), 0, 1), Ok(()));
        let refused = [
            named(maps(), 1, 0),
            named(maps(), 1, 1025),
            named(maps(), 64, 1),
            named(of(318, 1), 1, 1),
            named(of(1, 64), 1, 1),
        ];
        assert_eq!(
            refused.map(Result::unwrap_err),
            [
                "the name is empty",
                "the name: has 1025 bytes, and at most 1024 are taken",
                "the namespace: has 64 bytes, and at most 63 are taken",
                "the apiVersion: has 318 bytes, and at most 317 are taken",
                "the kind: has 64 bytes, and at most 63 are taken",
            ]
        );
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
            cache::Query { of: types::TypeMeta { kind: text(64), ..maps() }, ..all() },
            cache::Query { namespace: Some(text(64)), ..all() },
            cache::Query { labels: Some(" ".repeat(8193)), ..all() },
            cache::Query { labels: Some("!a,".repeat(65)), ..all() },
            cache::Query { index: Some((text(64), text(1))), ..all() },
            cache::Query { index: Some((text(1), text(4097))), ..all() },
            cache::Query { fields: vec![text(1); 65], ..all() },
            cache::Query { after: Some(text(63 + 1 + 1025)), ..all() },
        ];
        let why = too_much.map(|asked| match query(asked) {
            Err(cache::ReadError::Invalid(why)) => why,
            other => panic!("it is not refused: {other:?}"),
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
        let key = types::KeyResult { namespace: Some("1".to_owned()), name: "22".to_owned() };
        assert_eq!(object_bytes(&maps(), &key), "v1ConfigMap".len() + 1 + 2);
        assert_eq!(line_bytes("1", &[("22".to_owned(), "333".to_owned())]), 6);
        assert_eq!(patch_bytes(&client::PatchBody::Merge("{}".to_owned())), 2);
        let preconditions =
            client::Preconditions { uid: Some("1".to_owned()), resource_version: Some("22".to_owned()) };
        assert_eq!(preconditions_bytes(&preconditions), 3);
    }
}
