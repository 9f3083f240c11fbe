//! Calls of a plugin's webhooks.

use super::{Failure, MockHost};
use crate::{
    AnyObject, Decision, Operation, User,
    contract::{
        admitting::exports::pilothouse::plugin::admission as wire, exports::pilothouse::plugin::controller::WebhookType,
    },
};

/// The webhook of a plugin, as the API server calls it. Say what the request does.
#[must_use = "choose an operation, and run it"]
pub struct Review<'a> {
    host: &'a MockHost,
    of_type: WebhookType,
    webhook: String,
}

/// A request with an object of kind `K`, ready to be reviewed.
#[must_use = "call run or mutated"]
pub struct Reviewing<'a, K> {
    host: &'a MockHost,
    of_type: WebhookType,
    object: Option<K>,
    review: wire::Review,
}

impl<'a> Review<'a> {
    #[track_caller]
    pub(super) fn new(host: &'a MockHost, name: &str) -> Self {
        let webhook = host.manifest.webhooks.iter().find(|webhook| webhook.name == name);
        let Some(webhook) = webhook else { panic!("the plugin has no webhook {name:?}") };
        Self { host, of_type: webhook.of_type, webhook: name.to_owned() }
    }

    /// Creates an object.
    ///
    /// # Panics
    /// Panics if it cannot be serialized. So do the other operations.
    #[track_caller]
    pub fn create<K: AnyObject>(self, object: K) -> Reviewing<'a, K> {
        self.prepare(Operation::Create, None, Some(object))
    }

    /// Changes an object.
    ///
    /// # Panics
    /// Panics as [`create`](Self::create) does.
    #[track_caller]
    pub fn update<K: AnyObject>(self, old: &K, object: K) -> Reviewing<'a, K> {
        self.prepare(Operation::Update, Some(old), Some(object))
    }

    /// Deletes an object.
    ///
    /// # Panics
    /// Panics as [`create`](Self::create) does.
    #[track_caller]
    pub fn delete<K: AnyObject>(self, old: &K) -> Reviewing<'a, K> {
        self.prepare(Operation::Delete, Some(old), None)
    }

    #[track_caller]
    fn prepare<K: AnyObject>(self, operation: Operation, old: Option<&K>, object: Option<K>) -> Reviewing<'a, K> {
        let text = |object: &K| object.text_of().expect("the object can be JSON");
        let about = object.as_ref().or(old).expect("a request is about an object");
        let (of, key) = (about.kind_of(), about.key_of());
        let review = wire::Review {
            webhook: self.webhook,
            operation,
            of,
            key,
            subresource: None,
            object: object.as_ref().map(text),
            old: old.map(text),
            user: User { name: "tester".to_owned(), uid: String::new(), groups: Vec::new() },
            dry_run: false,
        };
        Reviewing { host: self.host, of_type: self.of_type, object, review }
    }
}

impl<K: AnyObject> Reviewing<'_, K> {
    /// Sends the request as this user. The default is `tester`, in no group.
    pub fn user(mut self, name: impl Into<String>, groups: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.review.user.name = name.into();
        self.review.user.groups = groups.into_iter().map(Into::into).collect();
        self
    }

    /// Makes it a request for a subresource.
    pub fn subresource(mut self, subresource: impl Into<String>) -> Self {
        self.review.subresource = Some(subresource.into());
        self
    }

    /// Makes it a dry run.
    pub fn dry_run(mut self) -> Self {
        self.review.dry_run = true;
        self
    }

    /// Calls the webhook, and returns its decision.
    ///
    /// # Errors
    /// Fails if the handler fails.
    pub fn run(self) -> Result<Decision, Failure> {
        self.call().map(|(decision, _)| decision)
    }

    /// Calls a mutating webhook, and returns the object as the API server would store it.
    ///
    /// # Errors
    /// Fails if the handler fails.
    ///
    /// # Panics
    /// Panics if the request is denied, has no object, or the webhook does not mutate.
    #[track_caller]
    pub fn mutated(self) -> Result<K, Failure> {
        assert_eq!(self.of_type, WebhookType::Mutating, "only a mutating webhook changes objects");
        let (decision, object) = self.call()?;
        if let Some(why) = decision.denied() {
            panic!("the request is denied: {why}");
        }
        Ok(object.expect("the request has an object"))
    }

    #[track_caller]
    fn call(self) -> Result<(Decision, Option<K>), Failure> {
        let Self { host, object, review, .. } = self;
        let (decision, changed) = host.world.serve(|| (host.exported.review)(review)).map_err(Failure::retry)?;
        if let Err(problem) = super::bounds::decision(&decision) {
            panic!("the host rejects this decision: {problem}");
        }
        let changed = changed.map(|text| serde_json::from_str(&text).expect("the changed object fits its type"));
        Ok((Decision(decision), changed.or(object)))
    }
}

impl std::fmt::Debug for Review<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Review").field("webhook", &self.webhook).finish_non_exhaustive()
    }
}

impl<K> std::fmt::Debug for Reviewing<'_, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviewing").field("review", &self.review).finish_non_exhaustive()
    }
}
