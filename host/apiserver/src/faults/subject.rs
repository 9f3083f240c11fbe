//! Matches requests with rules.

use super::rule::{InvalidRule, Requests, Verb};

/// A checked [`Requests`].
#[derive(Debug, Clone)]
pub(super) struct Matcher {
    /// `None` for all.
    resource: Option<ResourceName>,
    verbs: Vec<Verb>,
    namespace: Option<String>,
    user_agent: Option<String>,
}

#[derive(Debug, Clone)]
struct ResourceName {
    group: String,
    plural: String,
    subresource: Option<String>,
}

/// A request, as rules see it.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) verb: Verb,
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) user_agent: String,
    /// `true` for a page after the first.
    pub(crate) continues: bool,
    /// `true` for a streaming list.
    pub(crate) streams: bool,
}

impl Subject {
    /// Creates a request that concerns no resource.
    pub(crate) fn bare(verb: Verb, user_agent: &str) -> Self {
        Subject {
            verb,
            group: String::new(),
            plural: String::new(),
            subresource: String::new(),
            namespace: String::new(),
            user_agent: user_agent.to_owned(),
            continues: false,
            streams: false,
        }
    }
}

impl Matcher {
    /// # Errors
    /// `on.resource` names no resource.
    pub(super) fn new(requests: &Requests, verbs: impl Fn(Verb) -> bool) -> Result<Self, InvalidRule> {
        let refused = |why: &str| {
            let why = format!("{why} in {:?}: use configmaps, deployments.apps, deployments.apps/status and *", {
                &requests.resource
            });
            InvalidRule::new("on.resource", why)
        };
        let resource = if requests.resource == "*" {
            None
        } else {
            let mut parts = requests.resource.split('/');
            let name = parts.next().unwrap_or_default();
            let subresource = parts.next().map(ToOwned::to_owned);
            if parts.next().is_some() {
                return Err(refused("more than one subresource"));
            }
            let (plural, group) = name.split_once('.').unwrap_or((name, ""));
            if plural.is_empty() || name.contains(['*', ' ']) || subresource.as_ref().is_some_and(String::is_empty) {
                return Err(refused("no name of a resource"));
            }
            Some(ResourceName { group: group.to_owned(), plural: plural.to_owned(), subresource })
        };
        let verbs = match requests.verbs.as_slice() {
            [] => Verb::OF_RESOURCES.into_iter().filter(|verb| verbs(*verb)).collect(),
            named => named.to_vec(),
        };
        let (namespace, user_agent) = (requests.namespace.clone(), requests.user_agent.clone());
        Ok(Matcher { resource, verbs, namespace, user_agent })
    }

    pub(super) fn matches(&self, subject: &Subject) -> bool {
        let resource = self.resource.as_ref().is_none_or(|wanted| {
            wanted.plural == subject.plural
                && wanted.group == subject.group
                && wanted.subresource.as_ref().is_none_or(|wanted| *wanted == subject.subresource)
        });
        resource
            && self.verbs.contains(&subject.verb)
            && self.namespace.as_ref().is_none_or(|wanted| *wanted == subject.namespace)
            && self.user_agent.as_ref().is_none_or(|wanted| subject.user_agent.contains(wanted.as_str()))
    }
}
