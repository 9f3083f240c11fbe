//! The answers to rejected requests: Kubernetes `Status` objects in kube-apiserver's words.
//!
//! Clients branch on `reason` and `code`, people read `message`, and kubectl prints `details.causes`. So all four are
//! part of the contract. Each constructor is named after the situation, not the HTTP code.

use std::{borrow::Cow, collections::BTreeMap};

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::{
    managed, patch,
    resources::{GroupResource, Resource},
    schema::Cause,
};

/// The answer to a rejected request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Status {
    pub(crate) code: StatusCode,
    reason: Cow<'static, str>,
    pub(crate) message: String,
    details: Map<String, Value>,
    /// `true` if empty details are left out.
    bare: bool,
    /// A token to continue an expired paged list.
    continue_token: Option<String>,
    /// `true` if the path is no resource, for which kube-apiserver answers in plain text.
    plain: bool,
}

pub(crate) type Result<T> = std::result::Result<T, Status>;

/// The accepted content types of a body, in kube-apiserver's order.
const ACCEPTED_BODIES: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

impl Status {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        let bare = ["", "BadRequest", "UnsupportedMediaType", "RequestEntityTooLarge"].contains(&reason);
        Status {
            code,
            reason: reason.into(),
            message: message.into(),
            details: Map::new(),
            bare,
            continue_token: None,
            plain: false,
        }
    }

    fn about(mut self, of: &GroupResource, name: &str) -> Self {
        self.detail("name", name);
        self.detail("group", &of.group);
        self.detail("kind", &of.resource);
        self
    }

    fn detail(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            self.details.insert(key.to_owned(), value.into());
        }
    }

    fn causes(mut self, causes: impl IntoIterator<Item = Value>) -> Self {
        let causes: Vec<Value> = causes.into_iter().collect();
        if !causes.is_empty() {
            self.details.insert("causes".to_owned(), causes.into());
        }
        self
    }

    /// A path that belongs to no group and no resource.
    pub(crate) fn unknown_path() -> Self {
        let mut status = Status::new(StatusCode::NOT_FOUND, "NotFound", "404 page not found");
        status.plain = true;
        status
    }

    /// A resource or version that a group of this server does not have.
    pub(crate) fn unknown_resource() -> Self {
        Status::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
    }

    pub(crate) fn not_found(of: &GroupResource, name: &str) -> Self {
        Status::new(StatusCode::NOT_FOUND, "NotFound", format!("{of} \"{name}\" not found")).about(of, name)
    }

    pub(crate) fn already_exists(of: &GroupResource, name: &str) -> Self {
        Status::new(StatusCode::CONFLICT, "AlreadyExists", format!("{of} \"{name}\" already exists")).about(of, name)
    }

    /// A concurrent write came first.
    pub(crate) fn modified(of: &GroupResource, name: &str) -> Self {
        Self::conflict(
            of,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn conflict(of: &GroupResource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {of} \"{name}\": {why}");
        Status::new(StatusCode::CONFLICT, "Conflict", message).about(of, name)
    }

    pub(crate) fn apply_conflicts(conflicts: &[managed::Conflict]) -> Self {
        let message = match conflicts {
            [one] => format!("Apply failed with 1 conflict: {}: {}", one.message, one.field),
            many => {
                let mut by_manager: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
                for conflict in many {
                    by_manager.entry(&conflict.message).or_default().push(&conflict.field);
                }
                let lines = by_manager.into_iter().flat_map(|(manager, fields)| {
                    let heading = format!("{}:", manager.replacen("conflict with", "conflicts with", 1));
                    std::iter::once(heading).chain(fields.into_iter().map(|field| format!("- {field}")))
                });
                format!("Apply failed with {} conflicts: {}", many.len(), lines.collect::<Vec<_>>().join("\n"))
            }
        };
        let causes =
            conflicts.iter().map(|c| json!({"reason": "FieldManagerConflict", "message": c.message, "field": c.field}));
        Status::new(StatusCode::CONFLICT, "Conflict", message).causes(causes)
    }

    /// The object violates its kind's rules. There is at least one cause.
    pub(crate) fn invalid(of: &Resource, name: &str, causes: &[Cause]) -> Self {
        Self::invalid_kind(&of.kind, &of.group, name, causes)
    }

    pub(crate) fn invalid_kind(kind: &str, group: &str, name: &str, causes: &[Cause]) -> Self {
        let of = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let why = match causes {
            [one] => one.to_string(),
            many => format!("[{}]", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
        };
        let mut status =
            Status::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", format!("{of} \"{name}\" is invalid: {why}"));
        status.detail("name", name);
        status.detail("group", group);
        status.detail("kind", kind);
        status
            .causes(causes.iter().map(|c| json!({"reason": c.reason.as_str(), "message": c.message, "field": c.field})))
    }

    /// A JSON patch does not fit the object. kube-apiserver gives no details.
    pub(crate) fn unfit_patch() -> Self {
        let why = "the server rejected our request due to an error in our request";
        Status::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", why)
    }

    /// The result of a patch is not an object of the kind.
    pub(crate) fn undecodable_patch(patched: &Value, why: &str) -> Self {
        let message = format!("Invalid value: {}: {why}", Value::from(patched.to_string()));
        Status::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", format!(" \"\" is invalid: patch: {message}"))
            .causes([json!({"reason": "FieldValueInvalid", "message": message, "field": "patch"})])
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Status::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// A browser may have sent the request for a web page.
    pub(crate) fn cross_site(why: &str) -> Self {
        Status::new(StatusCode::FORBIDDEN, "Forbidden", why)
    }

    /// A PodDisruptionBudget does not allow an eviction.
    pub(crate) fn over_budget(why: &str, retry_after: u32) -> Self {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        let mut status = Status::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
            .causes([json!({"reason": "DisruptionBudget", "message": why})]);
        if retry_after > 0 {
            status.details.insert("retryAfterSeconds".to_owned(), retry_after.into());
        }
        status
    }

    pub(crate) fn method_not_allowed() -> Self {
        Status::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    pub(crate) fn not_acceptable() -> Self {
        Status::new(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            "only the following media types are accepted: application/json",
        )
    }

    pub(crate) fn unsupported_body(content_type: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format ({content_type}) - accepted media types include: {ACCEPTED_BODIES}"
        );
        Status::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    pub(crate) fn unsupported_patch(accepted: &str) -> Self {
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Status::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    pub(crate) fn too_large(why: impl std::fmt::Display) -> Self {
        Status::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", format!("Request entity too large: {why}"))
    }

    /// The request names a token that is not valid.
    pub(crate) fn unauthorized() -> Self {
        Status::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn forbidden(of: &GroupResource, name: &str, why: &str) -> Self {
        let what = if name.is_empty() { of.to_string() } else { format!("{of} \"{name}\"") };
        Status::new(StatusCode::FORBIDDEN, "Forbidden", format!("{what} is forbidden: {why}")).about(of, name)
    }

    /// A new object is in a namespace that is being deleted.
    pub(crate) fn namespace_terminating(of: &GroupResource, name: &str, namespace: &str) -> Self {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        Self::forbidden(of, name, &why).causes([json!({
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        })])
    }

    /// The requested history is no longer kept.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Status::new(StatusCode::GONE, "Expired", message)
    }

    /// A page's revision is no longer kept. `token` continues from the same place in the newest state.
    pub(crate) fn expired_continue(token: String) -> Self {
        let mut status = Self::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter, or use the continue token in this response to retrieve the remainder of \
             the results. Continuing with the provided token results in an inconsistent list - objects that were \
             created, modified, or deleted between the time the first chunk was returned and now may show up in the \
             list.",
        );
        status.continue_token = Some(token);
        status
    }

    /// A resourceVersion is newer than the server's.
    pub(crate) fn version_too_large(asked: u64, current: u64) -> Self {
        let mut status = Status::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            format!("Timeout: Too large resource version: {asked}, current: {current}"),
        )
        .causes([json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"})]);
        status.details.insert("retryAfterSeconds".to_owned(), 1.into());
        status
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        let mut status =
            Status::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "").causes([json!({"message": message})]);
        status.message = format!("Internal error occurred: {message}");
        status
    }

    /// A 500 caused by the client's request, as kube-apiserver answers in several cases.
    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        Status::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// A webhook denied the request. `result` is the `status` of its answer, or null.
    pub(crate) fn denied(webhook: &str, result: &Value) -> Self {
        let text = |field: &str| result[field].as_str().unwrap_or_default();
        let denied = format!("admission webhook \"{webhook}\" denied the request");
        let message = match (text("message"), text("reason")) {
            ("", "") => format!("{denied} without explanation"),
            ("", why) | (why, _) => format!("{denied}: {why}"),
        };
        let code = result["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| *code >= 400);
        let code = code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::BAD_REQUEST);
        let mut status = Status::new(code, "", message);
        status.reason = text("reason").to_owned().into();
        status.details = result["details"].as_object().cloned().unwrap_or_default();
        status
    }

    /// A request took longer than the server allows.
    pub(crate) fn request_timeout() -> Self {
        let message = "Timeout: request did not complete within requested timeout";
        Status::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Returns the `Status` object.
    pub(crate) fn to_value(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".to_owned(), token.as_str().into());
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": self.message, "code": self.code.as_u16(),
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.as_ref().into();
        }
        if !self.bare || !self.details.is_empty() {
            status["details"] = self.details.clone().into();
        }
        status
    }
}

impl From<patch::Error> for Status {
    fn from(error: patch::Error) -> Self {
        match error {
            patch::Error::Malformed(why) => Status::bad_request(why),
            patch::Error::Unprocessable(_) => Status::unfit_patch(),
            patch::Error::TooLarge(why) => Status::too_large(why),
            patch::Error::Internal(why) => Status::unknown(why),
        }
    }
}

/// Returns the answer to a delete that removed the object.
pub(crate) fn success(of: &GroupResource, name: &str, uid: &str) -> Value {
    let mut details = Map::new();
    details.insert("name".to_owned(), name.into());
    if !of.group.is_empty() {
        details.insert("group".to_owned(), of.group.as_ref().into());
    }
    details.insert("kind".to_owned(), of.resource.as_ref().into());
    details.insert("uid".to_owned(), uid.into());
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
