//! Implements the verbs on objects, independent of HTTP.
//!
//! ```text
//!  create ──┐   ┌ status and spec kept apart ┐
//!  update ──┤   │ defaults, finalizers       ├─► mutating webhooks ─► names, schema, kind's rules ─► validating webhooks
//!  patch  ──┼─► └ managedFields              ┘                                                               │
//!  apply  ──┤                                          commit, or try again on a newer state ◄───────────────┘
//!  delete ──┴─► webhooks ─► mark, or remove
//! ```
//!
//! A write waits only for webhooks (`admission`, `convert`).

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod eviction;
pub(crate) mod list;
pub(crate) mod patch;
pub(crate) mod scale;
pub(crate) mod update;
mod warnings;
mod write;

use std::{num::NonZeroU32, sync::Arc};

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    convert, kinds,
    managed::Manager,
    names,
    object::{self, Key, Object},
    request::FieldValidation,
    resources::{GroupResource, Resource},
    schema::Cause,
    server::Server,
    status::{Result, Status},
    storage::Refused,
};

/// The part of an object that a request concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Object,
    Status,
    Scale,
    /// `spec.finalizers` of a namespace.
    Finalize,
    /// The eviction of a Pod.
    Eviction,
    /// The log of a Pod.
    Log,
    /// A new token of a service account.
    Token,
}

impl Part {
    pub(crate) fn of(subresource: &str, resource: &Resource) -> Option<Self> {
        match subresource {
            "" => Some(Part::Object),
            "status" if resource.status => Some(Part::Status),
            "scale" if resource.scale.is_some() => Some(Part::Scale),
            "eviction" if kinds::is_pod(resource) => Some(Part::Eviction),
            "log" if kinds::is_pod(resource) => Some(Part::Log),
            "token" if resource.plural == "serviceaccounts" && resource.group.is_empty() => Some(Part::Token),
            "finalize" if resource.plural == "namespaces" && resource.group.is_empty() => Some(Part::Finalize),
            _ => None,
        }
    }

    /// Returns the name of the subresource, or `None` for the object itself.
    pub(crate) fn subresource(self) -> Option<String> {
        match self {
            Part::Object => None,
            Part::Status => Some("status".to_owned()),
            Part::Scale => Some("scale".to_owned()),
            Part::Finalize => Some("finalize".to_owned()),
            Part::Eviction => Some("eviction".to_owned()),
            Part::Log => Some("log".to_owned()),
            Part::Token => Some("token".to_owned()),
        }
    }
}

/// Upper bound for the bytes of all warnings, as in kube-apiserver.
const WARNINGS: usize = 4096;
/// Characters of a warning that is shortened.
const WARNING: usize = 256;

/// A write request.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) server: &'a Server,
    pub(crate) resource: &'a Arc<Resource>,
    pub(crate) key: Key,
    pub(crate) part: Part,
    /// The field manager.
    pub(crate) manager: String,
    pub(crate) dry_run: bool,
    pub(crate) validation: FieldValidation,
    /// `true` if the wanted object is the result of a patch.
    pub(crate) patched: bool,
    /// The options of the request, such as `CreateOptions`, as webhooks get them.
    pub(crate) options: Value,
    /// When webhooks must have answered.
    pub(crate) deadline: Instant,
    /// Warnings for the client. The request may still succeed.
    pub(crate) warnings: Vec<String>,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A stored object.
    Kept(StatusCode, Arc<Object>),
    /// An object that is not stored: the result of a dry run, a `Scale` or a `Status`.
    Made(StatusCode, Value),
}

impl Call<'_> {
    /// Adds warnings, each once. Beyond [`WARNINGS`] the last one is shortened, and the rest is dropped.
    pub(crate) fn add_warnings(&mut self, warnings: Vec<String>) {
        for warning in warnings {
            let shown: usize = self.warnings.iter().map(String::len).sum();
            if shown >= WARNINGS || self.warnings.contains(&warning) {
                continue;
            }
            let fits = shown + warning.len() <= WARNINGS;
            self.warnings.push(if fits { warning } else { warning.chars().take(WARNING).collect() });
        }
    }

    fn current(&self) -> Option<Arc<Object>> {
        self.server.store.get(&self.resource.storage, &self.key)
    }

    fn not_found(&self) -> Status {
        Status::not_found(&self.resource.group_resource(), &self.key.name)
    }

    fn manager(&self) -> Manager {
        let mut ignore = Vec::new();
        match self.part {
            Part::Object if self.resource.status => ignore.push("status".to_owned()),
            Part::Status => ignore.push("spec".to_owned()),
            _ => {}
        }
        if self.part == Part::Status && self.resource.custom {
            ignore.push("metadata".to_owned());
        }
        Manager {
            name: self.manager.clone(),
            api_version: self.resource.api_version(),
            subresource: self.part.subresource(),
            time: self.server.now(),
            ignore,
        }
    }

    /// Returns the client's error for a rejected commit, or `None` if the write is to be retried on the newer state.
    fn refused(&self, refused: Refused) -> Option<Status> {
        let of = self.resource.group_resource();
        Some(match refused {
            Refused::Stale => return None,
            Refused::Exists => Status::already_exists(&of, &self.key.name),
            Refused::NoNamespace => Status::not_found(&GroupResource::namespaces(), &self.key.namespace),
            Refused::NamespaceTerminating => Status::namespace_terminating(&of, &self.key.name, &self.key.namespace),
            Refused::ResourceTerminating => Status::forbidden(
                &of,
                &self.key.name,
                "create not allowed while custom resource definition is terminating",
            ),
        })
    }
}

