//! Typed requests to the API server in the plugin's name.
//!
//! What a write returns is in the cache before the call returns. The declarative way, [`Outcome`](crate::Outcome), needs
//! none of this and can be tested with a table: use the client for what it cannot say.

use std::marker::PhantomData;

use serde::Serialize;
use serde_json::Value;

pub use crate::contract::pilothouse::plugin::{
    client::{Preconditions, Propagation, Reason, StatusError},
    types::Subresource,
};
use crate::{Key, Object, contract::pilothouse::plugin::client as wire, host};

host::interface!(client {
    fn get(of: &TypeMeta, key: &Key) -> Result<String, Error>;
    fn create(object: &str) -> Result<String, Error>;
    fn update(object: &str, subresource: Option<Subresource>) -> Result<String, Error>;
    fn patch(of: &TypeMeta, key: &Key, body: &PatchBody, subresource: Option<Subresource>) -> Result<String, Error>;
    fn apply(object: &str, subresource: Option<Subresource>, force: bool) -> Result<String, Error>;
    fn delete(
        of: &TypeMeta,
        key: &Key,
        propagation: Propagation,
        preconditions: &Preconditions,
    ) -> Result<(), Error>;
});

/// Why a request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not in the manifest's permissions, or not granted by the administrator. No request was sent.
    #[error("the request is not granted: {0}")]
    NotGranted(String),
    /// The object or patch is none. No request was sent.
    #[error("the request makes no sense: {0}")]
    Invalid(String),
    /// The API server refused.
    #[error("the API server refused ({} {}): {}", .0.code, .0.reason, .0.message)]
    Api(StatusError),
    /// No answer came: a write may or may not have happened.
    #[error("the API server did not answer: {0}")]
    Unreachable(String),
    /// The answer is not of the type that was asked for. A write has happened.
    #[error("the API server's {kind} does not fit its type: {problem}")]
    Decode {
        /// The kind of the answer.
        kind: String,
        /// Where and why.
        problem: String,
    },
}

impl Error {
    /// What the API server answers for a reason, with the HTTP status code that belongs to it: for scripted answers in tests.
    ///
    /// ```
    /// use pilothouse_sdk::client::{Error, Reason};
    ///
    /// let error = Error::api(409, Reason::Conflict, "the object has been modified");
    /// assert!(error.is_conflict());
    /// ```
    pub fn api(code: u16, reason: Reason, message: impl Into<String>) -> Self {
        Self::Api(StatusError { code, reason, message: message.into(), causes: Vec::new() })
    }

    /// Whether there is no such object (or no such kind).
    pub fn is_not_found(&self) -> bool {
        self.reason() == Some(Reason::NotFound)
    }

    /// Whether another writer was first: a newer `resourceVersion`, or another field manager's field.
    pub fn is_conflict(&self) -> bool {
        self.reason() == Some(Reason::Conflict)
    }

    /// Whether an object of this name exists already.
    pub fn is_already_exists(&self) -> bool {
        self.reason() == Some(Reason::AlreadyExists)
    }

    /// The API server's reason, where it was the API server that refused.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Api(status) => Some(status.reason),
            _ => None,
        }
    }
}

/// As a Kubernetes `Status` writes it.
impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Gone => "Gone",
            Self::Invalid => "Invalid",
            Self::Timeout => "Timeout",
            Self::TooManyRequests => "TooManyRequests",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::InternalError => "InternalError",
            Self::Other => "Other",
        })
    }
}

impl From<wire::Error> for Error {
    fn from(error: wire::Error) -> Self {
        match error {
            wire::Error::NotGranted(why) => Self::NotGranted(why),
            wire::Error::Invalid(why) => Self::Invalid(why),
            wire::Error::Api(status) => Self::Api(status),
            wire::Error::Unreachable(why) => Self::Unreachable(why),
        }
    }
}

/// What changes in an object.
///
/// ```
/// use pilothouse_sdk::client::Patch;
/// use serde_json::json;
///
/// let patch = Patch::merge(json!({"spec": {"paused": true}})).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Patch(wire::PatchBody);

impl Patch {
    /// RFC 6902: a list of operations.
    ///
    /// # Errors
    /// Where `patch` cannot be JSON.
    pub fn json(patch: impl Serialize) -> serde_json::Result<Self> {
        Ok(Self(wire::PatchBody::Json(serde_json::to_string(&patch)?)))
    }

    /// RFC 7396: an object of what changes, with null for what goes.
    ///
    /// # Errors
    /// Where `patch` cannot be JSON.
    pub fn merge(patch: impl Serialize) -> serde_json::Result<Self> {
        Ok(Self(wire::PatchBody::Merge(serde_json::to_string(&patch)?)))
    }

    /// Kubernetes' own, for built-in kinds: lists merge by their keys.
    ///
    /// # Errors
    /// Where `patch` cannot be JSON.
    pub fn strategic(patch: impl Serialize) -> serde_json::Result<Self> {
        Ok(Self(wire::PatchBody::StrategicMerge(serde_json::to_string(&patch)?)))
    }
}

