//! Why something that a reconcile wants was not written.

use pilothouse_core::{
    ParseError,
    field::FieldPath,
    grant::Denied,
    key::{Key, TypeMeta},
};

use super::fence::Closed;
use crate::{causes::with_causes, cluster, informer::Lapse};

/// Why something that a reconcile wants was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The grants do not allow it.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The plugin may begin no write.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The plugin returned an invalid child.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// An object of that name exists, and is not this object's child.
    #[error("{of} {key} exists already and {why}")]
    Taken {
        /// The child's kind.
        of: TypeMeta,
        /// The child's key.
        key: Key,
        /// Whose it is, and what would help.
        why: String,
    },
    /// A child that the cache does not show is being deleted, so nothing can be applied to it.
    #[error("{of} {key} is being deleted, and the cache does not show it yet; it is tried again")]
    Ending {
        /// The child's kind.
        of: TypeMeta,
        /// The child's key.
        key: Key,
    },
    /// The watch of an owned kind is down, so nothing of that kind is deleted.
    #[error("cannot tell which children of {of} exist: the watch {lapse}")]
    Unknown {
        /// The children's kind.
        of: TypeMeta,
        /// Since when, and why.
        lapse: Lapse,
    },
    /// The watch of the owner's kind is down, and children would have to be deleted.
    #[error("cannot tell which children {of} {key} still needs: the watch of {of} {lapse}")]
    OldOwner {
        /// The owner's kind.
        of: TypeMeta,
        /// The owner's key.
        key: Key,
        /// Since when, and why.
        lapse: Lapse,
    },
    /// The API server rejected the request, or did not answer.
    #[error("cannot {verb} {of} {key}: {source}", source = with_reason(source))]
    Request {
        /// The verb.
        verb: &'static str,
        /// The kind.
        of: TypeMeta,
        /// The key.
        key: Key,
        /// The API server's refusal, or why it did not answer.
        source: cluster::Error,
    },
    /// The API server does not allow a change of the child.
    #[error(
        "cannot change {of} {key}: {source}; a field is immutable: return the child with `replace`, so that the host deletes it and \
         creates it again, or give it another name", source = with_reason(source)
    )]
    Immutable {
        /// The child's kind.
        of: TypeMeta,
        /// The child's key.
        key: Key,
        /// The API server's refusal.
        source: cluster::Error,
    },
    /// The cache does not hold that part of the status.
    #[error(
        "cannot tell whether the status of {of} {key} differs: {path} is left out of the cache; keep it in the watch (to go without \
         the spec, name `spec` in `without`), or write it by `client`"
    )]
    LeftOut {
        /// The kind.
        of: TypeMeta,
        /// The key.
        key: Key,
        /// The member of the status that is left out, in whole or in part.
        path: FieldPath,
    },
    /// The status is not a JSON object.
    #[error("the status is not a JSON object: {0}")]
    Status(String),
    /// The cache has the object, and the server does not find its status.
    #[error(
        "cannot write the status of {of} {key}: the API server does not find it; if the object is there, its kind has no status \
         subresource, and the CustomResourceDefinition needs `subresources: {{ status: {{}} }}`"
    )]
    NoStatus {
        /// The kind.
        of: TypeMeta,
        /// The key.
        key: Key,
    },
    /// The write succeeded, and the server's answer cannot be read.
    #[error("{of} {key} was written, and the API server's answer cannot be read: {why}")]
    Answer {
        /// The kind.
        of: TypeMeta,
        /// The key.
        key: Key,
        /// What is wrong with the answer.
        why: ParseError,
    },
    /// The server's answer to a read cannot be read.
    #[error("cannot read {of} {key}: {why}")]
    Unreadable {
        /// The kind.
        of: TypeMeta,
        /// The key.
        key: Key,
        /// What is wrong with the answer.
        why: ParseError,
    },
}

/// Why a returned child is invalid. It is the plugin's mistake.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("child {at} is not a JSON object: {why}")]
    Json { at: usize, why: String },
    #[error("child {at} has no {member}")]
    Without { at: usize, member: &'static str },
    #[error("child {at} is of kind {of}, which the controller does not own; it owns {owned}")]
    NotOwned { at: usize, of: TypeMeta, owned: String },
    #[error("child {of} {name} is meant for {asked}, but a child must be in its owner's namespace {namespace}")]
    OtherNamespace { of: TypeMeta, name: String, asked: String, namespace: String },
    #[error("child {of} {name} has no namespace, and its owner has none to lend")]
    NoNamespace { of: TypeMeta, name: String },
    #[error("child {of} {name} is cluster-scoped: an owner in a namespace cannot hold it")]
    ClusterScoped { of: TypeMeta, name: String },
    #[error("child {of} {key} is named twice")]
    Twice { of: TypeMeta, key: Key },
    #[error("child {of} {key} names another controlling owner")]
    OtherController { of: TypeMeta, key: Key },
    #[error("child {of} {key} would not be seen: what the controller owns there is watched where {watched}")]
    Unwatched { of: TypeMeta, key: Key, watched: String },
}

/// The server's message with its reason.
pub(super) fn with_reason(error: &cluster::Error) -> String {
    match error {
        cluster::Error::Status(status) if !status.reason.is_empty() => {
            format!("{} ({})", status.message, status.reason)
        }
        other => with_causes(other),
    }
}
