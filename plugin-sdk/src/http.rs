//! Requests to servers outside the cluster's API.
//!
//! The manifest must ask for each server ([`Plugin::http`](crate::Plugin::http)), and the administrator must grant it
//! under `http` in the plugin's file. Private addresses need a grant of their own.
//!
//! ```
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use pilothouse_sdk::http::HttpPermission;
//! use pilothouse_sdk::mock::{ExpectedHttp, MockHost};
//! use pilothouse_sdk::prelude::*;
//! use serde_json::json;
//!
//! /// Tells a channel about each ConfigMap.
//! fn reconcile(ctx: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
//!     let text = json!({ "text": format!("{} has changed", map.name()) });
//!     ctx.http().post("https://hooks.slack.com/services/T/B/X").json(&text).send()?.error_for_status()?;
//!     Ok(Outcome::new())
//! }
//!
//! #[plugin]
//! fn teller() -> Plugin {
//!     Plugin::new("Tells a channel about each ConfigMap.")
//!         .http(HttpPermission::to("hooks.slack.com").methods(["POST"]))
//!         .controller(Controller::of::<ConfigMap>().without_status().reconcile(reconcile))
//! }
//!
//! let mut map = ConfigMap::default();
//! map.metadata.name = Some("colours".into());
//! map.metadata.namespace = Some("default".into());
//!
//! let mut host = MockHost::new(teller).with(map);
//! host.expect_http(ExpectedHttp::post("https://hooks.slack.com/services/T/B/X").returns(200, "ok"));
//! host.reconcile(("default", "colours")).expect("the channel is told");
//! assert_eq!(host.http_calls()[0].json(), json!({ "text": "colours has changed" }));
//! ```
//!
//! A reconcile may be repeated, and a request that timed out may have arrived. So a server gets a request twice now and
//! then. Write to an [`Outcome`](crate::Outcome) what has been sent, or use a key that the server knows to be the same.

use std::{marker::PhantomData, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    contract::{
        exports::pilothouse::plugin::controller::HttpPermission as WirePermission, pilothouse::plugin::http as wire,
    },
    host,
};

host::interface!(http {
    fn send(request: &Request) -> Result<Response, Error>;
});

/// Redirects that a request follows, unless [`RequestBuilder::redirects`] says otherwise.
const REDIRECTS: u8 = 5;

/// Servers that a plugin asks to send requests to.
///
/// ```
/// use pilothouse_sdk::http::HttpPermission;
///
/// HttpPermission::to("hooks.slack.com").methods(["POST"]);
/// HttpPermission::to("*.example.com").port(8443).methods(["GET", "PUT"]);
/// HttpPermission::to("prometheus.monitoring.svc").plain().port(9090).methods(["GET"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct HttpPermission(WirePermission);

impl HttpPermission {
    /// Creates a permission for `https://` and port 443, without methods. `host` is a name, `*.example.com` for all
    /// names below one, or an IP address.
    pub fn to(host: impl Into<String>) -> Self {
        Self(WirePermission { host: host.into(), port: None, plain: false, methods: Vec::new() })
    }

    /// Creates a permission for the server of a URL, without methods. For URLs of the administrator's configuration.
    ///
    /// ```
    /// use pilothouse_sdk::http::HttpPermission;
    ///
    /// let permission = HttpPermission::for_url("http://registrar.dns.svc:8080/zones/example.com").unwrap();
    /// assert_eq!(permission, HttpPermission::to("registrar.dns.svc").plain().port(8080));
    /// assert!(HttpPermission::for_url("registrar.dns.svc").is_err());
    /// ```
    ///
    /// # Errors
    /// Fails with [`Error::Invalid`] if no request can have such a URL.
    pub fn for_url(url: &str) -> Result<Self, Error> {
        let Origin { plain, host, port } = Origin::of(url).map_err(|why| Error::Invalid(why.to_owned()))?;
        Ok(Self(WirePermission { host, port, plain, methods: Vec::new() }))
    }

    /// Adds methods in upper case.
    pub fn methods(mut self, methods: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.0.methods.extend(methods.into_iter().map(Into::into));
        self
    }

    /// Sets the port.
    pub fn port(mut self, port: u16) -> Self {
        self.0.port = Some(port);
        self
    }

    /// Uses `http://` instead of `https://`, and port 80 unless [`port`](Self::port) sets one.
    pub fn plain(mut self) -> Self {
        self.0.plain = true;
        self
    }

    pub(crate) fn into_wire(self) -> WirePermission {
        self.0
    }
}

/// The server of a URL.
pub(crate) struct Origin {
    /// `true` for `http://`.
    pub(crate) plain: bool,
    /// In lower case, without the brackets of an IPv6 address.
    pub(crate) host: String,
    /// `None` if the URL names none.
    pub(crate) port: Option<u16>,
}

