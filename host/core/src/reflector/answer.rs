//! Interprets the server's answers, and describes them for people.

use serde::Deserialize;

use crate::{
    ParseError,
    key::Key,
    list::{ListMeta, Status},
    object::ResourceVersion,
};

/// Largest length of a quoted text from outside, in characters.
const TEXT_MAX: usize = 500;

/// Returns `true` if the server does not support streaming lists.
///
/// Without the feature gate WatchList the field is forbidden (422). Servers that do not know the parameter reject
/// `resourceVersionMatch` for a watch. On an etcd older than 3.4.31 or 3.5.13 the watch begins with an error that names
/// the missing feature.
pub(super) fn refuses_streaming(status: &Status) -> bool {
    match status.code {
        400 | 422 => true,
        403 => status.message.contains("sendInitialEvents"),
        _ => status.message.contains("RequestWatchProgress"),
    }
}

/// Returns `true` if the server was asked for a version that it has not reached. Only the message distinguishes this
/// from other timeouts.
pub(super) fn is_too_large(status: &Status) -> bool {
    status.code == 504 && status.message.contains("Too large resource version")
}

pub(super) fn version_of(meta: &ListMeta) -> Result<ResourceVersion, String> {
    match &meta.resource_version {
        None => Err("the server sent a list without resourceVersion".to_owned()),
        Some(text) => ResourceVersion::parse(text)
            .ok_or_else(|| format!("the server sent a list whose resourceVersion {text:?} is not a decimal number")),
    }
}

pub(super) fn describe(status: &Status) -> String {
    let Status { code, reason, message, .. } = status;
    match reason.as_str() {
        // An answer that is not a `Status` begins with the HTTP status line.
        "" if message.starts_with(&code.to_string()) => format!("the server answered {message}"),
        "" => format!("the server answered {code}: {message}"),
        reason => format!("the server answered {code} {reason}: {message}"),
    }
}

/// `expected`: what should have come.
pub(super) fn unreadable(expected: &str, error: &ParseError) -> String {
    format!("the server's answer is not a valid {expected}: {error}")
}

/// Returns namespace and name of an object that cannot be read. Returns nothing else of it: it may be a Secret.
pub(super) fn key_in(json: &[u8]) -> Option<Key> {
    #[derive(Deserialize)]
    struct Named {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(default)]
        namespace: String,
        name: String,
    }
    let Named { metadata: Metadata { namespace, name } } = serde_json::from_slice(json).ok()?;
    Some(Key::new(Some(&namespace), &name))
}

/// Shortens a text for people.
pub(super) fn brief(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
