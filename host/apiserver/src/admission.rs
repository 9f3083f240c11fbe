//! Asks webhooks about writes, as kube-apiserver does.
//!
//! ```text
//!  create, update ─► mutating webhooks, one after another ─► schema and the kind's rules ─► validating webhooks, all at once ─► commit
//!  delete ─────────► mutating and validating webhooks, with only the old object ─► commit
//! ```
//!
//! A webhook is asked if its rules, its selectors and its match conditions select the request. Mutating webhooks run
//! in the order of their configurations' names. If one changes the object, those before it with `reinvocationPolicy:
//! IfNeeded` run once more. Writes of webhook configurations themselves, and reviews, ask no webhook.
//!
//! The server's own writes (garbage collection, `default` service accounts) ask no webhook either.

mod configuration;
mod review;
mod select;

use std::{collections::HashSet, sync::Arc, time::Duration};

pub(crate) use configuration::{default, validate as validate_configuration};
use futures::future::join_all;
use parking_lot::{Mutex, RwLock};
use review::Verdict;
pub(crate) use review::user;
use select::{Condition, Rule};
use serde_json::Value;
use tokio::time::Instant;
use tracing::warn;

use crate::{
    convert, names,
    resources::{GroupResource, Resource},
    rest::{Call, Part, scale},
    schema::Schema,
    selector::Selector,
    server::Server,
    status::{Result, Status},
    webhook::Endpoint,
};

/// Upper bound for the time of a write with all its webhooks, as in kube-apiserver.
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(34);

/// What a request does to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
        }
    }
}

/// One webhook of a configuration.
#[derive(Debug)]
struct Hook {
    name: String,
    endpoint: Endpoint,
    rules: Vec<Rule>,
    namespaces: Selector,
    objects: Selector,
    conditions: Vec<Condition>,
    /// `true` if other versions of a resource match its rules too (`matchPolicy: Equivalent`).
    equivalent: bool,
    /// `true` if a failed call rejects the request (`failurePolicy: Fail`).
    fails_closed: bool,
    timeout: Duration,
    /// `true` if it may be asked about dry runs.
    dry_runs: bool,
    /// `true` if it is asked again after a later webhook changed the object.
    reinvoked: bool,
}

/// The webhooks of all configurations, in the order in which they are asked.
#[derive(Debug, Default)]
struct Hooks {
    mutating: Vec<Hook>,
    validating: Vec<Hook>,
}

/// The registered webhooks.
#[derive(Debug, Default)]
pub(crate) struct Webhooks {
    hooks: RwLock<Arc<Hooks>>,
    /// Held while configurations are read, so that the newest ones stay.
    loading: Mutex<()>,
}

/// The collection of `MutatingWebhookConfiguration` or `ValidatingWebhookConfiguration`.
fn collection(mutating: bool) -> GroupResource {
    let plural = if mutating { "mutatingwebhookconfigurations" } else { "validatingwebhookconfigurations" };
    GroupResource::new(configuration::GROUP, plural)
}

impl Webhooks {
    /// `true` if a change of the resource changes the webhooks.
    pub(crate) fn are_in(of: &GroupResource) -> bool {
        *of.group == *configuration::GROUP
    }

    /// Reads the configurations again.
    pub(crate) fn load(&self, server: &Server) {
        let _guard = self.loading.lock();
        let read = |mutating: bool| -> Vec<Hook> {
            let all = server.store.list(&collection(mutating), None, None, None);
            let objects = all.map_or_else(|_| Vec::new(), |all| all.objects);
            objects.iter().flat_map(|object| configuration::hooks(&object.value)).collect()
        };
        let hooks = Hooks { mutating: read(true), validating: read(false) };
        *self.hooks.write() = Arc::new(hooks);
    }
}

/// Why an asked webhook does not let the request pass.
#[derive(Debug)]
enum Failure {
    /// The webhook could not be asked, or its answer is invalid. The failure policy decides.
    Call(String),
    /// The request is rejected.
    Rejected(Status),
}

/// A request as webhooks see it.
struct Asked<'a> {
    call: &'a Call<'a>,
    operation: Operation,
    object: Option<&'a Value>,
    old: Option<&'a Value>,
}

/// Asks the mutating webhooks. Returns the changed object, or `None` if it is unchanged.
pub(crate) async fn mutate(
    call: &mut Call<'_>,
    operation: Operation,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<Option<Value>> {
    let hooks = Arc::clone(&call.server.webhooks.hooks.read());
    if hooks.mutating.is_empty() || is_exempt(call.resource) {
        return Ok(None);
    }
    let mut changed: Option<Value> = None;
    let mut warnings = Vec::new();
    // Webhooks asked so far that may be asked again, and those that are.
    let (mut before, mut again) = (HashSet::new(), HashSet::new());
    let mut first_round = true;
    let outcome = 'rounds: loop {
        let mut reinvoke = false;
        for (index, hook) in hooks.mutating.iter().enumerate() {
            if !first_round && !again.contains(&index) {
                continue;
            }
            let asked = Asked { call, operation, object: changed.as_ref().or(object), old };
            let answer = match select::select(&asked, hook).await {
                Err(status) => break 'rounds Err(status),
                Ok(None) => continue,
                Ok(Some(version)) => mutate_once(&asked, hook, &version, &mut warnings).await,
            };
            match answer {
                Ok(None) => {}
                Ok(Some(next)) => {
                    again.extend(before.drain());
                    reinvoke = true;
                    changed = Some(next);
                }
                Err(failure) => {
                    if let Err(status) = settle(hook, failure) {
                        break 'rounds Err(status);
                    }
                }
            }
            if hook.reinvoked {
                before.insert(index);
            }
        }
        if !first_round || !reinvoke {
            break Ok(());
        }
        first_round = false;
    };
    call.add_warnings(warnings);
    outcome.map(|()| changed)
}

