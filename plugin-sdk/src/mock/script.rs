//! The requests that a test expects from a plugin, and their results.

use serde_json::Value;

use crate::{
    Key, Object, TypeMeta, Verb,
    client::{Error, Subresource},
};

/// A request to the API server that the test expects from the plugin.
///
/// By default, it succeeds and takes effect on the mock's cluster. Use [`answer`](Self::answer) or [`fail`](Self::fail)
/// for another result. A JSON patch and a strategic merge patch need an answer.
///
/// ```
/// use k8s_openapi::api::core::v1::Secret;
/// use pilothouse_sdk::client::{self, Reason};
/// use pilothouse_sdk::mock::{Expected, MockHost};
/// use pilothouse_sdk::prelude::*;
///
/// fn reconcile(ctx: &Context, secret: &Secret) -> Result<Outcome, Error> {
///     ctx.client().delete::<Secret>(secret.key())?;
///     Ok(Outcome::new())
/// }
///
/// fn plugin() -> Plugin {
///     let controller = Controller::of::<Secret>().reconcile(reconcile);
///     let permission = Permission::of::<Secret>().verbs([Verb::Delete]);
///     Plugin::new("Deletes every Secret.").controller(controller).permission(permission)
/// }
///
/// let mut secret = Secret::default();
/// secret.metadata.name = Some("token".into());
/// secret.metadata.namespace = Some("default".into());
///
/// let mut host = MockHost::new(plugin).with(secret);
/// let busy = client::Error::api(503, Reason::ServiceUnavailable, "try later");
/// host.expect(Expected::delete::<Secret>(("default", "token")).fail(busy));
/// host.expect(Expected::delete::<Secret>(("default", "token")));
///
/// assert!(host.reconcile(("default", "token")).is_err());
/// assert!(host.reconcile(("default", "token")).is_ok());
/// assert!(host.list::<Secret>().is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct Expected {
    pub(super) request: Request,
    pub(super) ending: Ending,
}

/// The part that is compared with the plugin's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) of: TypeMeta,
    pub(super) key: Key,
    pub(super) subresource: Option<Subresource>,
}

#[derive(Clone, Debug)]
pub(super) enum Ending {
    Effect,
    Answer(String),
    Failure(Error),
}

impl Expected {
    /// Expects `client.get`.
    pub fn get<K: Object>(key: impl Into<Key>) -> Self {
        Self::new::<K>(Verb::Read, key)
    }

    /// Expects one page of `client.list`, in a namespace, or in all if it is `None`. It has all objects that the request
    /// selects, or those of [`answer_all`](Self::answer_all).
    pub fn list<K: Object>(namespace: Option<&str>) -> Self {
        Self::new::<K>(Verb::Read, Key { namespace: namespace.map(ToOwned::to_owned), name: String::new() })
    }

    /// Expects `client.evict`. The Pod is deleted, and no budget is considered.
    pub fn evict(pod: impl Into<Key>) -> Self {
        Self::of_pod(Verb::Create, pod, Subresource::Eviction)
    }

    /// Expects `client.logs`. The log is empty, or that of [`text`](Self::text).
    pub fn logs(pod: impl Into<Key>) -> Self {
        Self::of_pod(Verb::Read, pod, Subresource::Log)
    }

    /// Expects `client.create`. For an object without a name, the name in `key` is its `generateName`, or empty. A kind
    /// without names, such as `SelfSubjectAccessReview`, needs an [`answer`](Self::answer).
    pub fn create<K: Object>(key: impl Into<Key>) -> Self {
        Self::new::<K>(Verb::Create, key)
    }

    /// Expects `client.update`.
    pub fn update<K: Object>(key: impl Into<Key>) -> Self {
        Self::new::<K>(Verb::Update, key)
    }

    /// Expects `client.patch`.
    pub fn patch<K: Object>(key: impl Into<Key>) -> Self {
        Self::new::<K>(Verb::Patch, key)
    }

    /// Expects `client.apply`, with or without force.
    pub fn apply<K: Object>(key: impl Into<Key>) -> Self {
        Self::new::<K>(Verb::Apply, key)
    }

