//! The `scale` subresource: an `autoscaling/v1` Scale with the replicas of any scalable object.

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::{
    Answer, Call, Part,
    create::Tracking,
    write::{Replaced, replace},
};
use crate::{
    convert, names,
    object::{meta_str, set_at, set_meta},
    resources::Resource,
    schema::{Cause, Schema},
    selector::label_selector_text,
    status::{Result, Status},
};

/// Returns the scale of an object, or an error for a custom resource without a number of replicas.
pub(crate) fn of(resource: &Resource, object: &Value) -> Result<Value> {
    if let Some(paths) = resource.scale.as_ref().filter(|_| resource.custom)
        && at(object, &paths.spec).as_i64().is_none()
    {
        return Err(Status::internal(format!("the spec replicas field {:?} does not exist", paths.spec)));
    }
    Ok(of_any(resource, object))
}

/// Returns the scale of an object, with 0 for a missing number.
pub(crate) fn of_any(resource: &Resource, object: &Value) -> Value {
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    let paths = resource.scale.as_ref();
    let number = |path: Option<&String>| path.and_then(|path| at(object, path).as_i64()).unwrap_or(0);
    let mut status = json!({"replicas": number(paths.map(|paths| &paths.status))});
    let selector = paths.and_then(|paths| paths.selector.as_ref()).map(|path| label_selector_text(at(object, path)));
    if let Some(selector) = selector.filter(|selector| !selector.is_empty()) {
        status["selector"] = selector.into();
    }
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": number(paths.map(|paths| &paths.spec))},
        "status": status,
    })
}

/// The schema of a Scale. It allows anything, because only the replicas are read.
pub(crate) fn schema() -> Schema {
    Schema::preserve_all()
}

/// Checks the number of replicas of a custom resource.
pub(super) fn validate(resource: &Resource, object: &Value) -> Option<Cause> {
    let path = &resource.scale.as_ref().filter(|_| resource.custom)?.spec;
    let replicas = at(object, path);
    replicas.as_i64().filter(|replicas| *replicas < 0)?;
    Some(Cause::invalid(path, replicas, "should be a non-negative integer"))
}

/// Returns the object with the replicas of `scale`.
pub(crate) fn write(resource: &Resource, object: &Value, scale: &Value, patched: bool) -> Result<Value> {
    let paths = resource.scale.as_ref().ok_or_else(Status::unknown_resource)?;
    let given = &scale["spec"]["replicas"];
    let replicas = if given.is_null() { Some(0) } else { given.as_i64() };
    let Some(replicas) = replicas.filter(|replicas| i32::try_from(*replicas).is_ok()) else {
        let found = names::json_type(given);
        let why = format!("json: cannot unmarshal {found} into Go struct field ScaleSpec.spec.replicas of type int32");
        return Err(match patched {
            true => Status::undecodable_patch(scale, &why),
            false => Status::bad_request(format!("Scale in version \"v1\" cannot be handled as a Scale: {why}")),
        });
    };
    if replicas < 0 && !resource.custom {
        let cause = Cause::invalid("spec.replicas", given, "must be greater than or equal to 0");
        return Err(Status::invalid_kind("Scale", "autoscaling", meta_str(object, "name"), &[cause]));
    }
    let mut object = object.clone();
    let path: Vec<&str> = paths.spec.trim_start_matches('.').split('.').collect();
    set_at(&mut object, &path, replicas.into());
    Ok(object)
}

/// Replaces the Scale of an object.
pub(crate) async fn update(call: &mut Call<'_>, scale: &Value) -> Result<Answer> {
    let version = meta_str(scale, "resourceVersion").to_owned();
    loop {
        let Some(current) = call.current() else { return Err(call.not_found()) };
        if !version.is_empty() && version != meta_str(&current.value, "resourceVersion") {
            return Err(call.modified());
        }
        let view = convert::to_requested(call.server, call.resource, &current.value).await?;
        let wanted = write(call.resource, &view, scale, false)?;
        if let Replaced::Done(answer) = replace(call, &current, wanted, Tracking::Update).await? {
            return self::answer(call, answer).await;
        }
    }
}

/// Returns the part of the object that an applied Scale sets.
pub(super) fn fragment(call: &Call<'_>, scale: &Value) -> Result<Value> {
    let mut object = json!({
        "apiVersion": call.resource.api_version(), "kind": call.resource.kind,
        "metadata": {"name": scale["metadata"]["name"], "namespace": scale["metadata"]["namespace"]},
    });
    if let Some(version) = scale["metadata"].get("resourceVersion") {
        set_meta(&mut object, "resourceVersion", version.clone());
    }
    if scale["spec"]["replicas"].is_null() { Ok(object) } else { write(call.resource, &object, scale, false) }
}

/// Turns the answer to a write of the object into a Scale.
pub(crate) async fn answer(call: &Call<'_>, answer: Answer) -> Result<Answer> {
    if call.part != Part::Scale {
        return Ok(answer);
    }
    let object = match &answer {
        Answer::Kept(_, object) => &object.value,
        Answer::Made(_, value) => value,
    };
    let object = convert::to_requested(call.server, call.resource, object).await?;
    Ok(Answer::Made(StatusCode::OK, of_any(call.resource, &object)))
}

/// Returns the value at a path such as `.spec.replicas`, or null.
fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.trim_start_matches('.').split('.').fold(object, |value, step| &value[step])
}
