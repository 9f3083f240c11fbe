//! The requests to other servers that a test expects, and their results.

use pilothouse_core::{grant::Grants, http::Url};
use serde::Serialize;
use serde_json::Value;

use crate::{contract::pilothouse::plugin::http as wire, http::Error};

/// A request to another server that the test expects from the plugin. By default, the response has status 200 and no
/// body.
///
/// The mock sends nothing. It follows no redirects: script the response that the plugin finally gets.
///
/// ```
/// use pilothouse_sdk::http;
/// use pilothouse_sdk::mock::ExpectedHttp;
/// use serde_json::json;
///
/// ExpectedHttp::get("https://api.example.com/v1/users").json(200, &json!(["ann", "bob"]));
/// ExpectedHttp::post("https://api.example.com/v1/users").fail(http::Error::Timeout);
/// ```
#[derive(Clone, Debug)]
pub struct ExpectedHttp {
    pub(super) method: String,
    pub(super) url: String,
    pub(super) answer: Result<wire::Response, wire::Error>,
}

impl ExpectedHttp {
    /// Expects a `GET`.
    pub fn get(url: impl Into<String>) -> Self {
        Self::request("GET", url)
    }

    /// Expects a `POST`.
    pub fn post(url: impl Into<String>) -> Self {
        Self::request("POST", url)
    }

    /// Expects a `PUT`.
    pub fn put(url: impl Into<String>) -> Self {
        Self::request("PUT", url)
    }

    /// Expects a `DELETE`.
    pub fn delete(url: impl Into<String>) -> Self {
        Self::request("DELETE", url)
    }

    /// Expects another method.
    pub fn request(method: impl Into<String>, url: impl Into<String>) -> Self {
        let answer = wire::Response { status: 200, headers: Vec::new(), body: Vec::new() };
        Self { method: method.into(), url: url.into(), answer: Ok(answer) }
    }

    /// Makes the server answer with this status and body.
    #[must_use]
    pub fn returns(mut self, status: u16, body: impl Into<Vec<u8>>) -> Self {
        self.answer = Ok(wire::Response { status, headers: Vec::new(), body: body.into() });
        self
    }

    /// Makes the server answer with this status and JSON.
    ///
    /// # Panics
    /// Panics if the value cannot be serialized.
    #[must_use]
    #[track_caller]
    pub fn json(self, status: u16, body: &(impl Serialize + ?Sized)) -> Self {
        let body = serde_json::to_vec(body).expect("the body can be JSON");
        self.returns(status, body).header("content-type", "application/json")
    }

    /// Adds a header to the response.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let Ok(answer) = &mut self.answer {
            answer.headers.push((name.into().to_ascii_lowercase(), value.into()));
        }
        self
    }

    /// Makes the request fail without a response.
    ///
    /// # Panics
    /// Panics over an error that only a response causes.
    #[must_use]
    #[track_caller]
    pub fn fail(mut self, error: Error) -> Self {
        self.answer = Err(match error {
            Error::NotGranted(why) => wire::Error::NotGranted(why),
            Error::Invalid(why) => wire::Error::Invalid(why),
            Error::Timeout => wire::Error::Timeout,
            Error::Unreachable(why) => wire::Error::Unreachable(why),
            Error::TooLarge => wire::Error::TooLarge,
            Error::TooMany => wire::Error::TooMany,
            Error::Status { .. } | Error::Decode(_) => {
                panic!("the plugin gets this error out of a response: use `returns`")
            }
        });
        self
    }
}

/// A request that the plugin sent to another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCall {
    /// The method.
    pub method: String,
    /// The URL.
    pub url: String,
    /// Names and values, in the order of the plugin.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl HttpCall {
    /// Returns the body as JSON.
    ///
    /// # Panics
    /// Panics if it is not JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the body is JSON")
    }
}

/// Checks a request as the host does.
///
/// # Errors
/// Fails as the host would, before it sends anything.
pub(super) fn check(grants: &Grants, request: &wire::Request) -> Result<(), wire::Error> {
    let url = Url::parse(&request.url).map_err(|error| wire::Error::Invalid(error.to_string()))?;
    let granted = grants.check_http(&request.method, &url);
    granted.map(drop).map_err(|denied| wire::Error::NotGranted(denied.to_string()))
}
