//! Typed requests to the API server in the plugin's name.
//!
//! When a write returns, its result is already in the cache. Prefer an [`Outcome`](crate::Outcome), which needs no
//! requests and can be tested with a table. Use the client for what an outcome cannot express.

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

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not in the manifest's permissions, or not granted by the administrator. No request was sent.
    #[error("the request is not granted: {0}")]
    NotGranted(String),
    /// The object or patch is not valid. No request was sent.
    #[error("the request is not valid: {0}")]
    Invalid(String),
    /// The API server rejected the request.
    #[error("the API server rejected the request ({} {}): {}", .0.code, .0.reason, .0.message)]
    Api(StatusError),
    /// No answer arrived. A write may or may not have happened.
    #[error("the API server did not answer: {0}")]
    Unreachable(String),
    /// The answer cannot be decoded as the requested type. If the request was a write, it happened.
    #[error("cannot decode the API server's {kind}: {problem}")]
    Decode {
        /// The kind of the answer.
        kind: String,
        /// Where and why.
        problem: String,
    },
}

impl Error {
    /// Creates the error that the API server returns for a reason, for scripted answers in tests. `code` is the HTTP
    /// status code.
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

    /// Returns `true` if the object or its kind does not exist.
    pub fn is_not_found(&self) -> bool {
        self.reason() == Some(Reason::NotFound)
    }

    /// Returns `true` if another writer was first: the `resourceVersion` is outdated, or another field manager owns a
    /// field.
    pub fn is_conflict(&self) -> bool {
        self.reason() == Some(Reason::Conflict)
    }

    /// Returns `true` if an object of this name already exists.
    pub fn is_already_exists(&self) -> bool {
        self.reason() == Some(Reason::AlreadyExists)
    }

    /// Returns the API server's reason. `None` if the error does not come from the API server.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Api(status) => Some(status.reason),
            _ => None,
        }
    }
}

/// Writes the reason as a Kubernetes `Status` does.
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

/// A change to an object.
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
    /// Creates a JSON patch (RFC 6902): a list of operations.
    ///
    /// # Errors
    /// Fails if `patch` cannot be serialized.
    pub fn json(patch: impl Serialize) -> serde_json::Result<Self> {
        Ok(Self(wire::PatchBody::Json(serde_json::to_string(&patch)?)))
    }

    /// Creates a JSON merge patch (RFC 7396): an object of changed fields, with null for a removed field.
    ///
    /// # Errors
    /// Fails if `patch` cannot be serialized.
    pub fn merge(patch: impl Serialize) -> serde_json::Result<Self> {
        Ok(Self(wire::PatchBody::Merge(serde_json::to_string(&patch)?)))
    }

    /// Creates a strategic merge patch, for built-in kinds: lists are merged by their keys.
    ///
    /// # Errors
    /// Fails if `patch` cannot be serialized.
    pub fn strategic(patch: impl Serialize) -> serde_json::Result<Self> {
        Ok(Self(wire::PatchBody::StrategicMerge(serde_json::to_string(&patch)?)))
    }
}

/// The API server, during one call: see [`Context::client`](crate::Context::client).
///
/// ```
/// use k8s_openapi::api::core::v1::Secret;
/// use pilothouse_sdk::prelude::*;
///
/// /// Creates a Secret unless it exists.
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
/// Without this permission, a write returns only the apiVersion, the kind, and part of the metadata: name, namespace,
/// uid, resourceVersion, generation, creation and deletion time. If that cannot be decoded as `K`, `create`, `update`
/// and `apply` return the object that was sent, with this metadata.
///
/// # Errors
/// All methods fail with [`Error`]. Methods that send an object fail with [`Error::Invalid`] if it cannot be
/// serialized.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    subresource: Option<Subresource>,
    call: PhantomData<&'a ()>,
}

impl<'a> Client<'a> {
    pub(crate) fn new() -> Self {
        Self { subresource: None, call: PhantomData }
    }

    /// Returns a client whose [`update`](Self::update), [`patch`](Self::patch) and [`apply`](Self::apply) write the
    /// status.
    #[must_use]
    pub fn status(self) -> Self {
        Self { subresource: Some(Subresource::Status), ..self }
    }

