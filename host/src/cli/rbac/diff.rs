//! Compares Roles with what a cluster grants.
//!
//! | question | asked | because |
//! |---|---|---|
//! | is something missing? | a SubjectAccessReview for each verb of each rule | it is exact, whichever binding, group or authorizer grants it |
//! | is something too much? | the Roles that are bound to the account | no review lists what an account may do: SelfSubjectRulesReview is for oneself, and may be incomplete |
//!
//! What groups such as `system:authenticated` may do is not compared, because every account may do it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use pilothouse_core::{grant::ServiceAccount, key::TypeMeta, list::list_page};
use serde_json::Value;

use super::roles::{Role, Rule, rule_of};
use crate::cluster::{Cluster, Select};

const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// One access of an account. Its order is that of the output.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Access {
    account: ServiceAccount,
    namespace: Option<String>,
    group: String,
    resource: String,
    /// `None` for all objects.
    name: Option<String>,
    verb: String,
}

impl Access {
    fn of_rule<'a>(
        account: &'a ServiceAccount,
        namespace: Option<&'a str>,
        rule: &'a Rule,
    ) -> impl Iterator<Item = Self> + 'a {
        let names: Vec<Option<String>> = match &*rule.names {
            [] => vec![None],
            names => names.iter().cloned().map(Some).collect(),
        };
        rule.groups.iter().flat_map(move |group| {
            let names = names.clone();
            rule.resources.iter().flat_map(move |resource| {
                let names = names.clone();
                rule.verbs.iter().flat_map(move |verb| {
                    let access = move |name| Self {
                        account: account.clone(),
                        namespace: namespace.map(str::to_owned),
                        group: group.clone(),
                        resource: resource.clone(),
                        name,
                        verb: verb.clone(),
                    };
                    names.clone().into_iter().map(access)
                })
            })
        })
    }

    /// Returns `true` if an account that may do this may do the other one, too.
    fn covers(&self, other: &Self) -> bool {
        let all = |own: &str, other: &str| own == "*" || own == other;
        self.account == other.account
            && (self.namespace.is_none() || self.namespace == other.namespace)
            && all(&self.group, &other.group)
            && all(&self.resource, &other.resource)
            && all(&self.verb, &other.verb)
            && (self.name.is_none() || self.name == other.name)
    }

    /// Returns the line of the output.
    fn line(&self, sign: char) -> String {
        let Self { account, namespace, group, resource, name, verb } = self;
        let resource = if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") };
        let name = name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
        let place = namespace.as_ref().map_or_else(|| "in all of the cluster".to_owned(), |name| format!("in {name}"));
        format!("{sign} {account}: {verb} {resource}{name} {place}")
    }
}

/// Returns a line for each access that is missing (`-`) and that is too much (`+`).
pub(super) async fn lines(cluster: &Cluster, roles: &[Role]) -> anyhow::Result<Vec<String>> {
    let needed: BTreeSet<Access> = roles
        .iter()
        .flat_map(|role| {
            role.rules.iter().flat_map(|rule| Access::of_rule(&role.account, role.namespace.as_deref(), rule))
        })
        .collect();
    let mut lines = Vec::new();
    for access in &needed {
        if !is_allowed(cluster, access).await? {
            lines.push(access.line('-'));
        }
    }
    let accounts: BTreeSet<&ServiceAccount> = roles.iter().map(|role| &role.account).collect();
    for (access, by) in granted(cluster, &accounts).await? {
        if !needed.iter().any(|needed| needed.covers(&access)) {
            lines.push(format!("{} (by {by})", access.line('+')));
        }
    }
    Ok(lines)
}

async fn is_allowed(cluster: &Cluster, access: &Access) -> anyhow::Result<bool> {
    let Access { account, namespace, group, resource, name, verb } = access;
    let (resource, subresource) =
        resource.split_once('/').map_or((&**resource, None), |(resource, part)| (resource, Some(part.to_owned())));
    let attributes = ResourceAttributes {
        group: Some(group.clone()),
        resource: Some(resource.to_owned()),
        subresource,
        namespace: namespace.clone(),
        name: name.clone(),
        verb: Some(verb.clone()),
        ..ResourceAttributes::default()
    };
    cluster.may(account, attributes).await.context("cannot ask what an account may do")
}

/// Returns what bindings grant these accounts by name, and the binding.
async fn granted(cluster: &Cluster, accounts: &BTreeSet<&ServiceAccount>) -> anyhow::Result<BTreeMap<Access, String>> {
    let mut roles = BTreeMap::new();
    for kind in ["Role", "ClusterRole"] {
        for role in all(cluster, kind).await? {
            roles.insert((kind, text(&role["metadata"], "namespace"), text(&role["metadata"], "name")), role);
        }
    }
    let mut granted = BTreeMap::new();
    for kind in ["RoleBinding", "ClusterRoleBinding"] {
        for binding in all(cluster, kind).await? {
            let (metadata, referred) = (&binding["metadata"], &binding["roleRef"]);
            let (namespace, name) = (text(metadata, "namespace"), text(metadata, "name"));
            let role = match referred["kind"].as_str() {
                Some("Role") => roles.get(&("Role", namespace.clone(), text(referred, "name"))),
                _ => roles.get(&("ClusterRole", String::new(), text(referred, "name"))),
            };
            let rules: Vec<Rule> =
                role.and_then(|role| role["rules"].as_array()).into_iter().flatten().map(rule_of).collect();
            for subject in binding["subjects"].as_array().into_iter().flatten() {
                let account = ServiceAccount { namespace: text(subject, "namespace"), name: text(subject, "name") };
                if subject["kind"] != "ServiceAccount" || !accounts.contains(&account) {
                    continue;
                }
                let place = (!namespace.is_empty()).then_some(&*namespace);
                for access in rules.iter().flat_map(|rule| Access::of_rule(&account, place, rule)) {
                    granted.entry(access).or_insert_with(|| format!("{kind} {name}"));
                }
            }
        }
    }
    Ok(granted)
}

async fn all(cluster: &Cluster, kind: &str) -> anyhow::Result<Vec<Value>> {
    let of = TypeMeta::new(RBAC, kind);
    let cannot = || format!("cannot list the {kind}s of the cluster");
    let endpoint = cluster.endpoint(&of).await.with_context(cannot)?;
    let select = Select { namespace: None, labels: String::new(), fields: String::new(), metadata_only: false };
    let body = cluster.list(&endpoint, &select, 0, None, None).await.with_context(cannot)?;
    let (_, items) = list_page(&body).with_context(cannot)?;
    items.into_iter().map(|item| serde_json::from_slice(item).with_context(cannot)).collect()
}

fn text(value: &Value, member: &str) -> String {
    value[member].as_str().unwrap_or_default().to_owned()
}