    /// Expects `client.delete`.
    pub fn delete<K: Object>(key: impl Into<Key>) -> Self {
        Self::new::<K>(Verb::Delete, key)
    }

    fn new<K: Object>(verb: Verb, key: impl Into<Key>) -> Self {
        let request = Request { verb, of: K::type_meta(), key: key.into(), subresource: None };
        Self { request, ending: Ending::Effect }
    }

    fn of_pod(verb: Verb, pod: impl Into<Key>, subresource: Subresource) -> Self {
        let of = TypeMeta::new("v1", "Pod");
        let request = Request { verb, of, key: pod.into(), subresource: Some(subresource) };
        Self { request, ending: Ending::Effect }
    }

    /// Expects it for the subresource `status`.
    #[must_use]
    pub fn status(mut self) -> Self {
        self.request.subresource = Some(Subresource::Status);
        self
    }

    /// Expects it for the subresource `scale`.
    #[must_use]
    pub fn scale(mut self) -> Self {
        self.request.subresource = Some(Subresource::Scale);
        self
    }

    /// Expects it for another subresource.
    #[must_use]
    pub fn subresource(mut self, subresource: Subresource) -> Self {
        self.request.subresource = Some(subresource);
        self
    }

    /// Makes a list succeed with these objects, as its last page.
    ///
    /// # Panics
    /// Panics if an object cannot be serialized.
    #[must_use]
    #[track_caller]
    pub fn answer_all(mut self, objects: impl IntoIterator<Item = impl Object>) -> Self {
        let objects = objects.into_iter().map(|object| object.to_json().expect("the object can be JSON"));
        let objects: Vec<Value> = objects.map(|text| serde_json::from_str(&text).expect("it is JSON")).collect();
        self.ending = Ending::Answer(Value::from(objects).to_string());
        self
    }

    /// Makes `client.logs` succeed with this text.
    #[must_use]
    pub fn text(mut self, log: impl Into<String>) -> Self {
        self.ending = Ending::Answer(Value::from(log.into()).to_string());
        self
    }

    /// Makes the request succeed with this object. A write puts it into the cluster.
    ///
    /// # Panics
    /// Panics if the object cannot be serialized.
    #[must_use]
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "an answer is built where it is passed")]
    pub fn answer(mut self, object: impl Object) -> Self {
        self.ending = Ending::Answer(object.to_json().expect("the object can be JSON"));
        self
    }

    /// Makes the request fail with this error.
    #[must_use]
    pub fn fail(mut self, error: Error) -> Self {
        self.ending = Ending::Failure(error);
        self
    }
}

/// A request that the plugin sent to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The kind of request. `read` is `client.get`, `client.list` or `client.logs`. `create` of the subresource `eviction`
    /// is `client.evict`.
    pub verb: Verb,
    /// The kind of the object.
    pub of: TypeMeta,
    /// The key of the object. The name is empty for a list.
    pub key: Key,
    /// The part of the object.
    pub subresource: Option<Subresource>,
    /// The object or the patch. Null for `read` and `delete`.
    pub body: Value,
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}{} {}", verb(self.verb), self.of, part(self.subresource), self.key)
    }
}

/// Returns the text of a subresource behind its kind, as in `Pod/status`.
pub(super) fn part(subresource: Option<Subresource>) -> &'static str {
    match subresource {
        None => "",
        Some(Subresource::Status) => "/status",
        Some(Subresource::Scale) => "/scale",
        Some(Subresource::Eviction) => "/eviction",
        Some(Subresource::Log) => "/log",
        Some(Subresource::Approval) => "/approval",
        Some(Subresource::EphemeralContainers) => "/ephemeralcontainers",
        Some(Subresource::Resize) => "/resize",
    }
}

/// Returns a verb's name in the contract.
pub(super) fn verb(verb: Verb) -> &'static str {
    match verb {
        Verb::Read => "read",
        Verb::Create => "create",
        Verb::Update => "update",
        Verb::Patch => "patch",
        Verb::Apply => "apply",
        Verb::Delete => "delete",
    }
}
