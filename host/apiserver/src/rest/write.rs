//! The common part of updates, patches and applies: commits a wanted state.

use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;

use super::{Answer, Call, Part, create::Tracking, scale, warnings};
use crate::{
    admission::{self, Operation},
    convert, kinds, managed, names,
    object::{Object, copy_field, copy_meta, finalizers, is_deleting, meta_str, remove_meta, set_meta},
    schema::{Cause, Reason},
    status::{Result, Status},
};

/// The result of a replacement.
pub(super) enum Replaced {
    Done(Answer),
    /// A concurrent write came first.
    Overtaken,
}

/// Changes `current` to `wanted`, within the request's part of the object and the kind's rules.
pub(super) async fn replace(
    call: &mut Call<'_>,
    current: &Arc<Object>,
    wanted: Value,
    tracking: Tracking,
) -> Result<Replaced> {
    let resource = call.resource;
    let old = convert::to_requested(call.server, resource, &current.value).await?;
    let mut new = complete(call, &old, wanted)?;
    if tracking == Tracking::Update {
        let given = new["metadata"].get("managedFields").and_then(Value::as_array);
        if given.is_none_or(|entries| !clears(entries)) {
            copy_meta(&mut new, &old, "managedFields");
        }
        managed::track_update(Some(&old), &mut new, resource.schema(), &call.manager());
    }
    if let Some(mutated) = mutate(call, &old, &new).await? {
        // What webhooks change has no owner.
        let tracked = new;
        new = complete(call, &old, mutated)?;
        copy_meta(&mut new, &tracked, "managedFields");
    }
    let changed = needs_generation(call, &old, &new);
    if resource.generation && changed {
        let next = old["metadata"]["generation"].as_i64().unwrap_or(0).saturating_add(1);
        set_meta(&mut new, "generation", next.into());
    }
    validate(call, &new, Some(&old))?;
    // A change of a Pod's labels alone is warned of, too.
    if call.part == Part::Object && (changed || resource.kind == "Pod") {
        warn(call, &new);
    }
    match call.part {
        Part::Scale => {
            let (new, old) = (scale::of_any(resource, &new), scale::of_any(resource, &old));
            admission::validate(call, Operation::Update, Some(&new), Some(&old)).await?;
        }
        _ => admission::validate(call, Operation::Update, Some(&new), Some(&old)).await?,
    }
    commit(call, current, &old, new).await
}

/// Keeps what the request may not change, and fills in defaults.
fn complete(call: &Call<'_>, old: &Value, wanted: Value) -> Result<Value> {
    let resource = call.resource;
    let mut new = split(call, old, wanted);
    check_immutable(call, old, &new)?;
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        copy_meta(&mut new, old, field);
    }
    if resource.generation || !new["metadata"]["generation"].is_number() {
        copy_meta(&mut new, old, "generation");
    }
    copy_meta(&mut new, old, "resourceVersion");
    kinds::prepare_update(call.server, resource, call.part, old, &mut new);
    resource.schema().default(&mut new);
    Ok(new)
}

/// Asks the mutating webhooks. Of a scale they see only the `Scale`.
async fn mutate(call: &mut Call<'_>, old: &Value, new: &Value) -> Result<Option<Value>> {
    if call.part != Part::Scale {
        return admission::mutate(call, Operation::Update, Some(new), Some(old)).await;
    }
    let (before, after) = (scale::of_any(call.resource, old), scale::of_any(call.resource, new));
    let mutated = admission::mutate(call, Operation::Update, Some(&after), Some(&before)).await?;
    mutated.map(|scale| scale::write(call.resource, new, &scale, call.patched)).transpose()
}

/// `true` if a client resets managedFields by sending `[{}]`.
fn clears(entries: &[Value]) -> bool {
    matches!(entries, [Value::Object(only)] if only.is_empty())
}

async fn commit(call: &Call<'_>, current: &Arc<Object>, old: &Value, new: Value) -> Result<Replaced> {
    let resource = call.resource;
    let done = |object: &Arc<Object>| Ok(Replaced::Done(Answer::Kept(StatusCode::OK, Arc::clone(object))));
    let goes = is_deleting(&new) && finalizers(&new).is_empty() && kinds::may_vanish(resource, &new);
    if !goes && same(old, &new) {
        return done(current);
    }
    if call.dry_run {
        return Ok(Replaced::Done(Answer::Made(StatusCode::OK, new)));
    }
    if goes {
        // The answer is the object before its deletion, with its resourceVersion.
        let answer = Answer::Made(StatusCode::OK, new.clone());
        let new = convert::to_stored(call.server, resource, new).await?;
        return match call.server.remove(resource, current, new) {
            Ok(_) => Ok(Replaced::Done(answer)),
            Err(_) => Ok(Replaced::Overtaken),
        };
    }
    let new = convert::to_stored(call.server, resource, new).await?;
    match call.server.update(resource, current, new) {
        Ok(object) => done(&object),
        Err(_) => Ok(Replaced::Overtaken),
    }
}

