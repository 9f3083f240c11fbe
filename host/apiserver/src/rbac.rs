//! Judges by Roles, ClusterRoles and their bindings what a user may do, as kube-apiserver's RBAC.
//!
//! Reviews ask, and requests of somebody who is named.

use serde_json::Value;

use crate::{
    object::{Key, array, name},
    resources::GroupResource,
    server::Server,
};

/// A user as a review names it.
#[derive(Debug, Clone)]
pub(crate) struct User<'a> {
    pub(crate) name: &'a str,
    pub(crate) groups: Vec<&'a str>,
}

/// What a user wants to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Action<'a> {
    Object {
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        subresource: &'a str,
        /// Empty for all namespaces, and for cluster-scoped resources.
        namespace: &'a str,
        /// Empty for all objects.
        name: &'a str,
    },
    Path {
        verb: &'a str,
        path: &'a str,
    },
}

/// Returns why a user may do something, in kube-apiserver's words. `None` if no rule allows it.
pub(crate) fn allows(server: &Server, user: &User<'_>, action: Action<'_>) -> Option<String> {
    if user.groups.contains(&"system:masters") {
        return Some(String::new());
    }
    let everywhere = bindings(server, "clusterrolebindings", None);
    let namespace = match action {
        Action::Object { namespace, .. } if !namespace.is_empty() => Some(namespace),
        _ => None,
    };
    let here = namespace.map(|namespace| bindings(server, "rolebindings", Some(namespace))).unwrap_or_default();
    everywhere.iter().chain(&here).find_map(|binding| {
        let of = Key::of(binding);
        let subject = array(&binding["subjects"]).iter().find(|subject| is_subject(subject, user, &of.namespace))?;
        let role = &binding["roleRef"];
        rules(server, role, &of.namespace).iter().find(|rule| covers(rule, action))?;
        let (kind, place) = if of.namespace.is_empty() {
            ("ClusterRoleBinding", of.name.to_string())
        } else {
            ("RoleBinding", format!("{}/{}", of.name, of.namespace))
        };
        let (role_kind, role_name) = (text(role, "kind"), name_of(role));
        let who = described(subject, &of.namespace);
        Some(format!("RBAC: allowed by {kind} \"{place}\" of {role_kind} \"{role_name}\" to {who}"))
    })
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn name_of(value: &Value) -> &str {
    text(value, "name")
}

fn rbac(plural: &str) -> GroupResource {
    GroupResource::new("rbac.authorization.k8s.io", plural)
}

fn bindings(server: &Server, plural: &str, namespace: Option<&str>) -> Vec<Value> {
    let listed = server.store.list(&rbac(plural), namespace, None, None);
    let mut bindings: Vec<_> =
        listed.map(|listed| listed.objects.iter().map(|object| object.value.clone()).collect()).unwrap_or_default();
    bindings.sort_by(|one: &Value, other: &Value| name(one).cmp(name(other)));
    bindings
}

/// Returns the namespace of a subject. In a RoleBinding, a service account is by default in the binding's own.
fn namespace_of<'a>(subject: &'a Value, binding: &'a str) -> &'a str {
    match text(subject, "namespace") {
        "" => binding,
        namespace => namespace,
    }
}

fn is_subject(subject: &Value, user: &User<'_>, namespace: &str) -> bool {
    let name = name_of(subject);
    match text(subject, "kind") {
        "User" => name == user.name,
        "Group" => user.groups.contains(&name),
        "ServiceAccount" => {
            let account = user.name.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
            account == Some((namespace_of(subject, namespace), name))
        }
        _ => false,
    }
}

fn described(subject: &Value, namespace: &str) -> String {
    let (kind, name) = (text(subject, "kind"), name_of(subject));
    match kind {
        "ServiceAccount" => format!("{kind} \"{name}/{}\"", namespace_of(subject, namespace)),
        _ => format!("{kind} \"{name}\""),
    }
}

/// Returns the rules of a role. Of kube-apiserver's own roles, there is only `cluster-admin`.
fn rules(server: &Server, role: &Value, namespace: &str) -> Vec<Value> {
    let (of, key) = match text(role, "kind") {
        "Role" => (rbac("roles"), Key::new(namespace, name_of(role))),
        _ => (rbac("clusterroles"), Key::new("", name_of(role))),
    };
    match server.store.get(&of, &key) {
        Some(role) => array(&role.value["rules"]).to_vec(),
        None if *of.resource == *"clusterroles" && *key.name == *"cluster-admin" => vec![
            serde_json::json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
            serde_json::json!({"verbs": ["*"], "nonResourceURLs": ["*"]}),
        ],
        None => Vec::new(),
    }
}

fn covers(rule: &Value, action: Action<'_>) -> bool {
    let any = |field: &str, fits: &dyn Fn(&str) -> bool| {
        array(&rule[field]).iter().filter_map(Value::as_str).any(|entry| entry == "*" || fits(entry))
    };
    match action {
        Action::Object { verb, group, resource, subresource, name, .. } => {
            let whole = if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
            let names = array(&rule["resourceNames"]);
            any("verbs", &|entry| entry == verb)
                && any("apiGroups", &|entry| entry == group)
                && any("resources", &|entry| {
                    entry == whole || !subresource.is_empty() && entry.strip_prefix("*/") == Some(subresource)
                })
                && (names.is_empty() || names.iter().any(|entry| *entry == *name))
        }
        Action::Path { verb, path } => {
            let fits = |entry: &str| {
                entry == path || entry.strip_suffix('*').is_some_and(|beginning| path.starts_with(beginning))
            };
            any("verbs", &|entry| entry == verb) && any("nonResourceURLs", &fits)
        }
    }
}
