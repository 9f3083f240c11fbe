//! What the server's answers mean, and how to tell people of them.

use serde::Deserialize;

use crate::{
    ParseError,
    key::Key,
    list::{ListMeta, Status},
    object::ResourceVersion,
};

/// How much of a text that comes from outside is kept, in characters.
const TEXT_MAX: usize = 500;

/// The server does not know streaming lists, or not as they are asked for.
///
/// Without the feature gate WatchList the field is forbidden, in a 422; servers that do not know the parameter find
/// `resourceVersionMatch` wrong for a watch. On an etcd older than 3.4.31 or 3.5.13 the watch begins with an error that
/// names what is missing there.
pub(super) fn refuses_streaming(status: &Status) -> bool {
    match status.code {
        400 | 422 => true,
        403 => status.message.contains("sendInitialEvents"),
        _ => status.message.contains("RequestWatchProgress"),
    }
}

/// The server was asked for a version that it has not come to. It is a timeout like others but for its cause, whose words
/// the message repeats.
pub(super) fn is_too_large(status: &Status) -> bool {
    status.code == 504 && status.message.contains("Too large resource version")
}

pub(super) fn version_of(meta: &ListMeta) -> Result<ResourceVersion, String> {
    match &meta.resource_version {
        None => Err("the server sent a list without resourceVersion".to_owned()),
        Some(text) => ResourceVersion::parse(text)
            .ok_or_else(|| format!("the server sent a list with resourceVersion {text:?}, which is no decimal number")),
    }
}

pub(super) fn describe(status: &Status) -> String {
    let Status { code, reason, message, .. } = status;
    match reason.as_str() {
        // What is no `Status` begins with the line of HTTP.
        "" if message.starts_with(&code.to_string()) => format!("the server answered {message}"),
        "" => format!("the server answered {code}: {message}"),
        reason => format!("the server answered {code} {reason}: {message}"),
    }
}

/// `what`: what was expected.
pub(super) fn unreadable(what: &str, error: &ParseError) -> String {
    format!("the server sent no {what}: {error}")
}

/// Namespace and name of an object that cannot be read as one. Nothing else of it: it may be a Secret.
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

/// The beginning of a text, enough for people.
pub(super) fn brief(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
