//! Checks and measures what guests name: objects, kinds, keys.
//!
//! Names outlive their call: what a reconcile read is remembered, and errors go into logs. So each name has a bound
//! that no valid name exceeds. It is checked before anything else looks at the name.

use std::fmt::Display;

use pilothouse_core::key::{Key, TypeMeta};

use super::bindings::pilothouse::plugin::types;

/// Bytes of an object's name. Kubernetes allows 253 for most kinds. Names of RBAC objects may be as long as a URL.
const MAX_NAME: usize = 1 << 10;

/// Bytes of a namespace, as in Kubernetes: a DNS label.
const MAX_NAMESPACE: usize = 63;

/// Bytes of a key as text, `namespace/name`.
pub(crate) const MAX_KEY: usize = MAX_NAMESPACE + 1 + MAX_NAME;

/// Bytes of an apiVersion, as in Kubernetes: a DNS subdomain, a slash and a DNS label.
const MAX_API_VERSION: usize = 253 + 1 + 63;

/// Bytes of a kind, as in Kubernetes: a DNS label when it is lower case.
const MAX_KIND: usize = 63;

/// Checks what names an object.
pub(crate) fn object(of: &types::TypeMeta, name: &types::KeyResult) -> Result<(TypeMeta, Key), String> {
    Ok((type_meta(of)?, key(name.namespace.as_deref(), &name.name)?))
}

/// Checks a key.
pub(crate) fn key(namespace: Option<&str>, name: &str) -> Result<Key, String> {
    self::namespace(namespace)?;
    within("the name", name, MAX_NAME)?;
    if name.is_empty() {
        return Err("the name is empty".to_owned());
    }
    Ok(Key::new(namespace, name))
}

/// Checks a kind.
pub(crate) fn type_meta(of: &types::TypeMeta) -> Result<TypeMeta, String> {
    within("the apiVersion", &of.api_version, MAX_API_VERSION)?;
    within("the kind", &of.kind, MAX_KIND)?;
    Ok(TypeMeta::new(&of.api_version, &of.kind))
}

/// Checks a namespace.
pub(crate) fn namespace(namespace: Option<&str>) -> Result<(), String> {
    within("the namespace", namespace.unwrap_or_default(), MAX_NAMESPACE)
}

/// Rejects a text of more than `most` bytes.
pub(crate) fn within(what: &str, text: &str, most: usize) -> Result<(), String> {
    if text.len() <= most {
        return Ok(());
    }
    Err(invalid(what, format!("has {} bytes, and at most {most} are taken", text.len())))
}

/// Returns the message for an argument that is not valid.
pub(crate) fn invalid(what: &str, why: impl Display) -> String {
    format!("{what}: {why}")
}

/// Returns the bytes of what names an object.
pub(crate) fn object_bytes(of: &types::TypeMeta, name: &types::KeyResult) -> usize {
    type_meta_bytes(of) + key_bytes(name)
}

/// Returns the bytes of a key.
pub(crate) fn key_bytes(key: &types::KeyResult) -> usize {
    key.name.len() + text_bytes(key.namespace.as_ref())
}

/// Returns the bytes of a kind.
pub(crate) fn type_meta_bytes(of: &types::TypeMeta) -> usize {
    of.api_version.len() + of.kind.len()
}

/// Returns the bytes of an optional text.
pub(crate) fn text_bytes(text: Option<&String>) -> usize {
    text.map_or(0, String::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps() -> types::TypeMeta {
        types::TypeMeta { api_version: "v1".to_owned(), kind: "ConfigMap".to_owned() }
    }

    #[test]
    fn names_in_arguments_are_bounded() {
        let named = |of: types::TypeMeta, namespace: usize, name: usize| {
            let key = types::KeyResult { namespace: Some("n".repeat(namespace)), name: "a".repeat(name) };
            object(&of, &key).map(drop)
        };
        assert_eq!(named(maps(), 63, 1024), Ok(()));
        let of =
            |version: usize, kind: usize| types::TypeMeta { api_version: "v".repeat(version), kind: "K".repeat(kind) };
        assert_eq!(named(of(317, 63), 0, 1), Ok(()));
        let rejected = [
            named(maps(), 1, 0),
            named(maps(), 1, 1025),
            named(maps(), 64, 1),
            named(of(318, 1), 1, 1),
            named(of(1, 64), 1, 1),
        ];
        assert_eq!(
            rejected.map(Result::unwrap_err),
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
    fn every_text_is_measured() {
        let key = types::KeyResult { namespace: Some("1".to_owned()), name: "22".to_owned() };
        assert_eq!(object_bytes(&maps(), &key), "v1ConfigMap".len() + 1 + 2);
    }
}
