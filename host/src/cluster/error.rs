//! Why a request has no good answer.

use std::{sync::Arc, time::Duration};

use pilothouse_core::key::TypeMeta;
use serde::Deserialize;

/// Why a request has no good answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The server does not serve the kind.
    #[error("the API server does not serve {0}")]
    Missing(TypeMeta),
    /// The kind lives in no namespace, and one was asked for.
    #[error(
        "{of} is cluster-scoped: there is nothing of it in namespace {namespace}; leave namespaces out of the watch and of the grant"
    )]
    Scope {
        /// The kind.
        of: TypeMeta,
        /// The namespace.
        namespace: String,
    },
    /// The server refused.
    #[error("{}", .0.message)]
    Status(Box<Status>),
    /// No answer came; a write may or may not have happened. The text names the whole chain of causes.
    #[error("no answer from the API server: {0}")]
    Unreachable(String),
    /// No such request can be written: names and selectors fill the path beyond what HTTP allows.
    #[error("the request's path is too long ({0} bytes)")]
    TooLong(usize),
    /// No such request can be written: the name would be read as something else than a name.
    #[error("no object or namespace can be named {0:?}")]
    Name(String),
    /// The body means something else as an apply, or cannot be sent as one.
    #[error("cannot send this as an apply: {0}")]
    Body(String),
    /// An answer came that is not what the API promises.
    #[error("the API server's answer for {path} cannot be read")]
    Answer {
        /// The path that was asked.
        path: String,
        /// What is wrong with it.
        #[source]
        source: Arc<serde_json::Error>,
    },
    /// The server serves the kind, and cannot tell of changes to it.
    #[error("{of} cannot be watched: the server offers {verbs}; read it by `client`, and name it in no watch")]
    Unwatchable {
        /// The kind.
        of: TypeMeta,
        /// What the server has for it.
        verbs: String,
    },
}

impl Error {
    /// How long the server asks to be left alone, if it does.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Status(status) => status.retry_after,
            _ => None,
        }
    }

    /// True where the server says that the object is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Status(status) if status.code == 404)
    }

    /// `true` if the server has something else than the request was meant for.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Error::Status(status) if status.code == 409)
    }
}

/// What the server said in place of success: the parts of a Kubernetes `Status` that somebody uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status.
    pub code: u16,
    /// `NotFound`, `Conflict`, ...; empty where the answer was no `Status`.
    pub reason: String,
    /// For people. Never empty.
    pub message: String,
    /// Field and message of each cause.
    pub causes: Vec<(String, String)>,
    /// The refusal names an object, of this kind or another. A 404 that names none may be about the path.
    pub names_object: bool,
    /// How long the server asks to be left alone.
    pub retry_after: Option<Duration>,
}

impl Status {
    /// Out of a refusal's body, which may be anything: proxies answer too.
    pub(super) fn from_answer(code: u16, body: &[u8]) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Wire {
            message: String,
            reason: String,
            details: Option<Details>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Details {
            name: String,
            causes: Vec<Cause>,
            retry_after_seconds: u64,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Cause {
            field: String,
            message: String,
        }
        let wire: Wire = serde_json::from_slice(body).unwrap_or_default();
        let details = wire.details.unwrap_or_default();
        let message = if wire.message.is_empty() {
            let text = String::from_utf8_lossy(body);
            let text: String = text.trim().chars().take(200).collect();
            let answer =
                http::StatusCode::from_u16(code).map_or_else(|_| code.to_string(), |status| status.to_string());
            if text.is_empty() { answer } else { format!("{answer}: {text}") }
        } else {
            wire.message
        };
        Self {
            code,
            reason: wire.reason,
            message,
            names_object: !details.name.is_empty(),
            causes: details.causes.into_iter().map(|cause| (cause.field, cause.message)).collect(),
            retry_after: (details.retry_after_seconds > 0).then(|| Duration::from_secs(details.retry_after_seconds)),
        }
    }
}

/// An error and its causes in one line, each said once.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // kube and hyper repeat their causes in their own messages.
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