/// `true` if a write changes nothing, apart from times in managedFields.
fn same(old: &Value, new: &Value) -> bool {
    let without = |object: &Value| -> Value {
        let mut managed = object["metadata"]["managedFields"].clone();
        for entry in managed.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            entry.remove("time");
        }
        managed
    };
    let parts = |object: &Value| {
        let mut rest = object.clone();
        remove_meta(&mut rest, "managedFields");
        rest
    };
    without(old) == without(new) && parts(old) == parts(new)
}

/// Keeps the parts that the request does not concern.
fn split(call: &Call<'_>, old: &Value, wanted: Value) -> Value {
    let resource = call.resource;
    match call.part {
        Part::Object | Part::Scale => {
            let mut new = wanted;
            if resource.status {
                copy_field(&mut new, old, "status");
            }
            if resource.plural == "namespaces" && resource.group.is_empty() {
                copy_field(&mut new, old, "spec");
            }
            new
        }
        Part::Status if resource.custom => {
            let mut new = old.clone();
            copy_field(&mut new, &wanted, "status");
            copy_meta(&mut new, &wanted, "managedFields");
            // Immutable fields are still checked.
            for field in ["uid", "name", "namespace"] {
                copy_meta(&mut new, &wanted, field);
            }
            new
        }
        Part::Status => {
            let mut new = old.clone();
            copy_field(&mut new, &wanted, "status");
            copy_field(&mut new, &wanted, "metadata");
            for field in ["labels", "ownerReferences", "finalizers"] {
                copy_meta(&mut new, old, field);
            }
            new
        }
        Part::Finalize => {
            let mut new = old.clone();
            copy_field(&mut new, &wanted, "spec");
            new
        }
        // No update and no patch reaches them.
        Part::Eviction | Part::Log | Part::Token => old.clone(),
    }
}

/// Checks the fields that no update may change.
fn check_immutable(call: &Call<'_>, old: &Value, new: &Value) -> Result<()> {
    let mut causes = Vec::new();
    for field in ["name", "namespace", "uid"] {
        let (given, kept) = (meta_str(new, field), meta_str(old, field));
        if given != kept && !(given.is_empty() && field == "uid") {
            causes.push(Cause::invalid(&format!("metadata.{field}"), &given.into(), "field is immutable"));
        }
    }
    if is_deleting(old) {
        let before = finalizers(old);
        let added: Vec<&str> = finalizers(new).into_iter().filter(|f| !before.contains(f)).collect();
        if !added.is_empty() {
            let list = added.iter().map(|f| format!("\"{f}\"")).collect::<Vec<_>>().join(", ");
            causes.push(Cause {
                reason: Reason::Forbidden,
                field: "metadata.finalizers".to_owned(),
                message: format!(
                    "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers \
                     []string{{{list}}}"
                ),
            });
        }
    }
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid(call.resource, &call.key.name, &causes)) }
}

/// `true` if a change increases the generation. Changes of metadata, and of status if it is a subresource, do not.
fn needs_generation(call: &Call<'_>, old: &Value, new: &Value) -> bool {
    let resource = call.resource;
    let ignored = |field: &str| match field {
        "metadata" | "apiVersion" | "kind" => true,
        "status" => resource.status,
        _ => false,
    };
    let fields = |object: &Value| -> Vec<(String, Value)> {
        let members = object.as_object().into_iter().flatten();
        members.filter(|(field, _)| !ignored(field)).map(|(field, value)| (field.clone(), value.clone())).collect()
    };
    fields(old) != fields(new)
}

/// Adds the server's own warnings about a valid object.
pub(super) fn warn(call: &mut Call<'_>, object: &Value) {
    if !call.resource.custom {
        call.add_warnings(warnings::hidden_variables(object));
    }
}

/// Validates an object before its commit.
pub(super) fn validate(call: &Call<'_>, object: &Value, old: Option<&Value>) -> Result<()> {
    let resource = call.resource;
    let name = meta_str(object, "name");
    let mut causes = names::validate(resource, object);
    let of_schema = resource.schema().validate(object, old);
    if !resource.custom
        && let Some(wrong) = of_schema.iter().find(|cause| cause.reason == Reason::TypeInvalid)
    {
        let why = format!("json: cannot unmarshal: {wrong}");
        return Err(call.undecodable(object, &resource.kind, &resource.version, &why));
    }
    // Metadata was checked above, with the messages that all kinds share.
    causes.extend(of_schema.into_iter().filter(|cause| resource.custom || !cause.field.starts_with("metadata.")));
    causes.extend(scale::validate(resource, object));
    for cause in kinds::validate(call.server, resource, object, old) {
        // The kind's own words say more than the schema's.
        match causes.iter_mut().find(|known| (&known.field, known.reason) == (&cause.field, cause.reason)) {
            Some(known) if known.message == "Required value" => *known = cause,
            Some(known) if *known == cause => {}
            _ => causes.push(cause),
        }
    }
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid(resource, name, &causes)) }
}
