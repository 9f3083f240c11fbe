//! Webhooks: handlers that review requests to the API server before it stores their objects.

use std::marker::PhantomData;

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    AnyObject, Error, Key, Object, TypeMeta, Watch,
    cache::Cache,
    clock,
    contract::{
        admitting::exports::pilothouse::plugin::admission as wire,
        exports::pilothouse::plugin::controller::{self, FailurePolicy, WebhookRule, WebhookType},
    },
    permission::Permission,
    watch::Watched,
};

pub use crate::contract::pilothouse::plugin::types::Operation;

/// Which requests a handler reviews, and what it reads to answer.
///
/// By default, a webhook reviews creations and updates in every namespace. If the host does not answer within 10 s, the
/// API server denies the request.
///
/// ```
/// use k8s_openapi::api::core::v1::{ConfigMap, Pod};
/// use pilothouse_sdk::{Operation, Watch, Webhook};
///
/// Webhook::of::<Pod>("images")
///     .operations([Operation::Create])
///     .namespaces("team,!exempt")
///     .match_condition("runs-somewhere", "has(object.spec.nodeName)")
///     .timeout_seconds(5)
///     .ignore_failures()
///     .reads(Watch::of::<ConfigMap>().labels("policy=images"));
/// ```
#[derive(Debug)]
#[must_use = "a webhook does nothing by itself: give it to Plugin::validate or Plugin::mutate"]
pub struct Webhook<K> {
    wire: controller::Webhook,
    reads: Vec<Watched>,
    kind: PhantomData<fn() -> K>,
}

impl Webhook<()> {
    /// Reviews objects of kind `K`. `name` is unique within the plugin: at most 63 lower-case letters, digits and `-`.
    pub fn of<K: Object + kube::Resource<DynamicType = ()>>(name: impl Into<String>) -> Webhook<K> {
        Self::to(name, [K::group(&())], [K::version(&())], [K::plural(&())])
    }

    /// Reviews requests for these resources, which carry objects of kind `K`, or of any kind if `K` is
    /// [`Dynamic`](crate::Dynamic). `*` is allowed in each list.
    ///
    /// ```
    /// use k8s_openapi::api::policy::v1::Eviction;
    /// use pilothouse_sdk::{Dynamic, Webhook};
    ///
    /// Webhook::to::<Eviction>("evictions", [""], ["v1"], ["pods/eviction"]);
    /// Webhook::to::<Dynamic>("templates", ["apps", "batch"], ["v1"], ["deployments", "statefulsets", "jobs"]);
    /// ```
    pub fn to<K: AnyObject>(
        name: impl Into<String>,
        groups: impl IntoIterator<Item = impl Into<String>>,
        versions: impl IntoIterator<Item = impl Into<String>>,
        resources: impl IntoIterator<Item = impl Into<String>>,
    ) -> Webhook<K> {
        let rule = WebhookRule {
            api_groups: groups.into_iter().map(Into::into).collect(),
            api_versions: versions.into_iter().map(Into::into).collect(),
            resources: resources.into_iter().map(Into::into).collect(),
            operations: vec![Operation::Create, Operation::Update],
        };
        let wire = controller::Webhook {
            name: name.into(),
            of_type: WebhookType::Validating,
            rules: vec![rule],
            on_failure: FailurePolicy::Fail,
            timeout_seconds: None,
            namespaces: None,
            labels: None,
            match_conditions: Vec::new(),
            reinvoke: false,
            reads: Vec::new(),
        };
        Webhook { wire, reads: Vec::new(), kind: PhantomData }
    }
}

impl<K: AnyObject> Webhook<K> {
    /// Reviews only requests that do one of these things.
    pub fn operations(mut self, operations: impl IntoIterator<Item = Operation>) -> Self {
        let operations: Vec<Operation> = operations.into_iter().collect();
        self.wire.rules.iter_mut().for_each(|rule| rule.operations.clone_from(&operations));
        self
    }

    /// Reviews only objects in namespaces with these labels: `team=web`, `team,!exempt`.
    pub fn namespaces(mut self, selector: impl Into<String>) -> Self {
        self.wire.namespaces = Some(selector.into());
        self
    }