/// The API server, for the length of one call: see [`Context::client`](crate::Context::client).
///
/// ```
/// use k8s_openapi::api::core::v1::Secret;
/// use pilothouse_sdk::prelude::*;
///
/// /// Makes a Secret if there is none, and leaves one that is there alone.
/// fn ensure(ctx: &Context, secret: &Secret) -> Result<(), Error> {
///     match ctx.client().create(secret) {
///         Ok(_) => Ok(()),
///         Err(error) if error.is_already_exists() => Ok(()),
///         Err(error) => Err(error.into()),
///     }
/// }
/// ```
///
/// # Without the permission to read
/// A write answers with what identifies the object: apiVersion, kind, and of the metadata name, namespace, uid, resourceVersion, generation
/// and the times of creation and deletion. Where that alone is no `K`, create, update and apply return what was sent, with that metadata.
///
/// # Errors
/// All methods fail with [`Error`]; those that send an object with [`Error::Invalid`] where it cannot be JSON.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    subresource: Option<Subresource>,
    call: PhantomData<&'a ()>,
}

impl<'a> Client<'a> {
    pub(crate) fn new() -> Self {
        Self { subresource: None, call: PhantomData }
    }

    /// The same client, whose [`update`](Self::update), [`patch`](Self::patch) and [`apply`](Self::apply) go to the status.
    #[must_use]
    pub fn status(self) -> Self {
        Self { subresource: Some(Subresource::Status), ..self }
    }

    /// An object straight from the API server, past the cache.
    pub fn get<K: Object>(&self, key: impl Into<Key>) -> Result<K, Error> {
        decode(&import::get(&K::type_meta(), &key.into())?)
    }

    /// Makes an object. `metadata.name` may be absent where `metadata.generateName` is there.
    pub fn create<K: Object>(&self, object: &K) -> Result<K, Error> {
        let sent = encode(object)?;
        decode_written(&import::create(&sent)?, &sent)
    }

    /// Replaces an object. A `resourceVersion` in it must still be the current one; without it the last writer wins.
    pub fn update<K: Object>(&self, object: &K) -> Result<K, Error> {
        let sent = encode(object)?;
        decode_written(&import::update(&sent, self.subresource)?, &sent)
    }

    /// Changes an object. A kind with members that must be there cannot be decoded from the identity that a plugin is answered which may
    /// not read it.
    pub fn patch<K: Object>(&self, key: impl Into<Key>, patch: &Patch) -> Result<K, Error> {
        decode(&import::patch(&K::type_meta(), &key.into(), &patch.0, self.subresource)?)
    }

    /// Server-side apply. A field that another manager owns with another value is a conflict.
    pub fn apply<K: Object>(&self, object: &K) -> Result<K, Error> {
        let sent = encode(object)?;
        decode_written(&import::apply(&sent, self.subresource, false)?, &sent)
    }

    /// Server-side apply that takes fields over from other managers.
    pub fn force_apply<K: Object>(&self, object: &K) -> Result<K, Error> {
        let sent = encode(object)?;
        decode_written(&import::apply(&sent, self.subresource, true)?, &sent)
    }

    /// Deletes an object; its dependents follow in the background. Success where it is gone, or waits for its finalizers.
    pub fn delete<K: Object>(&self, key: impl Into<Key>) -> Result<(), Error> {
        let anything = Preconditions { uid: None, resource_version: None };
        self.delete_if::<K>(key, Propagation::Background, &anything)
    }

    /// Deletes an object, if it is the one that `preconditions` says.
    pub fn delete_if<K: Object>(
        &self,
        key: impl Into<Key>,
        propagation: Propagation,
        preconditions: &Preconditions,
    ) -> Result<(), Error> {
        Ok(import::delete(&K::type_meta(), &key.into(), propagation, preconditions)?)
    }

    /// Asks for so many replicas through the `scale` subresource, whatever field the kind keeps the number in.
    pub fn scale<K: Object>(&self, key: impl Into<Key>, replicas: u32) -> Result<(), Error> {
        let patch = wire::PatchBody::Merge(format!(r#"{{"spec":{{"replicas":{replicas}}}}}"#));
        import::patch(&K::type_meta(), &key.into(), &patch, Some(Subresource::Scale))?;
        Ok(())
    }
}

fn encode<K: Object>(object: &K) -> Result<String, Error> {
    let invalid = |error| Error::Invalid(format!("{} {} cannot be JSON: {error}", K::type_meta(), object.key()));
    object.to_json().map_err(invalid)
}

/// Decodes the answer to a write of `sent`, which may hold no more than what identifies the object.
fn decode_written<K: Object>(answer: &str, sent: &str) -> Result<K, Error> {
    decode(answer).or_else(|error| {
        let both = || {
            let (mut whole, answer) =
                (serde_json::from_str::<Value>(sent).ok()?, serde_json::from_str::<Value>(answer).ok()?);
            let metadata = whole.get_mut("metadata")?.as_object_mut()?;
            metadata.extend(answer.get("metadata")?.as_object()?.clone());
            serde_json::from_value(whole).ok()
        };
        both().ok_or(error)
    })
}

fn decode<K: Object>(answer: &str) -> Result<K, Error> {
    let unfit =
        |error: serde_json::Error| Error::Decode { kind: K::type_meta().to_string(), problem: error.to_string() };
    serde_json::from_str(answer).map_err(unfit)
}