/// Reads one object. `stale` is the number of the resource's last changes to ignore.
pub(crate) async fn get(
    server: &Server,
    resource: &Arc<Resource>,
    key: &Key,
    part: Part,
    stale: Option<NonZeroU32>,
) -> Result<Answer> {
    let found = match stale.and_then(|changes| server.store.before(&resource.storage, changes)) {
        Some(revision) => server.store.get_at(&resource.storage, key, revision),
        None => server.store.get(&resource.storage, key),
    };
    let found = found.ok_or_else(|| Status::not_found(&resource.group_resource(), &key.name))?;
    match part {
        Part::Scale => {
            let view = convert::to_requested(server, resource, &found.value).await?;
            Ok(Answer::Made(StatusCode::OK, scale::of(resource, &view)?))
        }
        _ => Ok(Answer::Kept(StatusCode::OK, found)),
    }
}

/// Checks that a body is an object of the resource's kind. Fills in apiVersion and kind, which built-in kinds may omit.
fn check_kind(call: &Call<'_>, object: &mut Value) -> Result<()> {
    let resource = call.resource;
    let kind = &resource.kind;
    if object.is_null() && !resource.custom {
        *object = json!({});
    }
    let unrecognized =
        |why: &str| Status::bad_request(format!("the object provided is unrecognized (must be of type {kind}): {why}"));
    let Some(members) = object.as_object_mut() else {
        let why = match object {
            Value::Null => "Object 'Kind' is missing in 'null'".to_owned(),
            other => format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct {{ \
                 APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
                names::json_type(other)
            ),
        };
        return Err(unrecognized(&why));
    };
    for (field, value) in [("kind", kind.clone()), ("apiVersion", resource.api_version())] {
        if members.get(field).and_then(Value::as_str).is_none_or(str::is_empty) {
            if resource.custom && field == "kind" {
                let text = serde_json::to_string(members).unwrap_or_default();
                return Err(unrecognized(&format!("Object 'Kind' is missing in '{text}'")));
            }
            let value = if resource.custom { String::new() } else { value };
            members.insert(field.to_owned(), value.into());
        }
    }
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let (given_version, given_kind) = (text("apiVersion"), text("kind"));
    if given_version != resource.api_version() {
        let registered = resource.custom || call.server.registry().find_kind(&given_version, &given_kind).is_some();
        if registered {
            return Err(Status::bad_request(format!(
                "the API version in the data ({given_version}) does not match the expected API version ({})",
                resource.api_version()
            )));
        }
        let why = format!("no kind \"{given_kind}\" is registered for version \"{given_version}\"");
        return Err(call.undecodable(object, &given_kind, &given_version, &why));
    }
    if given_kind != *kind {
        if resource.custom {
            let cause = Cause::invalid("kind", &object["kind"], &format!("must be {kind}"));
            return Err(Status::invalid_kind(&given_kind, &resource.group, object::name(object), &[cause]));
        }
        let version = &resource.version;
        // The names of Kubernetes' internal packages, whose types have no version.
        let internal =
            if resource.group.is_empty() { "core" } else { resource.group.split('.').next().unwrap_or_default() };
        let why = format!("converting ({version}.{given_kind}) to ({internal}.{kind}): unknown conversion");
        return Err(call.undecodable(object, &given_kind, version, &why));
    }
    names::check_types(object, resource.custom).map_err(|why| call.undecodable(object, kind, &resource.version, &why))
}

impl Call<'_> {
    /// Returns the error for an object, or the result of a patch, that cannot be decoded as the kind.
    fn undecodable(&self, object: &Value, kind: &str, version: &str, why: &str) -> Status {
        if self.patched {
            return Status::undecodable_patch(object, why);
        }
        let wanted = &self.resource.kind;
        let version = version.rsplit('/').next().unwrap_or_default();
        Status::bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {wanted}: {why}"))
    }
}

/// Drops unknown fields, and reports them as the client requested.
fn check_fields(call: &mut Call<'_>, object: &mut Value, duplicates: &[String]) -> Result<()> {
    let as_sent = (call.validation == FieldValidation::Strict).then(|| object.clone());
    let unknown = call.resource.schema().prune(object);
    if call.validation == FieldValidation::Ignore {
        return Ok(());
    }
    let mut problems: Vec<String> = duplicates.iter().map(|path| format!("duplicate field \"{path}\"")).collect();
    problems.extend(unknown.iter().map(|path| format!("unknown field \"{path}\"")));
    match as_sent {
        Some(sent) if !problems.is_empty() => {
            let why = format!("strict decoding error: {}", problems.join(", "));
            Err(call.undecodable(&sent, &call.resource.kind, &call.resource.version, &why))
        }
        _ => {
            call.warnings.extend(problems);
            Ok(())
        }
    }
}

/// Checks that the body has the object that the URL names.
fn check_name(call: &Call<'_>, object: &Value) -> Result<()> {
    let (given, wanted) = (object::name(object), &call.key.name);
    if *given == **wanted {
        return Ok(());
    }
    Err(Status::bad_request(match given {
        "" => format!("the name of the object ({wanted} based on URL) was undeterminable: name must be provided"),
        given => format!("the name of the object ({given}) does not match the name on the URL ({wanted})"),
    }))
}
