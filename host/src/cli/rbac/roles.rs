//! Roles with a reason for each rule: read from the chart, made of needs, and printed.

use std::fmt::Write as _;

use anyhow::Context;
use pilothouse_apiserver::yaml;
use pilothouse_core::grant::ServiceAccount;
use serde_json::Value;

use super::needs::Needs;

/// A Role, or a ClusterRole, that is bound to one account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Role {
    pub(super) name: String,
    /// The namespace; `None` for a ClusterRole.
    pub(super) namespace: Option<String>,
    pub(super) account: ServiceAccount,
    pub(super) rules: Vec<Rule>,
}

/// What an account may do, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) groups: Vec<String>,
    pub(super) resources: Vec<String>,
    /// Empty for all objects.
    pub(super) names: Vec<String>,
    pub(super) verbs: Vec<String>,
    pub(super) reasons: Vec<String>,
}

/// Reads the Roles of the host's own account from the rendered template of the chart. The comment before a rule is its
/// reason.
pub(super) fn of_chart(text: &str, host: &ServiceAccount) -> anyhow::Result<Vec<Role>> {
    let mut roles = Vec::new();
    for text in text.split("---\n") {
        let Ok(document) = yaml::first(text) else { continue };
        let object = document.value;
        let is_role = matches!(object["kind"].as_str(), Some("Role" | "ClusterRole"));
        if !is_role || object["metadata"]["name"] != *host.name {
            continue;
        }
        let reasons = reasons(text);
        let rules = object["rules"].as_array().context("a Role of the chart has no rules")?;
        let rules = rules.iter().zip(reasons.into_iter().chain(std::iter::repeat(Vec::new())));
        roles.push(Role {
            name: host.name.clone(),
            namespace: object["metadata"]["namespace"].as_str().map(str::to_owned),
            account: host.clone(),
            rules: rules.map(|(rule, reasons)| Rule { reasons, ..rule_of(rule) }).collect(),
        });
    }
    Ok(roles)
}

/// Returns the comments before each item of `rules:`.
fn reasons(text: &str) -> Vec<Vec<String>> {
    let (mut all, mut pending) = (Vec::new(), Vec::new());
    let lines = text.lines().skip_while(|line| *line != "rules:").skip(1);
    for line in lines.take_while(|line| line.starts_with("  ")) {
        if let Some(comment) = line.trim_start().strip_prefix("# ") {
            pending.push(comment.to_owned());
        } else if line.starts_with("  - ") {
            all.push(std::mem::take(&mut pending));
        }
    }
    all
}

/// Reads a rule of a Role.
pub(super) fn rule_of(rule: &Value) -> Rule {
    let list = |member: &str| {
        let texts = rule[member].as_array().into_iter().flatten();
        texts.filter_map(|text| Some(text.as_str()?.to_owned())).collect()
    };
    Rule {
        groups: list("apiGroups"),
        resources: list("resources"),
        names: list("resourceNames"),
        verbs: list("verbs"),
        reasons: Vec::new(),
    }
}

/// Makes Roles of what accounts need. `release` is the name of the installation.
pub(super) fn of_needs(needs: &Needs, host: &ServiceAccount, release: &str) -> Vec<Role> {
    let roles = needs.iter().map(|((account, namespace), targets)| Role {
        name: if account == host {
            format!("{release}-plugins")
        } else {
            format!("{release}-plugins:{}:{}", account.namespace, account.name)
        },
        namespace: namespace.clone(),
        account: account.clone(),
        rules: targets
            .iter()
            .map(|(target, need)| Rule {
                groups: vec![target.group.clone()],
                resources: vec![target.resource.clone()],
                names: target.names.clone(),
                verbs: need.verbs.iter().cloned().collect(),
                reasons: need.reasons.clone(),
            })
            .collect(),
    });
    roles.collect()
}

/// Returns a Role and its binding as YAML documents.
pub(super) fn print(role: &Role, release: &str) -> String {
    let Role { name, namespace, account, rules } = role;
    let prefix = if namespace.is_some() { "" } else { "Cluster" };
    let mut text = String::new();
    let head = |text: &mut String, kind: &str| {
        let _ = writeln!(text, "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {prefix}{kind}\nmetadata:");
        let _ = writeln!(text, "  name: {}", word(name));
        if let Some(namespace) = namespace {
            let _ = writeln!(text, "  namespace: {}", word(namespace));
        }
        let _ = writeln!(text, "  labels:\n    app.kubernetes.io/name: pilothouse");
        let _ = writeln!(text, "    app.kubernetes.io/instance: {}", word(release));
    };
    head(&mut text, "Role");
    text.push_str("rules:\n");
    for rule in rules {
        for reason in &rule.reasons {
            let _ = writeln!(text, "  # {reason}");
        }
        let _ = writeln!(text, "  - apiGroups: {}", list(&rule.groups));
        let _ = writeln!(text, "    resources: {}", list(&rule.resources));
        if !rule.names.is_empty() {
            let _ = writeln!(text, "    resourceNames: {}", list(&rule.names));
        }
        let _ = writeln!(text, "    verbs: {}", list(&rule.verbs));
    }
    head(&mut text, "RoleBinding");
    let _ =
        writeln!(text, "roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {prefix}Role\n  name: {}", word(name));
    let ServiceAccount { namespace, name } = account;
    let _ = writeln!(
        text,
        "subjects:\n  - kind: ServiceAccount\n    name: {}\n    namespace: {}",
        word(name),
        word(namespace)
    );
    text
}

/// Returns a service account as a YAML document.
pub(super) fn print_account(ServiceAccount { namespace, name }: &ServiceAccount, release: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: {}\n  namespace: {}\n  labels:\n    app.kubernetes.io/name: pilothouse\n    \
         app.kubernetes.io/instance: {}\n",
        word(name),
        word(namespace),
        word(release)
    )
}

fn list(words: &[String]) -> String {
    let words: Vec<_> = words.iter().map(|text| word(text)).collect();
    format!("[{}]", words.join(", "))
}

/// Returns a text plain if every YAML reader takes it as this text, or else quoted as JSON.
fn word(text: &str) -> String {
    const OTHERWISE: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/' | b'-'))
        && !OTHERWISE.contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}
