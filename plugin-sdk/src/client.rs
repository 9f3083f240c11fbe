//! Typed requests to the API server in the plugin's name.
//!
//! When a write returns, its result is already in the cache. Prefer an [`Outcome`](crate::Outcome), which needs no
//! requests and can be tested with a table. Use the client for what an outcome cannot express.

mod batch;
mod list;

use std::{marker::PhantomData, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::{
    batch::Call,
    list::{List, Pages},
};
pub use crate::contract::pilothouse::plugin::{
    client::{Preconditions, Propagation, Reason, StatusError},
    types::Subresource,
};
use crate::{Key, Object, contract::pilothouse::plugin::client as wire, host};

host::interface!(client {
    fn get(of: &TypeMeta, key: &Key, subresource: Option<Subresource>) -> Result<String, Error>;
    fn list(query: &ListQuery) -> Result<Page, Error>;
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
    fn evict(eviction: &Eviction) -> Result<(), Error>;
    fn logs(pod: &Key, query: &LogQuery) -> Result<String, Error>;
    fn send(calls: &[Call]) -> Vec<Result<String, Error>>;
});

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not in the manifest's permissions, or not granted by the administrator. No request was sent.
    #[error("{0}")]
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

    /// Returns `true` if the API server asks to wait: it is busy, or a PodDisruptionBudget does not allow an eviction.
    pub fn is_too_many_requests(&self) -> bool {
        self.reason() == Some(Reason::TooManyRequests)
    }

    /// Returns `true` if a list took so long that its next page is no longer there. Begin the list anew.
    pub fn is_gone(&self) -> bool {
        self.reason() == Some(Reason::Gone)
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

    /// Returns a client whose [`get`](Self::get) reads the status, and whose [`update`](Self::update),
    /// [`patch`](Self::patch) and [`apply`](Self::apply) write it.
    #[must_use]
    pub fn status(self) -> Self {
        Self { subresource: Some(Subresource::Status), ..self }
    }

    /// Returns a client for another subresource, such as `approval`, as [`status`](Self::status) does for the status.
    #[must_use]
    pub fn subresource(self, subresource: Subresource) -> Self {
        Self { subresource: Some(subresource), ..self }
    }

    /// Reads an object from the API server, past the cache.
    pub fn get<K: Object>(&self, key: impl Into<Key>) -> Result<K, Error> {
        decode(&import::get(&K::type_meta(), &key.into(), self.subresource)?)
    }

    /// Lists the objects of a kind in every namespace from the API server, past the cache. The methods of [`List`]
    /// select fewer. Needs the permission to read all names of the kind.
    ///
    /// Fetches one page after the other during iteration. Ends after the first error. Prefer
    /// [`Cache::list`](crate::cache::Cache::list) for kinds that are read often.
    ///
    /// ```
    /// use k8s_openapi::api::batch::v1::Job;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// fn count(ctx: &Context) -> Result<usize, Error> {
    ///     let mut count = 0;
    ///     for job in ctx.client().list::<Job>().beside(ctx.key()).labels("app=web") {
    ///         count += usize::from(job?.spec.is_some());
    ///     }
    ///     Ok(count)
    /// }
    /// ```
    pub fn list<K: Object>(&self) -> List<'a, K> {
        List::new()
    }

    /// Sends several requests at once. Returns their answers in the same order.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use pilothouse_sdk::{client::Call, prelude::*};
    ///
    /// /// Reads the first three Pods of a StatefulSet.
    /// fn pods(ctx: &Context) -> Result<Vec<Pod>, Error> {
    ///     let keys = (0..3).map(|number| ctx.key().beside(format!("{}-{number}", ctx.key().name)));
    ///     let pods: Result<_, _> = ctx.client().all(keys.map(Call::get)).into_iter().collect();
    ///     Ok(pods?)
    /// }
    /// ```
    pub fn all<T>(&self, calls: impl IntoIterator<Item = Call<T>>) -> Vec<Result<T, Error>> {
        batch::all(calls)
    }

    /// Creates an object. `metadata.name` may be absent if `metadata.generateName` is there, or for a kind that the
    /// server answers and does not store.
    ///
    /// ```
    /// use k8s_openapi::api::authorization::v1::{
    ///     ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
    /// };
    /// use pilothouse_sdk::prelude::*;
    ///
    /// /// Returns `true` if the host's account may list Nodes.
    /// fn may_list_nodes(ctx: &Context) -> Result<bool, Error> {
    ///     let attributes = ResourceAttributes {
    ///         resource: Some("nodes".into()),
    ///         verb: Some("list".into()),
    ///         ..ResourceAttributes::default()
    ///     };
    ///     let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    ///     let review = SelfSubjectAccessReview { spec, ..Default::default() };
    ///     Ok(ctx.client().create(&review)?.status.is_some_and(|status| status.allowed))
    /// }
    /// ```
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

    /// Reads the number of replicas through the subresource `scale`. Needs the permission to read it.
    pub fn get_scale<K: Object>(&self, key: impl Into<Key>) -> Result<Scale, Error> {
        let scale: WireScale =
            decode_as(&import::get(&K::type_meta(), &key.into(), Some(Subresource::Scale))?, || {
                "autoscaling/v1 Scale".to_owned()
            })?;
        let WireScale { spec, status } = scale;
        Ok(Scale { desired: spec.replicas, actual: status.replicas, selector: status.selector })
    }

    /// Evicts a Pod, if its PodDisruptionBudgets allow it. Otherwise fails with an error that
    /// [`is_too_many_requests`](Error::is_too_many_requests).
    ///
    /// Needs the permission to create the subresource `eviction`.
    pub fn evict(&self, pod: impl Into<Key>) -> Result<(), Error> {
        self.evict_if(pod, None, &Preconditions { uid: None, resource_version: None })
    }

    /// Evicts a Pod if `preconditions` hold. `grace` is counted in whole seconds. `None` leaves it to the Pod.
    pub fn evict_if(
        &self,
        pod: impl Into<Key>,
        grace: Option<Duration>,
        preconditions: &Preconditions,
    ) -> Result<(), Error> {
        let grace_period_seconds = grace.map(|grace| u32::try_from(grace.as_secs()).unwrap_or(u32::MAX));
        let preconditions = preconditions.clone();
        Ok(import::evict(&wire::Eviction { pod: pod.into(), grace_period_seconds, preconditions })?)
    }

    /// Reads the log of a Pod's container. The methods of [`Logs`] select lines.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use pilothouse_sdk::prelude::*;
    ///
    /// fn last_words(ctx: &Context, pod: &Pod) -> Result<String, Error> {
    ///     Ok(ctx.client().logs(pod.key()).previous().tail(10).read()?)
    /// }
    /// ```
    pub fn logs(&self, pod: impl Into<Key>) -> Logs<'a> {
        let query = wire::LogQuery {
            container: None,
            previous: false,
            since_seconds: None,
            tail_lines: None,
            timestamps: false,
        };
        Logs { pod: pod.into(), query, call: PhantomData }
    }

    /// Sets the number of replicas through the subresource `scale`.
    pub fn scale<K: Object>(&self, key: impl Into<Key>, replicas: u32) -> Result<(), Error> {
        let patch = wire::PatchBody::Merge(format!(r#"{{"spec":{{"replicas":{replicas}}}}}"#));
        import::patch(&K::type_meta(), &key.into(), &patch, Some(Subresource::Scale))?;
        Ok(())
    }
}

/// The replicas of an object, from [`Client::get_scale`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    /// The desired number.
    pub desired: u32,
    /// The number that exists.
    pub actual: u32,
    /// The label selector of the replicas, if the kind has one.
    pub selector: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireScale {
    spec: WireReplicas,
    status: WireReplicas,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireReplicas {
    replicas: u32,
    selector: Option<String>,
}

/// A log that has not been read yet, from [`Client::logs`].
#[derive(Clone, Debug)]
#[must_use = "nothing is read before `read`"]
pub struct Logs<'a> {
    pod: Key,
    query: wire::LogQuery,
    call: PhantomData<&'a ()>,
}

impl Logs<'_> {
    /// Names the container, for a Pod that has several.
    pub fn container(mut self, name: impl Into<String>) -> Self {
        self.query.container = Some(name.into());
        self
    }

    /// Reads the log of the container before its last restart.
    pub fn previous(mut self) -> Self {
        self.query.previous = true;
        self
    }

    /// Reads only lines that are this young. Counted in whole seconds, at least one.
    pub fn since(mut self, age: Duration) -> Self {
        self.query.since_seconds = Some(u32::try_from(age.as_secs().max(1)).unwrap_or(u32::MAX));
        self
    }

    /// Reads only this many lines, from the end.
    pub fn tail(mut self, lines: u32) -> Self {
        self.query.tail_lines = Some(lines);
        self
    }

    /// Begins each line with its time.
    pub fn timestamps(mut self) -> Self {
        self.query.timestamps = true;
        self
    }

    /// Reads the selected lines, at most their first MiB. Bytes that are not UTF-8 are replaced. Needs the permission
    /// to read the subresource `log`.
    ///
    /// # Errors
    /// Fails with [`Error`].
    pub fn read(self) -> Result<String, Error> {
        Ok(import::logs(&self.pod, &self.query)?)
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
    decode_as(answer, || K::type_meta().to_string())
}

fn decode_as<T: serde::de::DeserializeOwned>(answer: &str, kind: impl FnOnce() -> String) -> Result<T, Error> {
    serde_json::from_str(answer).map_err(|error| Error::Decode { kind: kind(), problem: error.to_string() })
}
