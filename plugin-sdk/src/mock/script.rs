//! The requests that a test expects of a plugin, and how they end.

use serde_json::Value;

use crate::{
    Key, Object, TypeMeta, Verb,
    client::{Error, Subresource},
};

/// A request that the plugin is expected to make of the API server.
///
/// Without [`answer`](Self::answer) and [`fail`](Self::fail) it succeeds and has its effect on the mock's cluster. A JSON
/// patch and a strategic merge patch need an answer.
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

/// What is compared with the plugin's request.
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
    /// `client.get`.
    pub fn get<K: Object>(key: impl Into<Key>) -> Self {
        Self::new::<K>(Verb::Read, key)
    }

    /// `client.create`. An object without a name has its `generateName` as the name in its key.
    pub fn create<K: Object>(key: impl Into<Key>) -> Self {
        Self::new::<K>(Verb::Create, key)
    }

    /// `client.update`.
    pub fn update<K: Object>(key: impl Into<Key>) -> Self {
        Self::new::<K>(Verb::Update, key)
    }

    /// `client.patch`.
    pub fn patch<K: Object>(key: impl Into<Key>) -> Self {
        Self::new::<K>(Verb::Patch, key)
    }

    /// `client.apply`, by force or not.
    pub fn apply<K: Object>(key: impl Into<Key>) -> Self {
        Self::new::<K>(Verb::Apply, key)
    }

    /// `client.delete`.
    pub fn delete<K: Object>(key: impl Into<Key>) -> Self {
        Self::new::<K>(Verb::Delete, key)
    }

    fn new<K: Object>(verb: Verb, key: impl Into<Key>) -> Self {
        let request = Request { verb, of: K::type_meta(), key: key.into(), subresource: None };
        Self { request, ending: Ending::Effect }
    }

    /// Of the status.
    #[must_use]
    pub fn status(mut self) -> Self {
        self.request.subresource = Some(Subresource::Status);
        self
    }

    /// Of the scale.
    #[must_use]
    pub fn scale(mut self) -> Self {
        self.request.subresource = Some(Subresource::Scale);
        self
    }

    /// It succeeds with this object, which a write puts into the cluster.
    ///
    /// # Panics
    /// Where the object cannot be JSON.
    #[must_use]
    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "an answer is made where it is scripted")]
    pub fn answer(mut self, object: impl Object) -> Self {
        self.ending = Ending::Answer(object.to_json().expect("the object can be JSON"));
        self
    }

    /// It fails so.
    #[must_use]
    pub fn fail(mut self, error: Error) -> Self {
        self.ending = Ending::Failure(error);
        self
    }
}

/// A request that the plugin made of the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Which request: `read` is `client.get`.
    pub verb: Verb,
    /// Of which kind.
    pub of: TypeMeta,
    /// Of which object.
    pub key: Key,
    /// Of which part of it.
    pub subresource: Option<Subresource>,
    /// The object or the patch; null for `read` and `delete`.
    pub body: Value,
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = match self.subresource {
            None => "",
            Some(Subresource::Status) => "/status",
            Some(Subresource::Scale) => "/scale",
        };
        write!(f, "{} of {}{part} {}", verb(self.verb), self.of, self.key)
    }
}

/// A verb as the contract writes it.
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
