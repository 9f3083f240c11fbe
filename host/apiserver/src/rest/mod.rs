//! What each verb does to objects, apart from how requests come in and answers go out.
//!
//! ```text
//!  create ──┐
//!  update ──┤                  ┌ names, schema, kind's own rules ┐
//!  patch  ──┼─► `write::prepare`┤ status and spec kept apart      ├─► managedFields ─► commit, or try again on a newer state
//!  apply  ──┤                  └ generation, times, finalizers    ┘
//!  delete ──┴─► mark, or remove
//! ```
//!
//! All of it is synchronous: nothing here waits but watches, which are in `watch`.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod list;
pub(crate) mod patch;
pub(crate) mod scale;
pub(crate) mod update;
mod write;

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use crate::convert;
use crate::managed::Manager;
use crate::object::{self, Key, Object};
use crate::request::FieldValidation;
use crate::resources::Resource;
use crate::server::Server;
use crate::status::{Result, Status};
use crate::storage::Refused;

/// The part of an object that a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Object,
    Status,
    Scale,
    /// `spec.finalizers` of a namespace.
    Finalize,
}

impl Part {
    pub(crate) fn of(subresource: &str, resource: &Resource) -> Option<Self> {
        match subresource {
            "" => Some(Part::Object),
            "status" if resource.status => Some(Part::Status),
            "scale" if resource.scale.is_some() => Some(Part::Scale),
            "finalize" if resource.plural == "namespaces" && resource.group.is_empty() => Some(Part::Finalize),
            _ => None,
        }
    }

    fn subresource(self) -> Option<String> {
        match self {
            Part::Object => None,
            Part::Status => Some("status".to_owned()),
            Part::Scale => Some("scale".to_owned()),
            Part::Finalize => Some("finalize".to_owned()),
        }
    }
}

/// A write, as the request has it.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) server: &'a Server,
    pub(crate) resource: &'a Arc<Resource>,
    pub(crate) key: Key,
    pub(crate) part: Part,
    /// Who writes.
    pub(crate) manager: String,
    pub(crate) dry_run: bool,
    pub(crate) validation: FieldValidation,
    /// What the client should know though the request succeeded.
    pub(crate) warnings: Vec<String>,
}

/// What a request is answered with.
#[derive(Debug)]
pub(crate) enum Answer {
    /// An object as it is kept.
    Kept(StatusCode, Arc<Object>),
    /// An object that is not kept: the result of a dry run, a `Scale`, a `Status`.
    Made(StatusCode, Value),
}

impl Call<'_> {
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
            time: object::now(),
            ignore,
        }
    }

    /// A refused commit, for the client. `None`: try again on the newer state.
    fn refused(&self, refused: Refused) -> Option<Status> {
        let of = self.resource.group_resource();
        Some(match refused {
            Refused::Stale => return None,
            Refused::Exists => Status::already_exists(&of, &self.key.name),
            Refused::NoNamespace => {
                Status::not_found(&crate::resources::GroupResource::namespaces(), &self.key.namespace)
            }
            Refused::NamespaceTerminating => Status::namespace_terminating(&of, &self.key.name, &self.key.namespace),
            Refused::ResourceTerminating => Status::forbidden(
                &of,
                &self.key.name,
                "create not allowed while custom resource definition is terminating",
            ),
        })
    }
}

/// Reads one object.
pub(crate) fn get(server: &Server, resource: &Arc<Resource>, key: &Key, part: Part) -> Result<Answer> {
    let found = server.store.get(&resource.storage, key);
    let found = found.ok_or_else(|| Status::not_found(&resource.group_resource(), &key.name))?;
    match part {
        Part::Scale => {
            let view = convert::to_requested(resource, &found.value);
            Ok(Answer::Made(StatusCode::OK, scale::of(resource, &view)?))
        }
        _ => Ok(Answer::Kept(StatusCode::OK, found)),
    }
}

/// A body must be an object of the resource's kind. Fills in what built-in kinds may leave out.
fn check_kind(resource: &Resource, object: &mut Value, replaces: bool) -> Result<()> {
    if object.is_null() {
        *object = json!({});
    }
    let kind = &resource.kind;
    let Some(members) = object.as_object_mut() else {
        return Err(Status::bad_request(
            "couldn't get version/kind; json parse error: json: cannot unmarshal into Go value of type struct { \
             APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }",
        ));
    };
    for field in ["apiVersion", "kind"] {
        let missing = members.get(field).and_then(Value::as_str).is_none_or(str::is_empty);
        if missing && resource.custom && !replaces {
            let what = if field == "kind" { "Kind" } else { "apiVersion" };
            let text = serde_json::to_string(members).unwrap_or_default();
            return Err(Status::bad_request(format!("Object '{what}' is missing in '{text}'")));
        }
        if missing {
            let value = if field == "kind" { kind.clone() } else { resource.api_version() };
            members.insert(field.to_owned(), value.into());
        }
    }
    let given_version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    if given_version != resource.api_version() {
        return Err(Status::bad_request(format!(
            "the API version in the data ({given_version}) does not match the expected API version ({})",
            resource.api_version()
        )));
    }
    let given_kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if given_kind != *kind {
        if resource.custom {
            let cause = crate::schema::Cause {
                reason: crate::schema::Reason::Invalid,
                field: "kind".to_owned(),
                message: format!("Invalid value: \"{given_kind}\": must be {kind}"),
            };
            return Err(Status::invalid(resource, object::name(object), &[cause]));
        }
        let version = &resource.version;
        return Err(Status::bad_request(format!(
            "{given_kind} in version \"{version}\" cannot be handled as a {kind}: converting ({version}.{given_kind}) to \
             ({version}.{kind}): unknown conversion"
        )));
    }
    match crate::names::check_types(object) {
        Ok(()) => Ok(()),
        Err(why) => Err(Status::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: {why}",
            resource.version
        ))),
    }
}

/// Drops fields that the kind does not have, and says so as the client asked.
fn check_fields(call: &mut Call<'_>, object: &mut Value, duplicates: &[String]) -> Result<()> {
    let unknown = call.resource.schema().prune(object);
    if call.validation == FieldValidation::Ignore {
        return Ok(());
    }
    let mut problems: Vec<String> = duplicates.iter().map(|path| format!("duplicate field \"{path}\"")).collect();
    problems.extend(unknown.iter().map(|path| format!("unknown field \"{path}\"")));
    if call.validation == FieldValidation::Strict && !problems.is_empty() {
        return Err(Status::bad_request(problems.join(", ")));
    }
    call.warnings.extend(problems);
    Ok(())
}

/// [`check_fields`] for whole bodies: a refusal is a bad request.
fn check_body_fields(call: &mut Call<'_>, object: &mut Value, duplicates: &[String]) -> Result<()> {
    let (kind, version) = (call.resource.kind.clone(), call.resource.version.clone());
    check_fields(call, object, duplicates).map_err(|status| {
        Status::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: strict decoding error: {}",
            status.message
        ))
    })
}
