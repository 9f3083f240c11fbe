//! `AdmissionReview`: the request to a webhook, and its answer.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Asked, Failure, Hook, Operation};
use crate::{
    body,
    object::new_uid,
    resources::Resource,
    status::{Result, Status},
};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// Returns who every client is, because this server has no authentication.
pub(crate) fn user() -> Value {
    json!({"username": "pilothouse", "groups": ["system:masters", "system:authenticated"]})
}

/// Returns the `request` of a review. Objects are in the version of `version`.
pub(super) fn request(asked: &Asked<'_>, version: &Resource, uid: &str, object: &Value, old: &Value) -> Value {
    let call = asked.call;
    let kind = |of: &Resource| {
        let (group, version, kind) = asked.kind(of);
        json!({"group": group, "version": version, "kind": kind})
    };
    let resource = |of: &Resource| json!({"group": of.group, "version": of.version, "resource": of.plural});
    let mut request = json!({
        "uid": uid, "kind": kind(version), "resource": resource(version), "requestKind": kind(call.resource),
        "requestResource": resource(call.resource), "operation": asked.operation.as_str(), "userInfo": user(),
        "object": object, "oldObject": old, "dryRun": call.dry_run, "options": options(asked),
    });
    let subresource = call.part.subresource().unwrap_or_default();
    for (field, value) in [
        ("subResource", subresource.as_str()),
        ("requestSubResource", &subresource),
        ("name", &call.key.name),
        ("namespace", asked.namespace()),
    ] {
        if !value.is_empty() {
            request[field] = value.into();
        }
    }
    request
}

/// Returns the options of the request. A PUT or a patch that creates has those of a create.
fn options(asked: &Asked<'_>) -> Value {
    let mut options = asked.call.options.clone();
    if asked.operation == Operation::Create {
        options["kind"] = "CreateOptions".into();
        if let Some(options) = options.as_object_mut() {
            options.remove("force");
        }
    }
    options
}

/// A webhook's valid answer.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) warnings: Vec<String>,
    /// The client's error, if the webhook denied the request.
    pub(super) denied: Option<Status>,
    /// The JSON patch of a mutating webhook.
    pub(super) patch: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Review {
    kind: String,
    api_version: String,
    response: Option<Answer>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Answer {
    uid: String,
    allowed: bool,
    status: Option<Value>,
    patch: Option<String>,
    patch_type: Option<String>,
    warnings: Option<Vec<String>>,
    /// Checked for its type. This server has no audit log.
    #[serde(rename = "auditAnnotations")]
    _audit_annotations: Option<BTreeMap<String, String>>,
}

impl Asked<'_> {
    /// Converts an object of the request to the version that the webhook asked for. None becomes null.
    pub(super) async fn optional(&self, object: Option<&Value>, version: &Arc<Resource>) -> Result<Value> {
        match object {
            Some(object) => self.in_version(object, version).await,
            None => Ok(Value::Null),
        }
    }
}

/// Asks a webhook.
pub(super) async fn ask(
    asked: &Asked<'_>,
    hook: &Hook,
    version: &Arc<Resource>,
    mutating: bool,
) -> std::result::Result<Verdict, Failure> {
    let call = asked.call;
    if call.dry_run && !hook.dry_runs {
        let why = format!("admission webhook \"{}\" does not support dry run", hook.name);
        return Err(Failure::Rejected(Status::bad_request(why)));
    }
    let Some(timeout) = asked.time_left(hook.timeout) else {
        return Err(Failure::Rejected(Status::request_timeout()));
    };
    let object = asked.optional(asked.object, version).await.map_err(Failure::Rejected)?;
    let old = asked.optional(asked.old, version).await.map_err(Failure::Rejected)?;
    let uid = new_uid();
    let request = request(asked, version, &uid, &object, &old);
    let review = json!({"kind": KIND, "apiVersion": API_VERSION, "request": request});
    let late = "context deadline exceeded";
    let answer = call.server.caller.post(call.server, &hook.endpoint, &review, timeout, late).await;
    let answer = answer.and_then(|answer| serde_json::from_value(answer).map_err(|error| error.to_string()));
    let answer = answer.map_err(|why| Failure::Call(format!("failed to call webhook: {why}")))?;
    let answer = verify(answer, &uid, mutating);
    let answer = answer.map_err(|why| Failure::Call(format!("received invalid webhook response: {why}")))?;
    let denied = (!answer.allowed).then(|| Status::denied(&hook.name, &answer.status.unwrap_or_default()));
    let undecodable = |why: String| Failure::Call(format!("received undecodable patch in webhook response: {why}"));
    let patch = match answer.patch.filter(|patch| !patch.is_empty() && denied.is_none()) {
        None => None,
        Some(patch) => {
            let patch = BASE64.decode(patch).map_err(|error| undecodable(error.to_string()))?;
            let patch = body::json(&patch).map_err(undecodable)?.value;
            match answer.patch_type {
                Some(kind) if kind != "JSONPatch" => {
                    return Err(Failure::Call(format!("unsupported patch type \"{kind}\"")));
                }
                _ => Some(patch),
            }
        }
    };
    Ok(Verdict { warnings: answer.warnings.unwrap_or_default(), denied, patch })
}

/// Checks that an answer belongs to the request.
fn verify(review: Review, uid: &str, mutating: bool) -> std::result::Result<Answer, String> {
    let Some(answer) = review.response else { return Err("webhook response was absent".to_owned()) };
    if answer.uid != uid {
        return Err(format!("expected response.uid=\"{uid}\", got \"{}\"", answer.uid));
    }
    if review.kind != KIND || review.api_version != API_VERSION {
        let Review { kind, api_version, .. } = review;
        let found = if api_version.contains('/') { api_version } else { format!("/{api_version}") };
        return Err(format!("expected webhook response of {API_VERSION}, Kind={KIND}, got {found}, Kind={kind}"));
    }
    let patch = answer.patch.as_ref().is_some_and(|patch| !patch.is_empty());
    match (mutating, patch, answer.patch_type.as_deref()) {
        (false, true, _) => Err("validating webhook may not return response.patch".to_owned()),
        (false, _, Some(_)) => Err("validating webhook may not return response.patchType".to_owned()),
        (true, true, None) => Err("webhook returned response.patch but not response.patchType".to_owned()),
        (true, false, Some(_)) => Err("webhook returned response.patchType but not response.patch".to_owned()),
        (true, true, Some("")) => Err("webhook returned invalid response.patchType of \"\"".to_owned()),
        _ => Ok(answer),
    }
}
