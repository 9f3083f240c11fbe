//! The interface `http` of the mock. Requests are answered as the test scripted them.

use super::World;
use crate::{
    contract::pilothouse::plugin::http::{Error, Request, Response},
    http::import::Functions,
    mock::http::{self, HttpCall},
};

/// Bytes of a body, as in the host.
const MAX_BODY: usize = 4 << 20;

impl Functions for World {
    fn send(&self, request: &Request) -> Result<Response, Error> {
        if request.body.len() > MAX_BODY {
            let bytes = request.body.len();
            return Err(Error::Invalid(format!("the body has {bytes} bytes, and at most {MAX_BODY} are taken")));
        }
        http::check(&self.state().grants, request)?;
        let Request { method, url, headers, body, .. } = request.clone();
        let next = self.state_mut().expected_http.pop_front();
        let answer = match next {
            Some(expected) if (&expected.method, &expected.url) == (&method, &url) => expected.answer,
            Some(expected) => {
                panic!("the plugin sends {method} {url}, where {} {} is expected", expected.method, expected.url)
            }
            None => panic!("the plugin sends {method} {url}, where nothing is expected: see MockHost::expect_http"),
        };
        self.state_mut().http_calls.push(HttpCall { method, url, headers, body });
        if answer.as_ref().is_ok_and(|response| response.body.len() > MAX_BODY) {
            return Err(Error::TooLarge);
        }
        answer
    }
}
