//! PATCH with one of four kinds: JSON patch, merge patch, strategic merge patch and server-side apply.

use http::{HeaderMap, header};
use serde_json::Value;

use super::{
    Answer, Call, Part, check_fields, check_kind, check_name,
    create::{Tracking, insert, place},
    scale,
    write::{Replaced, replace},
};
use crate::{
    body, convert, managed,
    object::{meta_str, name, set_meta},
    patch,
    request::{FieldValidation, Params, options_error, text_header},
    schema::{Reason, Schema},
    status::{Result, Status},
};

/// The kind of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl Kind {
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let content_type = text_header(headers, header::CONTENT_TYPE);
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Some(Kind::Json),
            "application/merge-patch+json" => Some(Kind::Merge),
            "application/strategic-merge-patch+json" => Some(Kind::Strategic),
            "application/apply-patch+yaml" => Some(Kind::Apply),
            _ => None,
        }
    }
}

/// Patches the object, or the part of it, that the request names.
pub(crate) async fn patch(call: &mut Call<'_>, kind: Option<Kind>, params: &Params, body: &[u8]) -> Result<Answer> {
    let strategic = kind == Some(Kind::Strategic) && call.resource.custom;
    let kind = kind.filter(|_| !strategic).ok_or_else(|| unsupported(call))?;
    if kind == Kind::Apply {
        return apply(call, params, body).await;
    }
    if params.has("force") {
        let message = "Forbidden: may not be specified for non-apply patch".to_owned();
        return Err(options_error("PatchOptions", Reason::Forbidden, "force", message));
    }
    call.patched = true;
    let decoded = body::json(body).map_err(|why| Status::bad_request(format!("error decoding patch: {why}")))?;
    loop {
        let Some(current) = call.current() else { return Err(call.not_found()) };
        let view = convert::to_requested(call.server, call.resource, &current.value).await?;
        let warned = call.warnings.len();
        let replaced = if call.part == Part::Scale {
            let before = scale::of_any(call.resource, &view);
            let after = compute(kind, &before, &decoded.value, &scale::schema())?;
            let wanted = scale::write(call.resource, &view, &after, true)?;
            replace(call, &current, wanted, Tracking::Update).await?
        } else {
            let mut wanted = compute(kind, &view, &decoded.value, call.resource.schema())?;
            check_patched(call, &mut wanted, &decoded.duplicates)?;
            check_name(call, &wanted)?;
            check_version(call, &wanted, &view)?;
            replace(call, &current, wanted, Tracking::Update).await?
        };
        match replaced {
            Replaced::Done(answer) => return scale::answer(call, answer).await,
            Replaced::Overtaken => call.warnings.truncate(warned),
        }
    }
}

fn unsupported(call: &Call<'_>) -> Status {
    let mut accepted = vec!["application/json-patch+json", "application/merge-patch+json"];
    if !call.resource.custom {
        accepted.push("application/strategic-merge-patch+json");
    }
    accepted.push("application/apply-patch+yaml");
    Status::unsupported_patch(&accepted.join(", "))
}

fn compute(kind: Kind, current: &Value, patch: &Value, schema: &Schema) -> Result<Value> {
    Ok(match kind {
        Kind::Json => patch::json(current, patch, schema)?,
        Kind::Strategic => patch::strategic(current, patch, schema)?,
        Kind::Merge | Kind::Apply => patch::merge(current, patch, schema)?,
    })
}

/// Checks that the result of a patch is still an object of its kind.
fn check_patched(call: &mut Call<'_>, wanted: &mut Value, duplicates: &[String]) -> Result<()> {
    check_kind(call, wanted)?;
    check_fields(call, wanted, duplicates)
}

/// Checks the resourceVersion in a patch, if there is one.
fn check_version(call: &Call<'_>, wanted: &Value, view: &Value) -> Result<()> {
    let version = meta_str(wanted, "resourceVersion");
    if version.is_empty() || version == meta_str(view, "resourceVersion") { Ok(()) } else { Err(call.modified()) }
}

/// Server-side apply: the manager owns the fields in the body. Fields that it owned before and that the body lacks are
/// removed.
async fn apply(call: &mut Call<'_>, params: &Params, body: &[u8]) -> Result<Answer> {
    if params.get("fieldManager").is_empty() {
        let message = "Required value: is required for apply patch".to_owned();
        return Err(options_error("PatchOptions", Reason::Required, "fieldManager", message));
    }
    let body::Decoded { value: mut applied, duplicates } =
        body::yaml(body).map_err(|why| Status::bad_request(format!("error decoding YAML: {why}")))?;
    // As in any other body, the last of duplicate members counts.
    let duplicates = duplicates.iter().map(|path| format!("duplicate field \"{path}\""));
    match call.validation {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => call.warnings.extend(duplicates),
        FieldValidation::Strict => {
            if let Some(first) = duplicates.into_iter().next() {
                return Err(Status::bad_request(format!("error strict decoding YAML: {first}")));
            }
        }
    }
    let (api_version, kind) = match call.part {
        Part::Scale => ("autoscaling/v1".to_owned(), "Scale"),
        _ => (call.resource.api_version(), call.resource.kind.as_str()),
    };
    let given = |field: &str| applied[field].as_str().unwrap_or_default();
    if given("apiVersion") != api_version || given("kind") != kind {
        let (group, version) = given("apiVersion").split_once('/').unwrap_or(("", given("apiVersion")));
        return Err(Status::bad_request(format!("invalid object type: {group}/{version}, Kind={}", given("kind"))));
    }
    if !applied["metadata"]["managedFields"].is_null() {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    if call.part == Part::Scale {
        applied = scale::fragment(call, &applied)?;
    }
    check_kind(call, &mut applied)?;
    place(call, &mut applied)?;
    if name(&applied).is_empty() {
        set_meta(&mut applied, "name", call.key.name.as_ref().into());
    }
    check_name(call, &applied)?;
    let force = params.flag("force");
    loop {
        let current = call.current();
        let view = match &current {
            Some(current) => Some(convert::to_requested(call.server, call.resource, &current.value).await?),
            None => None,
        };
        if let Some(view) = &view {
            check_version(call, &applied, view)?;
        }
        let wanted = managed::apply(view.as_deref(), &applied, call.resource.schema(), &call.manager(), force)
            .map_err(|error| match error {
                managed::Error::Conflicts(conflicts) => Status::apply_conflicts(&conflicts),
                managed::Error::Invalid(why) => Status::unknown(why),
            })?;
        let Some(current) = current else {
            if call.part != Part::Object {
                return Err(call.not_found());
            }
            match insert(call, wanted, Tracking::Applied).await {
                Err(super::create::Failure::Refused(crate::storage::Refused::Exists)) => continue,
                other => return other.map_err(|failure| failure.status(call)),
            }
        };
        match replace(call, &current, wanted, Tracking::Applied).await? {
            Replaced::Done(answer) => return scale::answer(call, answer).await,
            Replaced::Overtaken => {}
        }
    }
}
