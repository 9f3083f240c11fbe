//! DELETE: deletes one object or a collection.
//!
//! An object with finalizers is only marked. Removing its last finalizer deletes it. Background deletion leaves
//! dependents to garbage collection. Foreground deletion and orphaning are finalizers that garbage collection removes.

use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;

use super::{Answer, Call};
use crate::{
    admission::{self, Operation},
    convert,
    graph::{FOREGROUND, ORPHAN},
    kinds,
    object::{self, Key, Object, finalizers, is_deleting, meta_str, set_finalizers, set_meta, uid},
    request::Params,
    resources::{GroupResource, Resource},
    schema::{Cause, Reason},
    server::Server,
    status::{Result, Status, success},
};

/// What happens to an object's dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// The options of a delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// `None` for the kind's default, which a finalizer on the object may override.
    pub(crate) propagation: Option<Propagation>,
    pub(crate) grace: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) dry_run: bool,
}

impl Options {
    pub(crate) fn with(propagation: Propagation) -> Self {
        Options { propagation: Some(propagation), ..Options::default() }
    }

    /// Reads the options from the body if there is one, and else from the query.
    pub(crate) fn parse(body: &Value, params: &Params) -> Result<Self> {
        let mut options = Options { dry_run: params.dry_run("DeleteOptions")?, ..Options::default() };
        let kind = body["kind"].as_str().unwrap_or("DeleteOptions");
        if !(body.is_null() || body.is_object()) || !["DeleteOptions", ""].contains(&kind) {
            return Err(Status::bad_request(format!("no kind \"{kind}\" is registered for DeleteOptions")));
        }
        for value in body["dryRun"].as_array().into_iter().flatten() {
            options.dry_run = true;
            if value.as_str() != Some("All") {
                let message = format!("Unsupported value: [{value}]: supported values: \"All\"");
                return Err(invalid_options(Reason::NotSupported, "dryRun", message));
            }
        }
        let policy = match body["propagationPolicy"].as_str() {
            Some(policy) => policy,
            None => params.get("propagationPolicy"),
        };
        let orphan = match body["orphanDependents"].as_bool() {
            None if params.has("orphanDependents") => Some(params.flag("orphanDependents")),
            given => given,
        };
        if orphan.is_some() && !policy.is_empty() {
            let message = "Invalid value: orphanDependents and deletionPropagation cannot be both set".to_owned();
            return Err(invalid_options(Reason::Invalid, "propagationPolicy", message));
        }
        options.propagation = match policy {
            "" => orphan.map(|orphan| if orphan { Propagation::Orphan } else { Propagation::Background }),
            "Background" => Some(Propagation::Background),
            "Foreground" => Some(Propagation::Foreground),
            "Orphan" => Some(Propagation::Orphan),
            other => {
                let message = format!(
                    "Unsupported value: \"{other}\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                );
                return Err(invalid_options(Reason::NotSupported, "propagationPolicy", message));
            }
        };
        options.grace = match body["gracePeriodSeconds"].as_i64() {
            Some(grace) => Some(grace),
            None => params.number("gracePeriodSeconds")?,
        };
        let precondition = |field: &str| body["preconditions"][field].as_str().map(ToOwned::to_owned);
        options.uid = precondition("uid");
        options.version = precondition("resourceVersion");
        Ok(options)
    }

    fn check(&self, resource: &Resource, object: &Value) -> Result<()> {
        let checks = [
            ("UID", &self.uid, uid(object), "deleted and then recreated"),
            ("ResourceVersion", &self.version, meta_str(object, "resourceVersion"), "modified"),
        ];
        for (what, wanted, found, meanwhile) in checks {
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
                let why = format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object \
                     might have been {meanwhile}"
                );
                let of = GroupResource::new(&resource.group, &resource.kind);
                return Err(Status::conflict(&of, meta_str(object, "name"), &why));
            }
        }
        Ok(())
    }
}

fn invalid_options(reason: Reason, field: &str, message: String) -> Status {
    let cause = Cause { reason, field: field.to_owned(), message };
    Status::invalid_kind("DeleteOptions", "meta.k8s.io", "", &[cause])
}

/// The result of a deletion.
pub(crate) enum Deleted {
    /// The object is gone. Holds its last state.
    Gone(Arc<Object>),
    /// The object is marked, and stays until its finalizers are removed.
    Marked(Arc<Object>),
    /// Dry run: the object would be marked.
    WouldMark(Value),
    /// Dry run: the object would be gone.
    WouldGo(Value),
}