    /// Reviews only objects with these labels.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.wire.labels = Some(selector.into());
        self
    }

    /// Reviews only requests for which this CEL expression is true. The API server evaluates it before it calls the host,
    /// over `object`, `oldObject` and `request`.
    pub fn match_condition(mut self, name: impl Into<String>, expression: impl Into<String>) -> Self {
        self.wire.match_conditions.push((name.into(), expression.into()));
        self
    }

    /// How long the API server waits for the answer: 1 to 30 seconds.
    pub fn timeout_seconds(mut self, seconds: u32) -> Self {
        self.wire.timeout_seconds = Some(seconds);
        self
    }

    /// Lets the API server allow a request if the host does not answer, or the handler fails.
    pub fn ignore_failures(mut self) -> Self {
        self.wire.on_failure = FailurePolicy::Ignore;
        self
    }

    /// Lets the API server call a mutating webhook again if a later one changed the object.
    pub fn reinvoke(mut self) -> Self {
        self.wire.reinvoke = true;
        self
    }

    /// Caches what the handler reads. Asks for the permission to read it.
    pub fn reads<T: AnyObject>(mut self, watch: Watch<T>) -> Self {
        self.reads.push(watch.erase());
        self
    }
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Review<K> {
    /// What the request does.
    pub operation: Operation,
    /// The name is empty if the API server generates it later.
    pub key: Key,
    /// `None` means the object itself.
    pub subresource: Option<String>,
    /// `None` for [`Operation::Delete`].
    pub object: Option<K>,
    /// The object before. `None` for [`Operation::Create`] and [`Operation::Connect`].
    pub old: Option<K>,
    /// Who sent the request.
    pub user: User,
    /// `true` if nothing will be stored.
    pub dry_run: bool,
}

pub use wire::User;

/// What a handler of a webhook can call in the host.
///
/// A review may not write, because the API server may still reject the request.
#[derive(Debug)]
pub struct AdmissionContext(());

impl AdmissionContext {
    /// Returns the host's cache. The host does not track the reads of a review.
    pub fn cache(&self) -> Cache<'_> {
        Cache::new()
    }

    /// Returns when this call began. The time stays the same during the call.
    ///
    /// # Panics
    /// Panics as [`Context::now`](crate::Context::now) does.
    pub fn now(&self) -> Timestamp {
        clock::now()
    }
}

/// The answer to a review.
///
/// ```
/// use pilothouse_sdk::Decision;
///
/// let decision = Decision::deny("`latest` is not a version").warn("images will need a digest from 2.0 on");
/// assert_eq!(decision.denied(), Some("`latest` is not a version"));
/// assert!(Decision::allow().denied().is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a decision is what a handler returns"]
pub struct Decision(pub(crate) wire::Decision);

impl Decision {
    /// Allows the request.
    pub fn allow() -> Self {
        Self(wire::Decision { denied: None, code: None, warnings: Vec::new(), audit_annotations: Vec::new() })
    }

    /// Denies the request. The user sees why.
    pub fn deny(why: impl Into<String>) -> Self {
        let mut decision = Self::allow();
        decision.0.denied = Some(why.into());
        decision
    }

    /// Sets the HTTP status code of a denial, 400 to 599. The default is 403.
    pub fn code(mut self, code: u16) -> Self {
        self.0.code = Some(code);
        self
    }

    /// Shows a warning to the user. At most 16 of 256 bytes.
    pub fn warn(mut self, warning: impl Into<String>) -> Self {
        self.0.warnings.push(warning.into());
        self
    }

    /// Adds an entry to the API server's audit log.
    pub fn audit(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.audit_annotations.push((key.into(), value.into()));
        self
    }

    /// Returns why the request is denied, or `None` if it is allowed.
    pub fn denied(&self) -> Option<&str> {
        self.0.denied.as_deref()
    }

    /// Returns the warnings.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }
}

/// The answer of a mutating webhook: a decision, and the object as it should be.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a mutation is what a handler returns"]
pub struct Mutation<K> {
    decision: Decision,
    object: Option<K>,
}

impl<K> Mutation<K> {
    /// Allows the request with this object in place of the one that was sent.
    ///
    /// Only the difference to the sent object counts. Fields that `K` does not know stay as they are.
    pub fn to(object: K) -> Self {
        Self { decision: Decision::allow(), object: Some(object) }
    }

    /// Shows a warning to the user.
    pub fn warn(mut self, warning: impl Into<String>) -> Self {
        self.decision = self.decision.warn(warning);
        self
    }

    /// Adds an entry to the API server's audit log.
    pub fn audit(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.decision = self.decision.audit(key, value);
        self
    }
}

/// Leaves the object as it is.
impl<K> From<Decision> for Mutation<K> {
    fn from(decision: Decision) -> Self {
        Self { decision, object: None }
    }
}

/// A decision, and the changed object as JSON text.
pub(crate) type Answer = (wire::Decision, Option<String>);

/// A webhook and its handler.
pub(crate) struct Reviews {
    pub(crate) wire: controller::Webhook,
    pub(crate) reads: Vec<Watched>,
    function: Box<dyn Fn(wire::Review) -> Result<Answer, String>>,
}

impl Reviews {
    pub(crate) fn validating<K, F>(webhook: Webhook<K>, function: F) -> Self
    where
        K: AnyObject,
        F: Fn(&AdmissionContext, &Review<K>) -> Result<Decision, Error> + 'static,
    {
        Self::new(webhook, WebhookType::Validating, move |review| {
            let decision = function(&AdmissionContext(()), &decode::<K>(review)?);
            decision.map(|decision| (decision.0, None)).map_err(|error| error.to_string())
        })
    }