impl Origin {
    /// # Errors
    /// Fails if the host would reject the URL.
    pub(crate) fn of(url: &str) -> Result<Self, &'static str> {
        let (plain, rest) = match url.split_once("://") {
            Some(("https", rest)) => (false, rest),
            Some(("http", rest)) => (true, rest),
            _ => return Err("the URL does not begin with https:// or http://"),
        };
        if !url.bytes().all(|b| b.is_ascii_graphic() && b != b'\\' && b != b'#') {
            return Err("the URL has a fragment, a space, a backslash, or a character beyond ASCII");
        }
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        if authority.contains('@') {
            return Err("the URL has a user; send a header Authorization instead");
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, Some(port.parse().map_err(|_| "the URL's port is not a number from 1 to 65535")?))
            }
            _ => (authority, None),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase();
        if host.is_empty() { Err("the URL names no server") } else { Ok(Self { plain, host, port }) }
    }
}

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not in the manifest, not granted by the administrator, or an address that is not public. Nothing was sent to
    /// that server.
    #[error("{0}")]
    NotGranted(String),
    /// The request is not valid. It was not sent.
    #[error("the request is not valid: {0}")]
    Invalid(String),
    /// No response arrived in time. The server may or may not have acted.
    #[error("the server did not answer in time")]
    Timeout,
    /// The name cannot be resolved, the connection failed, or the certificate is not trusted.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The response has more than 4 MiB.
    #[error("the response has more than 4 MiB")]
    TooLarge,
    /// The plugin sends too many requests. This one was not sent.
    #[error("the plugin sends too many requests: more than `limits.httpRequestsPerSecond`, or 16 at once")]
    TooMany,
    /// The response has another status than 2xx: see [`Response::error_for_status`].
    #[error("the server answered with status {status}")]
    Status {
        /// The status.
        status: u16,
        /// The whole response.
        response: Box<Response>,
    },
    /// The body is not the expected JSON.
    #[error("cannot decode the response: {0}")]
    Decode(String),
}

impl Error {
    /// Returns the status of the response, if the error is about one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Returns `true` if no response arrived in time.
    pub fn is_timeout(&self) -> bool {
        *self == Self::Timeout
    }
}

impl From<wire::Error> for Error {
    fn from(error: wire::Error) -> Self {
        match error {
            wire::Error::NotGranted(why) => Self::NotGranted(why),
            wire::Error::Invalid(why) => Self::Invalid(why),
            wire::Error::Timeout => Self::Timeout,
            wire::Error::Unreachable(why) => Self::Unreachable(why),
            wire::Error::TooLarge => Self::TooLarge,
            wire::Error::TooMany => Self::TooMany,
        }
    }
}

/// Sends requests during one call: see [`Context::http`](crate::Context::http).
#[derive(Clone, Copy, Debug)]
pub struct Http<'a>(PhantomData<&'a ()>);

impl<'a> Http<'a> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }

    /// Begins a `GET`.
    pub fn get(&self, url: impl Into<String>) -> RequestBuilder<'a> {
        self.request("GET", url)
    }

    /// Begins a `POST`.
    pub fn post(&self, url: impl Into<String>) -> RequestBuilder<'a> {
        self.request("POST", url)
    }

    /// Begins a `PUT`.
    pub fn put(&self, url: impl Into<String>) -> RequestBuilder<'a> {
        self.request("PUT", url)
    }

    /// Begins a `PATCH`.
    pub fn patch(&self, url: impl Into<String>) -> RequestBuilder<'a> {
        self.request("PATCH", url)
    }

    /// Begins a `DELETE`.
    pub fn delete(&self, url: impl Into<String>) -> RequestBuilder<'a> {
        self.request("DELETE", url)
    }

    /// Begins a request with another method, in upper case.
    pub fn request(&self, method: impl Into<String>, url: impl Into<String>) -> RequestBuilder<'a> {
        let request = wire::Request {
            method: method.into(),
            url: url.into(),
            headers: Vec::new(),
            body: Vec::new(),
            timeout_ms: None,
            redirects: REDIRECTS,
        };
        RequestBuilder { request, problem: None, call: PhantomData }
    }
}

/// A request that is being built.
#[derive(Debug)]
#[must_use = "it is not sent before `send`"]
pub struct RequestBuilder<'a> {
    request: wire::Request,
    /// Why it cannot be sent.
    problem: Option<String>,
    call: PhantomData<&'a ()>,
}

impl RequestBuilder<'_> {
    /// Adds a header. The host rejects those that it sets itself, such as `Host`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.headers.push((name.into(), value.into()));
        self
    }

    /// Adds `Authorization: Bearer TOKEN`.
    pub fn bearer(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    /// Sets the body, of at most 4 MiB.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.request.body = body.into();
        self
    }

    /// Sets the body to JSON, and `Content-Type` to `application/json`.
    pub fn json(mut self, value: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => self.request.body = body,
            Err(error) => self.problem = Some(format!("its body cannot be serialized: {error}")),
        }
        self.header("content-type", "application/json")
    }

    /// Sets the deadline. The default is 10 seconds. A request always ends before its call does.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request.timeout_ms = Some(u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX));
        self
    }

    /// Sets how many redirects are followed, at most 10. The default is 5. With 0, the response is the redirect.
    pub fn redirects(mut self, redirects: u8) -> Self {
        self.request.redirects = redirects;
        self
    }

    /// Sends the request, and waits for the response. A response of any status is a success.
    ///
    /// # Errors
    /// Fails if there is no response.
    pub fn send(self) -> Result<Response, Error> {
        match self.problem {
            Some(problem) => Err(Error::Invalid(problem)),
            None => Ok(Response(import::send(&self.request)?)),
        }
    }
}

/// The response of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response(wire::Response);

impl Response {
    /// Returns the status.
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// Returns `true` if the status is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.0.status)
    }

    /// Returns the first value of a header. Upper and lower case are the same.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.0.headers.iter();
        headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Returns all headers, in the order of the server.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the body.
    pub fn bytes(&self) -> &[u8] {
        &self.0.body
    }

    /// Returns the body as text. Bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.body).into_owned()
    }

    /// Decodes the body.
    ///
    /// # Errors
    /// Fails with [`Error::Decode`] if the body is not this JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.0.body).map_err(|error| Error::Decode(error.to_string()))
    }

    /// Returns the response if its status is 2xx.
    ///
    /// # Errors
    /// Fails with [`Error::Status`] if it is another one.
    pub fn error_for_status(self) -> Result<Self, Error> {
        if self.is_success() {
            return Ok(self);
        }
        Err(Error::Status { status: self.status(), response: Box::new(self) })
    }
}
