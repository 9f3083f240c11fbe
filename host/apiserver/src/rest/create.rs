//! POST: creates an object.

use http::StatusCode;
use serde_json::Value;

use super::{Answer, Call, check_fields, check_kind, warnings, write};
use crate::{
    body::Decoded,
    kinds, managed,
    object::{self, Key, meta_str, name_suffix, new_uid, now, remove_meta, set_meta},
    resources::Purpose,
    status::{Result, Status},
    storage::Refused,
};

/// How often a generated name is tried, as in kube-apiserver.
const GENERATED_NAMES: usize = 8;

/// Metadata that only the server writes.
const SYSTEM: [&str; 6] =
    ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"];

/// Creates the object in a body. `call.key` has the request's namespace, and the body has the object's name.
pub(crate) fn create(call: &mut Call<'_>, body: Decoded) -> Result<Answer> {
    let Decoded { mut value, duplicates } = body;
    check_kind(call, &mut value)?;
    check_fields(call, &mut value, &duplicates)?;
    if !call.resource.custom {
        call.warnings.extend(warnings::hidden_variables(&value));
    }
    if call.resource.purpose == Purpose::Review {
        return Ok(Answer::Made(StatusCode::CREATED, kinds::review(call.resource, value)));
    }
    place(call, &mut value)?;
    if !meta_str(&value, "resourceVersion").is_empty() {
        return Err(Status::unknown("resourceVersion should not be set on objects to be created"));
    }
    let generated = meta_str(&value, "name").is_empty() && !meta_str(&value, "generateName").is_empty();
    for attempt in 1.. {
        let mut object = value.clone();
        if generated {
            let prefix: String = meta_str(&value, "generateName").chars().take(63 - 5).collect();
            set_meta(&mut object, "name", format!("{prefix}{}", name_suffix()).into());
        }
        call.key = Key::of(&object);
        match insert(call, object, Tracking::Update) {
            Err(Failure::Refused(Refused::Exists)) if generated && attempt < GENERATED_NAMES => {}
            other => return other.map_err(|failure| failure.status(call)),
        }
    }
    unreachable!("the last attempt returns")
}

/// Checks that the body and the request have the same namespace.
pub(super) fn place(call: &Call<'_>, object: &mut Value) -> Result<()> {
    if !call.resource.namespaced {
        remove_meta(object, "namespace");
        return Ok(());
    }
    let given = object::namespace(object);
    if !given.is_empty() && *given != *call.key.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    set_meta(object, "namespace", call.key.namespace.as_ref().into());
    Ok(())
}

/// How `metadata.managedFields` is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tracking {
    /// From what the write changes.
    Update,
    /// Server-side apply has computed it.
    Applied,
}

/// Why an object could not be inserted.
pub(super) enum Failure {
    Refused(Refused),
    Status(Status),
}

impl Failure {
    pub(super) fn status(self, call: &Call<'_>) -> Status {
        match self {
            Failure::Status(status) => status,
            Failure::Refused(refused) => call
                .refused(refused)
                .unwrap_or_else(|| Status::modified(&call.resource.group_resource(), &call.key.name)),
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Failure::Status(status)
    }
}

/// Completes, checks and commits a new object with a final name and namespace.
pub(super) fn insert(
    call: &mut Call<'_>,
    mut object: Value,
    tracking: Tracking,
) -> std::result::Result<Answer, Failure> {
    let resource = call.resource;
    let managed = object["metadata"].get("managedFields").cloned();
    let generation = object["metadata"].get("generation").cloned();
    for field in SYSTEM {
        remove_meta(&mut object, field);
    }
    remove_meta(&mut object, "resourceVersion");
    remove_meta(&mut object, "generation");
    if resource.generation {
        set_meta(&mut object, "generation", 1.into());
    } else if let Some(generation) = generation {
        // Kinds without a generation keep the client's value.
        set_meta(&mut object, "generation", generation);
    }
    if resource.status
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("status");
    }
    kinds::prepare_create(call.server, resource, &mut object);
    resource.schema().default(&mut object);
    set_meta(&mut object, "uid", new_uid().into());
    set_meta(&mut object, "creationTimestamp", now().into());
    write::validate(call, &object, None)?;
    match (tracking, managed) {
        (Tracking::Applied, Some(managed)) => set_meta(&mut object, "managedFields", managed),
        (Tracking::Applied, None) => {}
        (Tracking::Update, _) => managed::track_update(None, &mut object, resource.schema(), &call.manager()),
    }
    if call.dry_run {
        call.server.store.may_create(&resource.storage, &call.key).map_err(Failure::Refused)?;
        return Ok(Answer::Made(StatusCode::CREATED, object));
    }
    let created = call.server.create(resource, object).map_err(Failure::Refused)?;
    Ok(Answer::Kept(StatusCode::CREATED, created))
}