    pub(crate) fn mutating<K, F>(webhook: Webhook<K>, function: F) -> Self
    where
        K: AnyObject,
        F: Fn(&AdmissionContext, &Review<K>) -> Result<Mutation<K>, Error> + 'static,
    {
        Self::new(webhook, WebhookType::Mutating, move |review| {
            let sent = review.object.clone();
            let review = decode::<K>(review)?;
            let answer = function(&AdmissionContext(()), &review).map_err(|error| error.to_string())?;
            let changed = answer.object.map(|object| match (&sent, &review.object) {
                (Some(sent), Some(known)) => changed(sent, known, &object),
                _ => object.text_of().map_err(|error| format!("cannot serialize the object: {error}")),
            });
            Ok((answer.decision.0, changed.transpose()?))
        })
    }

    fn new<K>(
        webhook: Webhook<K>,
        of_type: WebhookType,
        function: impl Fn(wire::Review) -> Result<Answer, String> + 'static,
    ) -> Self {
        let wire = controller::Webhook { of_type, ..webhook.wire };
        Self { wire, reads: webhook.reads, function: Box::new(function) }
    }

    pub(crate) fn permissions(&self) -> impl Iterator<Item = Permission> {
        self.reads.iter().map(|watch| watch.permission([controller::Verb::Read]))
    }

    /// # Errors
    /// Fails if a predicate is too large.
    pub(crate) fn into_wire(self) -> Result<controller::Webhook, String> {
        let reads = self.reads.into_iter().map(Watched::into_wire).collect::<Result<_, _>>()?;
        Ok(controller::Webhook { reads, ..self.wire })
    }

    pub(crate) fn call(&self, review: wire::Review) -> Result<Answer, String> {
        (self.function)(review)
    }
}

fn decode<K: AnyObject>(review: wire::Review) -> Result<Review<K>, String> {
    let of: TypeMeta = review.of;
    let object = |text: Option<String>| {
        let decode = |text: String| {
            serde_json::from_str(&text).map_err(|error| format!("cannot decode the reviewed {of}: {error}"))
        };
        text.map(decode).transpose()
    };
    Ok(Review {
        operation: review.operation,
        object: object(review.object)?,
        old: object(review.old)?,
        key: review.key,
        subresource: review.subresource,
        user: review.user,
        dry_run: review.dry_run,
    })
}

/// Applies the difference between `before` and `after` to the text that was sent, which may have fields that the type
/// does not know.
fn changed(sent: &str, before: &impl AnyObject, after: &impl AnyObject) -> Result<String, String> {
    let problem = |error: serde_json::Error| format!("cannot serialize the object: {error}");
    let value = |text: String| serde_json::from_str::<Value>(&text).map_err(problem);
    let mut sent = value(sent.to_owned())?;
    let (before, after) = (value(before.text_of().map_err(problem)?)?, value(after.text_of().map_err(problem)?)?);
    carry(&mut sent, &before, after);
    Ok(sent.to_string())
}

fn carry(sent: &mut Value, before: &Value, after: Value) {
    if *before == after {
        return;
    }
    match (sent, before, after) {
        (Value::Object(sent), Value::Object(before), Value::Object(after)) => {
            sent.retain(|key, _| !before.contains_key(key) || after.contains_key(key));
            for (key, after) in after {
                match (sent.get_mut(&key), before.get(&key)) {
                    (Some(sent), Some(before)) => carry(sent, before, after),
                    // The type writes a default that was not sent.
                    (None, Some(before)) if *before == after => {}
                    _ => drop(sent.insert(key, after)),
                }
            }
        }
        (Value::Array(sent), Value::Array(before), Value::Array(after))
            if sent.len() == before.len() && after.len() >= before.len() =>
        {
            let mut after = after.into_iter();
            for ((sent, before), after) in sent.iter_mut().zip(before).zip(&mut after) {
                carry(sent, before, after);
            }
            sent.extend(after);
        }
        (sent, _, after) => *sent = after,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_the_type_does_not_know_survive_a_mutation() {
        let mut sent = json!({
            "kind": "Pod", "spec": {"containers": [{"image": "a", "newer": 1}], "newer": {"x": 1}, "old": true},
        });
        let before = json!({"kind": "Pod", "spec": {"containers": [{"image": "a"}], "old": true, "default": []}});
        let after = json!({
            "kind": "Pod", "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"image": "b"}, {"image": "c"}], "default": []},
        });
        carry(&mut sent, &before, after);
        let expected = json!({
            "kind": "Pod", "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"image": "b", "newer": 1}, {"image": "c"}], "newer": {"x": 1}},
        });
        assert_eq!(sent, expected);
    }
}
