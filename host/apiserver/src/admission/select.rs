//! Decides whether a webhook is asked: rules, selectors and match conditions.

use std::sync::Arc;

use serde_json::Value;

use super::{Asked, Hook, Operation, review};
use crate::{
    object::Key,
    resources::{GroupResource, Resource},
    rest::Part,
    schema::cel::{Expression, apart},
    status::{Result, Status},
};

/// A rule of a webhook.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) groups: Vec<String>,
    pub(super) versions: Vec<String>,
    /// `pods`, `pods/status`, `pods/*`, `*/status`, `*` or `*/*`.
    pub(super) resources: Vec<String>,
    pub(super) operations: Vec<String>,
    pub(super) scope: Scope,
}

/// The scope of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Cluster,
    Namespaced,
    All,
}

/// A match condition.
#[derive(Debug)]
pub(super) struct Condition {
    pub(super) expression: Expression,
    pub(super) text: String,
}

impl Rule {
    fn matches(&self, resource: &Resource, subresource: &str, operation: Operation) -> bool {
        let any = |wanted: &[String], found: &str| wanted.iter().any(|wanted| wanted == "*" || wanted == found);
        let resources = |wanted: &String| {
            let (plural, below) = wanted.split_once('/').unwrap_or((wanted, ""));
            (plural == "*" || plural == resource.plural) && (below == "*" || below == subresource)
        };
        let scope = match self.scope {
            Scope::All => true,
            Scope::Namespaced => resource.namespaced,
            Scope::Cluster => !resource.namespaced,
        };
        scope
            && any(&self.operations, operation.as_str())
            && any(&self.groups, &resource.group)
            && any(&self.versions, &resource.version)
            && self.resources.iter().any(resources)
    }
}

/// Returns the resource in the version that the webhook asks for, or `None` if it is not asked.
pub(super) async fn select(asked: &Asked<'_>, hook: &Hook) -> Result<Option<Arc<Resource>>> {
    let Some(version) = by_rule(asked, hook) else { return Ok(None) };
    if !in_namespace(asked, hook)? || !by_labels(asked, hook) {
        return Ok(None);
    }
    let holds = hook.conditions.is_empty() || by_conditions(asked, hook, &version).await?;
    Ok(holds.then_some(version))
}

fn by_rule(asked: &Asked<'_>, hook: &Hook) -> Option<Arc<Resource>> {
    let resource = asked.call.resource;
    let subresource = asked.call.part.subresource().unwrap_or_default();
    let matches = |rule: &Rule, resource: &Resource| rule.matches(resource, &subresource, asked.operation);
    if hook.rules.iter().any(|rule| matches(rule, resource)) {
        return Some(Arc::clone(resource));
    }
    if !hook.equivalent {
        return None;
    }
    let others = asked.call.server.registry().equivalents(resource);
    // Earlier rules first.
    hook.rules.iter().find_map(|rule| {
        let served = |other: &&Arc<Resource>| Part::of(&subresource, other).is_some();
        others.iter().filter(served).find(|other| matches(rule, other)).cloned()
    })
}

/// `true` if the namespace selector selects the request. Requests outside of namespaces are always selected.
fn in_namespace(asked: &Asked<'_>, hook: &Hook) -> Result<bool> {
    let name = asked.namespace();
    let of_namespace = asked.call.resource.storage == GroupResource::namespaces();
    if hook.namespaces.is_empty() || (name.is_empty() && !of_namespace) {
        return Ok(true);
    }
    if of_namespace && asked.call.part == Part::Object && asked.operation != Operation::Delete {
        return Ok(asked.object.is_some_and(|object| hook.namespaces.matches(object)));
    }
    let namespace = asked.call.server.store.get(&GroupResource::namespaces(), &Key::new("", name));
    let namespace = namespace.ok_or_else(|| Status::not_found(&GroupResource::namespaces(), name))?;
    Ok(hook.namespaces.matches(&namespace.value))
}

fn by_labels(asked: &Asked<'_>, hook: &Hook) -> bool {
    let matches = |object: Option<&Value>| object.is_some_and(|object| hook.objects.matches(object));
    hook.objects.is_empty() || matches(asked.object) || matches(asked.old)
}

/// `true` if all match conditions hold. One that is false decides, even if another one fails.
async fn by_conditions(asked: &Asked<'_>, hook: &Hook, version: &Arc<Resource>) -> Result<bool> {
    let object = asked.optional(asked.object, version).await?;
    let old = asked.optional(asked.old, version).await?;
    let request = review::request(asked, version, "", &Value::Null, &Value::Null);
    let variables = [("object", &object), ("oldObject", &old), ("request", &request)];
    let evaluate = || hook.conditions.iter().map(|condition| condition.expression.holds(&variables)).collect();
    let results: Vec<std::result::Result<bool, String>> =
        apart(evaluate).unwrap_or_else(|| vec![Err(PANIC.to_owned())]);
    if results.contains(&Ok(false)) {
        return Ok(false);
    }
    let failed = hook.conditions.iter().zip(&results).filter_map(|(condition, result)| {
        let why = result.as_ref().err()?;
        Some(format!("expression '{}' resulted in error: {why}", condition.text))
    });
    let failed: Vec<String> = failed.collect();
    let why = match failed.as_slice() {
        [] => return Ok(true),
        _ if !hook.fails_closed => return Ok(false),
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    let call = asked.call;
    Err(Status::forbidden(&call.resource.group_resource(), &call.key.name, &why))
}

const PANIC: &str = "the expression is nested too deeply";
