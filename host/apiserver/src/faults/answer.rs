//! Applies faults to a request: delayed, replaced, cut or corrupted answers.

use std::{convert::Infallible, future::Future, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{
    Response, StatusCode,
    header::{self, HeaderValue},
};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::{Value, json};

use super::{
    Draw, Plan, Reply,
    connection::Line,
    rule::{Answer, By, Content, Mangle},
};
use crate::{
    handle::{Body, respond},
    object::to_json,
};

/// Returns the answer to a request under `plan`. `answer` is polled only if the request is carried out.
/// [`WatchFaults`](super::stream::WatchFaults) applies the plan's faults of a watch.
pub(crate) async fn through(
    plan: &Plan,
    line: &Arc<Line>,
    answer: impl Future<Output = Response<Body>>,
) -> Response<Body> {
    if !plan.delay.is_zero() {
        tokio::time::sleep(plan.delay).await;
    }
    let Some(instead) = &plan.instead else { return answer.await };
    if instead.performed {
        drop(answer.await);
    }
    match &instead.what {
        Reply::Answer(answer) => response(answer),
        Reply::Nothing => std::future::pending().await,
        Reply::End(by) => line.end(*by).await,
    }
}

/// Mangles and truncates the answer as `plan` says.
pub(crate) async fn spoil(plan: &Plan, line: &Arc<Line>, response: Response<Body>) -> Response<Body> {
    if plan.mangle.is_none() && plan.truncate.is_none() {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let Ok(collected) = body.collect().await;
    let mut body = collected.to_bytes();
    if let Some((how, draw)) = plan.mangle {
        body = mangle(&body, how, draw);
    }
    let Some(truncate) = &plan.truncate else { return Response::from_parts(head, Full::new(body).boxed_unsync()) };
    head.headers.insert(header::CONTENT_LENGTH, body.len().into());
    Response::from_parts(head, broken(&body, truncate.by, Arc::clone(line)))
}

/// Returns a body that sends its first half and then ends the connection.
fn broken(body: &Bytes, by: By, line: Arc<Line>) -> Body {
    let first: Result<Frame<Bytes>, Infallible> = Ok(Frame::data(body.slice_ref(half(body))));
    let frames = stream::iter([first]).chain(stream::once(async move { line.end(by).await }));
    StreamBody::new(frames).boxed_unsync()
}

/// Returns the first half of a text.
pub(crate) fn half(text: &[u8]) -> &[u8] {
    text.split_at(text.len().div_ceil(2)).0
}

/// Corrupts one object of a document. In a list, a draw selects the object.
fn mangle(body: &[u8], how: Mangle, draw: Draw) -> Bytes {
    let Ok(Value::Object(mut document)) = serde_json::from_slice(body) else {
        return Bytes::copy_from_slice(half(body));
    };
    let items = match document.get("items") {
        Some(Value::Array(items)) if !items.is_empty() => items.clone(),
        _ => {
            document.remove("metadata");
            return match how {
                Mangle::Json => Bytes::copy_from_slice(half(body)),
                Mangle::Metadata => to_json(&document.into()),
            };
        }
    };
    let drawn = draw.below(u64::try_from(items.len()).unwrap_or(u64::MAX));
    let items = items.into_iter().zip(0_u64..).map(|(mut item, index)| match how {
        _ if index != drawn => to_json(&item),
        Mangle::Json => Bytes::copy_from_slice(half(&to_json(&item))),
        Mangle::Metadata => {
            if let Some(members) = item.as_object_mut() {
                members.remove("metadata");
            }
            to_json(&item)
        }
    });
    let items: Vec<Bytes> = items.collect();
    document.remove("items");
    // The items come last, as in kube-apiserver's order.
    let mut text = to_json(&document.into()).to_vec();
    text.pop();
    text.extend_from_slice(b",\"items\":[");
    text.extend_from_slice(&items.join(&b','));
    text.extend_from_slice(b"]}");
    text.into()
}

/// Returns the response for an [`Answer`].
fn response(answer: &Answer) -> Response<Body> {
    let code = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let (_, message) = usual(answer.code);
    let message = answer.message.as_deref().unwrap_or(message);
    let mut response = match answer.body {
        Content::Status => respond(code, "application/json", to_json(&status(answer))),
        Content::Html => {
            let title = format!("{} {}", answer.code, code.canonical_reason().unwrap_or_default());
            let page = format!(
                "<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{title}</h1></center>\r\n</body>\r\n</html>\r\n"
            );
            respond(code, "text/html", page.into())
        }
        Content::Text => respond(code, "text/plain; charset=utf-8", format!("{message}\n").into()),
        Content::Empty => {
            let mut response = respond(code, "text/plain", Bytes::new());
            response.headers_mut().remove(header::CONTENT_TYPE);
            response
        }
    };
    if let Some(seconds) = answer.retry_after_seconds {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Returns the `Status` object of an answer.
pub(crate) fn status(answer: &Answer) -> Value {
    let (reason, message) = usual(answer.code);
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": answer.code,
        "message": answer.message.as_deref().unwrap_or(message),
    });
    let reason = answer.reason.as_deref().unwrap_or(reason);
    if !reason.is_empty() {
        status["reason"] = reason.into();
    }
    if let Some(seconds) = answer.retry_after_seconds {
        status["details"] = json!({"retryAfterSeconds": seconds});
    }
    status
}

/// Returns the reason and message that Kubernetes sends with a code.
fn usual(code: u16) -> (&'static str, &'static str) {
    match code {
        400 => ("BadRequest", "the server rejected our request for an unknown reason"),
        401 => ("Unauthorized", "Unauthorized"),
        403 => ("Forbidden", "forbidden: a rule of the server's faults says so"),
        404 => ("NotFound", "the server could not find the requested resource"),
        405 => ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
        406 => ("NotAcceptable", "only the following media types are accepted: application/json"),
        409 => (
            "Conflict",
            "Operation cannot be fulfilled: the object has been modified; please apply your changes to the latest version \
             and try again",
        ),
        410 => ("Expired", "The resourceVersion for the provided list or watch is too old."),
        413 => ("RequestEntityTooLarge", "Request entity too large: limit is 3145728"),
        415 => ("UnsupportedMediaType", "the body of the request was in an unknown format"),
        422 => ("Invalid", "the server rejected our request due to an error in our request"),
        429 => ("TooManyRequests", "Too many requests, please try again later."),
        500 => ("InternalError", "Internal error occurred: a rule of the server's faults says so"),
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => ("Timeout", "Timeout: request did not complete within the allotted timeout"),
        _ => ("", "a rule of the server's faults says so"),
    }
}
