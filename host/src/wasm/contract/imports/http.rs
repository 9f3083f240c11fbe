//! `http`: requests to servers outside the cluster's API.

use std::time::Duration;

use futures::future::BoxFuture;
use pilothouse_core::http::{Url, check_method};
use wasmtime::Result;

use super::{super::bindings::pilothouse::plugin::http, host_state::HostState, interface};
pub use crate::wasm::contract::bindings::pilothouse::plugin::http::{Error as HttpError, Response as HttpResponse};

interface!(HttpCall, "http", { Send = "send" });

/// Bytes of the body of a request, and of a response.
pub const MAX_HTTP_BODY: usize = 4 << 20;

/// Headers of a request.
const MAX_HEADERS: usize = 64;

/// Bytes of names and values of all headers of a request. Most servers accept half of it.
const MAX_HEADER_BYTES: usize = 16 << 10;

/// Redirects that are followed.
const MAX_REDIRECTS: u8 = 10;

/// Deadline of a request that names none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time before the deadline of the call at which a request ends at the latest.
const MARGIN: Duration = Duration::from_millis(100);

/// A request that was checked, except for the characters of its headers.
#[derive(Debug)]
pub struct HttpRequest {
    /// The method.
    pub method: String,
    /// Where it goes.
    pub url: Url,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// At most [`MAX_HTTP_BODY`] bytes.
    pub body: Vec<u8>,
    /// Its deadline from now.
    pub timeout: Duration,
    /// Redirects to follow.
    pub redirects: u8,
}

/// What the caller supplies for `http`.
pub trait HttpImports {
    /// Sends a request, if it is granted.
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, HttpError>>;
}

impl http::Host for HostState {
    async fn send(&mut self, request: http::Request) -> Result<Result<HttpResponse, HttpError>> {
        let sent = headers_bytes(&request.headers) + request.method.len() + request.url.len() + request.body.len();
        let imports = self.open(HttpCall::Send, sent)?;
        let left = self.left().saturating_sub(MARGIN.min(self.call.budget / 10));
        let answer = match checked(request, left) {
            // The host holds both bodies until the call has them.
            Ok(request) => match self.limiter.charge(request.body.len() + MAX_HTTP_BODY) {
                Some(_charge) => imports.send(request).await,
                None => Err(HttpError::TooMany),
            },
            Err(why) => Err(HttpError::Invalid(why)),
        };
        self.give(answer, |answer| {
            answer.as_ref().map_or(0, |response| response.body.len() + headers_bytes(&response.headers))
        })
    }
}

fn checked(request: http::Request, left: Duration) -> Result<HttpRequest, String> {
    let http::Request { method, url, headers, body, timeout_ms, redirects } = request;
    check_method(&method).map_err(|error| format!("the method {error}"))?;
    let url = Url::parse(&url).map_err(|error| error.to_string())?;
    let (many, bytes) = (headers.len(), headers_bytes(&headers));
    if many > MAX_HEADERS {
        return Err(format!("there are {many} headers, and at most {MAX_HEADERS} are taken"));
    }
    if bytes > MAX_HEADER_BYTES {
        return Err(format!("the headers have {bytes} bytes, and at most {MAX_HEADER_BYTES} are taken"));
    }
    if body.len() > MAX_HTTP_BODY {
        return Err(format!("the body has {} bytes, and at most {MAX_HTTP_BODY} are taken", body.len()));
    }
    if redirects > MAX_REDIRECTS {
        return Err(format!("{redirects} redirects are too many; at most {MAX_REDIRECTS} are followed"));
    }
    let timeout = timeout_ms.map_or(DEFAULT_TIMEOUT, |ms| Duration::from_millis(ms.into())).min(left);
    Ok(HttpRequest { method, url, headers, body, timeout, redirects })
}

fn headers_bytes(headers: &[(String, String)]) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::sync::Arc;

    use super::{
        super::super::super::testing::{Fake, state},
        *,
    };

    fn request() -> http::Request {
        http::Request {
            method: "POST".to_owned(),
            url: "https://example.com/a".to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            timeout_ms: None,
            redirects: 0,
        }
    }

    /// Returns the error of a request that is changed like this.
    async fn invalid(change: impl FnOnce(&mut http::Request)) -> String {
        let imports = Arc::new(Fake::default());
        let mut request = request();
        change(&mut request);
        let answer = http::Host::send(&mut state(&imports), request).await.unwrap();
        assert_eq!(imports.sent.lock().len(), 0, "no request is sent");
        match answer {
            Err(HttpError::Invalid(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_request_beyond_a_bound_is_not_sent() {
        let header = |bytes: usize| ("a".to_owned(), "b".repeat(bytes - 1));
        for (why, text) in [
            (invalid(|request| request.method = "post".to_owned()).await, "the method is not a method"),
            (invalid(|request| request.url = "https://u@a".to_owned()).await, "the URL has a user"),
            (invalid(|request| request.url = "http://0x7f.1".to_owned()).await, "four decimal numbers"),
            (
                invalid(|request| request.headers = vec![header(1); 65]).await,
                "there are 65 headers, and at most 64 are taken",
            ),
            (
                invalid(|request| request.headers = vec![header(16_385)]).await,
                "have 16385 bytes, and at most 16384 are taken",
            ),
            (invalid(|request| request.body = vec![0; MAX_HTTP_BODY + 1]).await, "has 4194305 bytes"),
            (invalid(|request| request.redirects = 11).await, "11 redirects are too many"),
        ] {
            assert!(why.contains(text), "{why}");
        }
    }

    #[tokio::test]
    async fn a_request_ends_before_its_call() {
        let imports = Arc::new(Fake::default());
        // Its call has one second.
        let mut state = state(&imports);
        for timeout_ms in [None, Some(60_000), Some(5)] {
            http::Host::send(&mut state, http::Request { timeout_ms, ..request() }).await.unwrap().unwrap();
        }
        let sent = imports.sent.lock();
        assert!(sent.iter().all(|(sent, _)| sent == "POST https://example.com:443/a"), "{sent:?}");
        assert!(sent[..2].iter().all(|(_, timeout)| *timeout <= Duration::from_millis(900)), "{sent:?}");
        assert_eq!(sent[2].1, Duration::from_millis(5));
    }

    #[tokio::test]
    async fn a_response_counts_as_exchanged_and_needs_memory() {
        let imports = Arc::new(Fake { body: vec![0; 1 << 20], ..Fake::default() });
        let limits = super::super::super::super::Limits { host_bytes: 3 << 20, ..Default::default() };
        let memory = crate::wasm::memory::PluginMemory::default();
        let mut state = HostState::new(Some(imports.clone()), limits, memory.clone(), Duration::from_secs(1));
        for _ in 0..2 {
            assert!(http::Host::send(&mut state, request()).await.unwrap().is_ok());
        }
        assert!(http::Host::send(&mut state, request()).await.is_err());
        let limits = super::super::super::super::Limits { total_memory: 3 << 20, memory: 1 << 20, ..limits };
        let mut state = HostState::new(Some(imports), limits, memory, Duration::from_secs(1));
        assert!(matches!(http::Host::send(&mut state, request()).await.unwrap(), Err(HttpError::TooMany)));
    }
}