/// Asks all validating webhooks at once.
pub(crate) async fn validate(
    call: &mut Call<'_>,
    operation: Operation,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<()> {
    let hooks = Arc::clone(&call.server.webhooks.hooks.read());
    if hooks.validating.is_empty() || is_exempt(call.resource) {
        return Ok(());
    }
    let asked = Asked { call, operation, object, old };
    let mut selected = Vec::new();
    for hook in &hooks.validating {
        if let Some(version) = select::select(&asked, hook).await? {
            selected.push((hook, version));
        }
    }
    let asked = &asked;
    let answers = join_all(selected.iter().map(|(hook, version)| async move {
        let answer = review::ask(asked, hook, version, false).await;
        (*hook, answer)
    }));
    let mut outcome = Ok(());
    let mut warnings = Vec::new();
    for (hook, answer) in answers.await {
        let judged = match answer {
            Ok(Verdict { warnings: more, denied, .. }) => {
                warnings.extend(more);
                denied.map_or(Ok(()), Err)
            }
            Err(failure) => settle(hook, failure),
        };
        outcome = outcome.and(judged);
    }
    call.add_warnings(warnings);
    outcome
}

/// `true` for a webhook configuration, which could otherwise lock itself, and for a review.
fn is_exempt(resource: &Resource) -> bool {
    resource.group == configuration::GROUP
}

/// Applies the failure policy.
fn settle(hook: &Hook, failure: Failure) -> Result<()> {
    match failure {
        Failure::Rejected(status) => Err(status),
        Failure::Call(why) if hook.fails_closed => {
            Err(Status::internal(format!("failed calling webhook \"{}\": {why}", hook.name)))
        }
        Failure::Call(why) => {
            warn!(webhook = %hook.name, error = %why, "failed calling a webhook, failing open");
            Ok(())
        }
    }
}

/// Asks one mutating webhook. Returns the changed object in the version of the request, or `None` if it is unchanged.
async fn mutate_once(
    asked: &Asked<'_>,
    hook: &Hook,
    version: &Arc<Resource>,
    warnings: &mut Vec<String>,
) -> std::result::Result<Option<Value>, Failure> {
    let Verdict { warnings: more, denied, patch } = review::ask(asked, hook, version, true).await?;
    warnings.extend(more);
    if let Some(status) = denied {
        return Err(Failure::Rejected(status));
    }
    let Some(patch) = patch.filter(|patch| patch.as_array().is_none_or(|operations| !operations.is_empty())) else {
        return Ok(None);
    };
    let internal = |why: String| Failure::Rejected(Status::internal(why));
    let Some(object) = asked.object else {
        let name = &hook.name;
        let why = "attempted to modify the object, which is not supported for this operation";
        return Err(internal(format!("admission webhook \"{name}\" {why}")));
    };
    let object = asked.in_version(object, version).await.map_err(Failure::Rejected)?;
    let schema = asked.schema(version);
    let mut next = crate::patch::json(&object, &patch, &schema).map_err(|error| match error {
        crate::patch::Error::Malformed(why) => {
            Failure::Call(format!("received undecodable patch in webhook response: {why}"))
        }
        error => internal(error.to_string()),
    })?;
    if next == object {
        return Ok(None);
    }
    let kept = next.is_object() && ["apiVersion", "kind"].iter().all(|field| next[*field] == object[*field]);
    if !kept {
        return Err(internal("a patch may not change apiVersion and kind".to_owned()));
    }
    names::check_types(&next, asked.call.resource.custom).map_err(internal)?;
    schema.prune(&mut next);
    schema.default(&mut next);
    asked.back(next, version).await.map(Some).map_err(Failure::Rejected)
}

impl Asked<'_> {
    fn schema(&self, version: &Arc<Resource>) -> Arc<Schema> {
        match self.call.part {
            Part::Scale => Arc::new(scale::schema()),
            _ => Arc::clone(version.schema()),
        }
    }

    /// Converts an object of the request to the version that the webhook asked for.
    async fn in_version(&self, object: &Value, version: &Arc<Resource>) -> Result<Value> {
        if self.call.part == Part::Scale || Arc::ptr_eq(version, self.call.resource) {
            return Ok(object.clone());
        }
        convert::between(self.call.server, self.call.resource, version, object.clone()).await
    }

    /// Converts an object back from the version that the webhook asked for.
    async fn back(&self, object: Value, version: &Arc<Resource>) -> Result<Value> {
        if self.call.part == Part::Scale || Arc::ptr_eq(version, self.call.resource) {
            return Ok(object);
        }
        convert::between(self.call.server, version, self.call.resource, object).await
    }

    /// The namespace in the request. A namespace object is in itself.
    fn namespace(&self) -> &str {
        let key = &self.call.key;
        if self.call.resource.storage == GroupResource::namespaces() { &key.name } else { &key.namespace }
    }

    /// Returns the time that a webhook with this timeout has, or `None` if the request has taken too long.
    fn time_left(&self, timeout: Duration) -> Option<Duration> {
        let left = self.call.deadline.saturating_duration_since(Instant::now());
        (!left.is_zero()).then(|| left.min(timeout))
    }

    /// Returns group, version and kind of the objects in a review.
    fn kind<'b>(&self, version: &'b Resource) -> (&'b str, &'b str, &'b str) {
        match self.call.part {
            Part::Scale => ("autoscaling", "v1", "Scale"),
            _ => (&version.group, &version.version, &version.kind),
        }
    }
}