    /// Reads an object from the API server, past the cache.
    pub fn get<K: Object>(&self, key: impl Into<Key>) -> Result<K, Error> {
        decode(&import::get(&K::type_meta(), &key.into())?)
    }

    /// Creates an object. `metadata.name` may be absent if `metadata.generateName` is there.
    pub fn create<K: Object>(&self, object: &K) -> Result<K, Error> {
        let sent = encode(object)?;
        decode_written(&import::create(&sent)?, &sent)
    }

    /// Replaces an object. If it has a `resourceVersion`, that must be the current one. Without it, the last writer
    /// wins.
    pub fn update<K: Object>(&self, object: &K) -> Result<K, Error> {
        let sent = encode(object)?;
        decode_written(&import::update(&sent, self.subresource)?, &sent)
    }

    /// Patches an object. Without the permission to read, this fails for a type with required fields beside the
    /// metadata.
    pub fn patch<K: Object>(&self, key: impl Into<Key>, patch: &Patch) -> Result<K, Error> {
        decode(&import::patch(&K::type_meta(), &key.into(), &patch.0, self.subresource)?)
    }

    /// Applies an object by server-side apply. A field that another manager owns with another value is a conflict.
    pub fn apply<K: Object>(&self, object: &K) -> Result<K, Error> {
        let sent = encode(object)?;
        decode_written(&import::apply(&sent, self.subresource, false)?, &sent)
    }

    /// Applies an object by server-side apply, and takes over fields from other managers.
    pub fn force_apply<K: Object>(&self, object: &K) -> Result<K, Error> {
        let sent = encode(object)?;
        decode_written(&import::apply(&sent, self.subresource, true)?, &sent)
    }

    /// Deletes an object. Its dependents are deleted in the background. Succeeds if the object is gone, or waits for
    /// its finalizers.
    pub fn delete<K: Object>(&self, key: impl Into<Key>) -> Result<(), Error> {
        let anything = Preconditions { uid: None, resource_version: None };
        self.delete_if::<K>(key, Propagation::Background, &anything)
    }

    /// Deletes an object if `preconditions` hold.
    pub fn delete_if<K: Object>(
        &self,
        key: impl Into<Key>,
        propagation: Propagation,
        preconditions: &Preconditions,
    ) -> Result<(), Error> {
        Ok(import::delete(&K::type_meta(), &key.into(), propagation, preconditions)?)
    }

    /// Sets the number of replicas through the subresource `scale`.
    pub fn scale<K: Object>(&self, key: impl Into<Key>, replicas: u32) -> Result<(), Error> {
        let patch = wire::PatchBody::Merge(format!(r#"{{"spec":{{"replicas":{replicas}}}}}"#));
        import::patch(&K::type_meta(), &key.into(), &patch, Some(Subresource::Scale))?;
        Ok(())
    }
}

fn encode<K: Object>(object: &K) -> Result<String, Error> {
    let invalid = |error| Error::Invalid(format!("cannot serialize {} {}: {error}", K::type_meta(), object.key()));
    object.to_json().map_err(invalid)
}

/// Decodes the answer to a write of `sent`. The answer may hold only the object's identity.
fn decode_written<K: Object>(answer: &str, sent: &str) -> Result<K, Error> {
    decode(answer).or_else(|error| {
        let merged = || {
            let (mut whole, answer) =
                (serde_json::from_str::<Value>(sent).ok()?, serde_json::from_str::<Value>(answer).ok()?);
            let metadata = whole.get_mut("metadata")?.as_object_mut()?;
            metadata.extend(answer.get("metadata")?.as_object()?.clone());
            serde_json::from_value(whole).ok()
        };
        merged().ok_or(error)
    })
}

fn decode<K: Object>(answer: &str) -> Result<K, Error> {
    let unfit =
        |error: serde_json::Error| Error::Decode { kind: K::type_meta().to_string(), problem: error.to_string() };
    serde_json::from_str(answer).map_err(unfit)
}
