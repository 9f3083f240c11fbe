//! The errors of requests.

use std::{sync::Arc, time::Duration};

use pilothouse_core::key::TypeMeta;
use serde::Deserialize;

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The server does not serve the kind.
    #[error("the API server does not serve {0}")]
    Missing(TypeMeta),
    /// The kind is cluster-scoped, but a namespace was requested.
    #[error(
        "{of} is cluster-scoped, so namespace {namespace} has none of its objects; leave namespaces out of the watch and of the grant"
    )]
    Scope {
        /// The kind.
        of: TypeMeta,
        /// The namespace.
        namespace: String,
    },
    /// The server answered with an error.
    #[error("{}", .0.message)]
    Status(Box<Status>),
    /// This process may not act now. Nothing was sent.
    #[error("not sent: this process may not act now")]
    NotActing,
    /// No answer came. A write may or may not have happened. The text has the whole chain of causes.
    #[error("no answer from the API server: {0}")]
    Unreachable(String),
    /// There is no token of the plugin's service account. Nothing was sent as that account.
    #[error("cannot get a token of the service account {account}")]
    Token {
        /// The account.
        account: String,
        /// Why not.
        #[source]
        source: Box<Error>,
    },
    /// The request's path, with its names and selectors, is longer than HTTP allows.
    #[error("the request's path is too long ({0} bytes); use fewer or shorter selectors")]
    TooLong(usize),
    /// The answer is longer than the caller takes, in bytes. It was not read to its end.
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    /// The name cannot be a path segment, because the server would read it as something else.
    #[error("{0:?} is not a valid name for an object or a namespace")]
    Name(String),
    /// The body cannot be sent as an apply.
    #[error("cannot send this as an apply: {0}")]
    Body(String),
    /// The answer is not what the API promises.
    #[error("cannot read the API server's answer for {path}")]
    Answer {
        /// The path of the request.
        path: String,
        /// What is wrong with it.
        #[source]
        source: Arc<serde_json::Error>,
    },
    /// The server serves the kind without list and watch.
    #[error("{of} cannot be watched: the server offers only {verbs}; remove its watch and read it through `client`")]
    Unwatchable {
        /// The kind.
        of: TypeMeta,
        /// The verbs that the server offers.
        verbs: String,
    },
}

impl Error {
    /// The Retry-After of the server's answer, if any.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Status(status) => status.retry_after,
            _ => None,
        }
    }

    /// `true` if the server reports that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Status(status) if status.code == 404)
    }

    /// `true` if the server reports a conflict.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Error::Status(status) if status.code == 409)
    }
}

/// The used parts of a Kubernetes `Status`, the server's answer to a failed request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status.
    pub code: u16,
    /// `NotFound`, `Conflict`, ...; empty if the answer was not a `Status`.
    pub reason: String,
    /// The server's message, for people. Never empty.
    pub message: String,
    /// Field and message of each cause.
    pub causes: Vec<(String, String)>,
    /// `true` if the answer names an object, of this kind or another. A 404 that names none may be about the path.
    pub names_object: bool,
    /// The Retry-After of the answer, if any.
    pub retry_after: Option<Duration>,
}

impl Status {
    /// Parses the body of a failed answer. It may be anything, because proxies answer too.
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
