//! The servers that a plugin sends requests to: they answer what the case says.
//!
//! The host's own client is used up to the connection, with its grants, bounds and redirects.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use pilothouse_core::http::Url;
use serde_json::{Map, Value, json};
use tokio::io::DuplexStream;

/// Bytes in flight of a connection.
const BUFFER: usize = 64 << 10;

/// Requests of one step that are kept.
const MAX_REQUESTS: usize = 1000;

/// How requests are answered.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// `None`: all.
    pub(super) method: Option<String>,
    /// The whole URL, or its beginning before a `*`.
    pub(super) url: String,
    pub(super) status: StatusCode,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Bytes,
    /// Time that the answer takes.
    pub(super) delay: Duration,
    /// The connection ends instead.
    pub(super) is_unreachable: bool,
    /// How often it still answers. `None`: always.
    pub(super) times: Option<u64>,
}

impl Answer {
    fn is_for(&self, method: &str, url: &str) -> bool {
        let is_there = match self.url.strip_suffix('*') {
            Some(beginning) => url.starts_with(beginning),
            None => url == self.url,
        };
        is_there && self.times != Some(0) && self.method.as_deref().is_none_or(|of| of == method)
    }
}

/// All servers. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Servers(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The newest first.
    answers: Vec<Answer>,
    requests: Vec<Value>,
    unanswered: Vec<String>,
}

impl Servers {
    /// Answers requests in this way from now on.
    pub(super) fn answer(&self, answer: Answer) {
        self.0.lock().answers.insert(0, answer);
    }

    /// Returns the requests since the last call, and those among them that the case does not answer.
    pub(super) fn take(&self) -> (Vec<Value>, Vec<String>) {
        let mut state = self.0.lock();
        (std::mem::take(&mut state.requests), std::mem::take(&mut state.unanswered))
    }

    /// Opens a connection to the server of `url`.
    pub(super) fn dial(&self, url: &Url) -> DuplexStream {
        let (near, far) = tokio::io::duplex(BUFFER);
        let (this, origin) = (self.clone(), format!("{}://{}", url.scheme(), url.authority()));
        let service = service_fn(move |request| {
            let (this, origin) = (this.clone(), origin.clone());
            async move { this.serve(&origin, request).await }
        });
        let served = http1::Builder::new().serve_connection(TokioIo::new(far), service);
        tokio::spawn(async move { drop(served.await) });
        near
    }

    async fn serve(&self, origin: &str, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let (method, url) = (head.method.as_str().to_owned(), format!("{origin}{}", head.uri));
        let text = |value: &HeaderValue| Value::from(String::from_utf8_lossy(value.as_bytes()));
        let headers = head.headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value)));
        let read: Value = serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into());
        let sent = json!({ "method": method, "url": url, "headers": headers.collect::<Map<_, _>>(), "body": read });
        let Some(answer) = self.choose(&method, &url, sent) else {
            return Err(io::Error::other("the case does not answer"));
        };
        if !answer.delay.is_zero() {
            tokio::time::sleep(answer.delay).await;
        }
        if answer.is_unreachable {
            return Err(io::Error::other("unreachable"));
        }
        let mut response = Response::new(Full::new(answer.body));
        *response.status_mut() = answer.status;
        response.headers_mut().extend(answer.headers);
        Ok(response)
    }

    /// Records a request, and returns its answer.
    fn choose(&self, method: &str, url: &str, sent: Value) -> Option<Answer> {
        let mut state = self.0.lock();
        if state.requests.len() < MAX_REQUESTS {
            state.requests.push(sent);
        }
        let Some(answer) = state.answers.iter_mut().find(|answer| answer.is_for(method, url)) else {
            state.unanswered.push(format!("{method} {url}"));
            return None;
        };
        answer.times = answer.times.map(|times| times - 1);
        Some(answer.clone())
    }
}