/// Deletes the object that the request names.
pub(crate) async fn delete(call: &mut Call<'_>, options: &Options) -> Result<Answer> {
    let resource = call.resource;
    loop {
        let Some(current) = call.current() else { return Err(call.not_found()) };
        kinds::check_delete(resource, &current.value)?;
        options.check(resource, &current.value)?;
        ask(call, &current).await?;
        let Some(deleted) = remove(call.server, resource, &current, options) else { continue };
        let gone = |last: &Value| {
            let name = meta_str(last, "name");
            Answer::Made(StatusCode::OK, success(&resource.group_resource(), name, uid(last)))
        };
        return Ok(match deleted {
            Deleted::Gone(last) if kinds::returns_deleted(resource) => Answer::Kept(StatusCode::OK, last),
            Deleted::Gone(last) => gone(&last.value),
            Deleted::Marked(marked) => Answer::Kept(StatusCode::OK, marked),
            Deleted::WouldGo(value) if !kinds::returns_deleted(resource) => gone(&value),
            Deleted::WouldMark(value) | Deleted::WouldGo(value) => Answer::Made(StatusCode::OK, value),
        });
    }
}

/// Deletes every object of `objects`, up to the first that a webhook does not let go.
pub(crate) async fn delete_all(call: &mut Call<'_>, objects: &[Arc<Object>], options: &Options) -> Result<()> {
    for object in objects {
        let mut current = Arc::clone(object);
        // As in kube-apiserver, the request to a webhook has no name.
        call.key = Key::new(object::namespace(&current.value), "");
        loop {
            ask(call, &current).await?;
            if remove(call.server, call.resource, &current, options).is_some() {
                break;
            }
            match call.server.store.get(&call.resource.storage, &current.key()) {
                Some(newer) if uid(&newer.value) == uid(&current.value) => current = newer,
                _ => break,
            }
        }
    }
    Ok(())
}

/// Asks the webhooks about a deletion.
async fn ask(call: &mut Call<'_>, current: &Object) -> Result<()> {
    let old = convert::to_requested(call.server, call.resource, &current.value).await?;
    admission::mutate(call, Operation::Delete, None, Some(&old)).await?;
    admission::validate(call, Operation::Delete, None, Some(&old)).await
}

/// Marks or removes `current`. `None` if another write came first.
pub(crate) fn remove(
    server: &Server,
    resource: &Arc<Resource>,
    current: &Arc<Object>,
    options: &Options,
) -> Option<Deleted> {
    let mut next = current.value.clone();
    let kept: Vec<&str> = finalizers(&current.value);
    let dependents = match options.propagation {
        Some(Propagation::Foreground) => Some(FOREGROUND),
        Some(Propagation::Orphan) => Some(ORPHAN),
        Some(Propagation::Background) => None,
        None => kept.iter().copied().find(|finalizer| [FOREGROUND, ORPHAN].contains(finalizer)),
    };
    let mut wanted: Vec<&str> = kept.iter().copied().filter(|f| ![FOREGROUND, ORPHAN].contains(f)).collect();
    wanted.extend(dependents);
    if wanted.len() != kept.len() || wanted.iter().any(|finalizer| !kept.contains(finalizer)) {
        set_finalizers(&mut next, &wanted);
    }
    let own = kinds::own_finalizer(resource).filter(|own| !wanted.contains(own) && !is_deleting(&next));
    if let Some(own) = own {
        wanted.push(own);
        set_finalizers(&mut next, &wanted);
    }
    let newly = !is_deleting(&next);
    if kinds::ends_by_controller(resource) {
        if newly {
            set_meta(&mut next, "deletionTimestamp", server.now().into());
        }
    } else {
        let grace = kinds::grace(resource, &current.value, options.grace);
        let left = next["metadata"]["deletionGracePeriodSeconds"].as_i64();
        if newly || left.is_some_and(|left| left > grace) {
            set_meta(&mut next, "deletionTimestamp", server.after(grace).into());
            set_meta(&mut next, "deletionGracePeriodSeconds", grace.into());
        }
        if newly && resource.generation {
            let generation = next["metadata"]["generation"].as_i64().unwrap_or(0).saturating_add(1);
            set_meta(&mut next, "generation", generation.into());
        }
    }
    let stays = !wanted.is_empty() || !kinds::may_vanish(resource, &next);
    if stays {
        kinds::mark_deleting(resource, &mut next);
        if options.dry_run {
            return Some(Deleted::WouldMark(next));
        }
        if next == current.value {
            return Some(Deleted::Marked(Arc::clone(current)));
        }
        return server.update(resource, current, next).ok().map(Deleted::Marked);
    }
    // An object that is deleted at once never shows a deletionTimestamp, except for pods.
    let last = if is_deleting(&current.value) || kinds::is_pod(resource) { next } else { current.value.clone() };
    if options.dry_run {
        return Some(Deleted::WouldGo(last));
    }
    server.remove(resource, current, last).ok().map(Deleted::Gone)
}
