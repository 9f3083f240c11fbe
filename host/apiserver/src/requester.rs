//! Who sends a request, and what RBAC lets them do.
//!
//! A request without a token and without `Impersonate-User` may do everything. Otherwise [`allows`] judges the service
//! account or the user. As on kube-apiserver, every user may ask what they themselves may do.

use http::{HeaderMap, HeaderName, header};

use crate::{
    object::Key,
    rbac::{Action, User, allows},
    request::{Params, Target, text_header},
    resources::{GroupResource, Resource},
    server::Server,
    status::{Result, Status},
    tokens,
};

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");

/// Somebody who is named.
struct Named {
    name: String,
    groups: Vec<String>,
}

impl Named {
    fn account(namespace: &str, name: &str) -> Self {
        Self {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
        }
    }

    /// Checks that this user may do something.
    fn check(&self, server: &Server, action: Action<'_>) -> Result<()> {
        let user = User { name: &self.name, groups: self.groups.iter().map(String::as_str).collect() };
        if allows(server, &user, action).is_some() { Ok(()) } else { Err(self.forbidden(action)) }
    }

    /// Returns the error in kube-apiserver's words.
    fn forbidden(&self, action: Action<'_>) -> Status {
        let Action::Object { verb, group, resource, subresource, namespace, name } = action else {
            return Status::bad_request("only resources are judged");
        };
        let part = if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
        let place = if namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace \"{namespace}\"")
        };
        let why = format!("User \"{}\" cannot {verb} resource \"{part}\" in API group \"{group}\" {place}", self.name);
        Status::forbidden(&GroupResource::new(group, resource), name, &why)
    }
}

/// Checks that the sender of a request for a resource may do what it asks for. `verb` is that of the metrics.
pub(crate) fn authorize(
    server: &Server,
    headers: &HeaderMap,
    (target, resource): (&Target, &Resource),
    params: &Params,
    verb: &str,
) -> Result<()> {
    let Some(user) = user(server, headers)? else { return Ok(()) };
    if target.plural.starts_with("selfsubject") {
        return Ok(());
    }
    // A list of one name is judged as such.
    let selected = params.get("fieldSelector").split(',').find_map(|field| field.strip_prefix("metadata.name="));
    let name = if target.name.is_empty() { selected.unwrap_or_default() } else { &target.name };
    let is_namespace = target.group.is_empty() && target.plural == "namespaces";
    let action = |verb| Action::Object {
        verb,
        group: &target.group,
        resource: &target.plural,
        subresource: &target.subresource,
        namespace: if is_namespace { &target.name } else { &target.namespace },
        name,
    };
    user.check(
        server,
        action(match verb {
            "POST" => "create",
            "PUT" => "update",
            "PATCH" | "APPLY" => "patch",
            "LIST" => "list",
            "WATCH" => "watch",
            "DELETE" => "delete",
            "DELETECOLLECTION" => "deletecollection",
            _ => "get",
        }),
    )?;
    // An apply of an object that does not exist creates it.
    let key = Key::new(&target.namespace, &target.name);
    if verb == "APPLY" && target.subresource.is_empty() && server.store.get(&resource.group_resource(), &key).is_none()
    {
        user.check(server, action("create"))?;
    }
    Ok(())
}

/// Returns who sends the request. `None`: somebody who is not named.
fn user(server: &Server, headers: &HeaderMap) -> Result<Option<Named>> {
    let token = text_header(headers, header::AUTHORIZATION).strip_prefix("Bearer ").map(str::trim);
    let sender = match token.filter(|token| tokens::looks_like_one(token)) {
        None => None,
        Some(token) => match tokens::account(server, token) {
            Some(Key { namespace, name }) => Some(Named::account(&namespace, &name)),
            None => return Err(Status::unauthorized()),
        },
    };
    let wanted = text_header(headers, IMPERSONATE_USER);
    if wanted.is_empty() {
        return Ok(sender);
    }
    let account = wanted.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
    let (resource, namespace, name) = match account {
        Some((namespace, name)) => ("serviceaccounts", namespace, name),
        None => ("users", "", wanted),
    };
    if let Some(sender) = sender {
        let (verb, subresource) = ("impersonate", "");
        sender.check(server, Action::Object { verb, group: "", resource, subresource, namespace, name })?;
    }
    let groups = headers.get_all(IMPERSONATE_GROUP).iter().filter_map(|group| Some(group.to_str().ok()?.to_owned()));
    Ok(Some(match account {
        Some((namespace, name)) => Named::account(namespace, name),
        None => Named { name: wanted.to_owned(), groups: groups.chain(["system:authenticated".to_owned()]).collect() },
    }))
}
