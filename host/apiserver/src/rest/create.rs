//! POST: creates an object.

use http::StatusCode;
use serde_json::Value;

use super::{Answer, Call, check_fields, check_kind, write};
use crate::{
    admission::{self, Operation},
    body::Decoded,
    convert, kinds, managed,
    object::{self, Key, copy_meta, meta_str, remove_meta, set_meta},
    resources::Purpose,
    review,
    status::{Result, Status},
    storage::Refused,
};

/// How often a generated name is tried, as in kube-apiserver.
const GENERATED_NAMES: usize = 8;

/// Metadata that only the server writes.
const SYSTEM: [&str; 6] =
    ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"];

/// Creates the object in a body. `call.key` has the request's namespace, and the body has the object's name.
pub(crate) async fn create(call: &mut Call<'_>, body: Decoded) -> Result<Answer> {
    let Decoded { mut value, duplicates } = body;
    check_kind(call, &mut value)?;
    check_fields(call, &mut value, &duplicates)?;
    if call.resource.purpose == Purpose::Review {
        let answer = review::answer(call.server, call.resource, &call.key.namespace, value);
        return Ok(Answer::Made(StatusCode::CREATED, answer));
    }
    place(call, &mut value)?;
    if !meta_str(&value, "resourceVersion").is_empty() {
        return Err(Status::unknown("resourceVersion should not be set on objects to be created"));
    }
    insert(call, value, Tracking::Update).await.map_err(|failure| failure.status(call))
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

/// Completes, checks and commits a new object. Its name may still have to be generated.
pub(super) async fn insert(
    call: &mut Call<'_>,
    object: Value,
    tracking: Tracking,
) -> std::result::Result<Answer, Failure> {
    let resource = call.resource;
    let applied = object["metadata"].get("managedFields").cloned().filter(|_| tracking == Tracking::Applied);
    let mut object = complete(call, object);
    call.key = Key::of(&object);
    match call.server.store.may_create(&resource.storage, &call.key) {
        // Found again at the commit. Webhooks are asked first.
        Ok(()) | Err(Refused::Exists) => {}
        Err(refused) => return Err(Failure::Refused(refused)),
    }
    match tracking {
        Tracking::Applied => {
            if let Some(applied) = applied {
                set_meta(&mut object, "managedFields", applied);
            }
        }
        Tracking::Update => managed::track_update(None, &mut object, resource.schema(), &call.manager()),
    }
    if let Some(mutated) = admission::mutate(call, Operation::Create, Some(&object), None).await? {
        // What webhooks change has no owner.
        let tracked = object;
        object = complete(call, mutated);
        copy_meta(&mut object, &tracked, "managedFields");
    }
    let prefix = meta_str(&object, "generateName");
    if !meta_str(&object, "name").is_empty() || prefix.is_empty() {
        return commit(call, object).await;
    }
    let prefix: String = prefix.chars().take(63 - 5).collect();
    for attempt in 1.. {
        let mut named = object.clone();
        set_meta(&mut named, "name", format!("{prefix}{}", call.server.draws.suffix()).into());
        kinds::prepare_create(call.server, resource, &mut named);
        match commit(call, named).await {
            Err(Failure::Refused(Refused::Exists)) if attempt < GENERATED_NAMES => {}
            other => return other,
        }
    }
    unreachable!("the last attempt returns")
}

/// Removes what only the server writes, and fills in what a new object has.
fn complete(call: &Call<'_>, mut object: Value) -> Value {
    let resource = call.resource;
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
    object
}

/// Checks and commits a complete object with its final name.
async fn commit(call: &mut Call<'_>, mut object: Value) -> std::result::Result<Answer, Failure> {
    let resource = call.resource;
    call.key = Key::of(&object);
    set_meta(&mut object, "uid", call.server.draws.uid().into());
    set_meta(&mut object, "creationTimestamp", call.server.now().into());
    write::validate(call, &object, None)?;
    write::warn(call, &object);
    admission::validate(call, Operation::Create, Some(&object), None).await?;
    if call.dry_run {
        call.server.store.may_create(&resource.storage, &call.key).map_err(Failure::Refused)?;
        return Ok(Answer::Made(StatusCode::CREATED, object));
    }
    let object = convert::to_stored(call.server, resource, object).await?;
    let created = call.server.create(resource, object).map_err(Failure::Refused)?;
    Ok(Answer::Kept(StatusCode::CREATED, created))
}
