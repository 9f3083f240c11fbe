//! What a redirect asks for, as RFC 9110 and browsers understand it.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode, header};
use pilothouse_core::http::{Url, UrlError};

/// A request on its way, or what is left of it after redirects.
pub(super) struct Hop {
    pub(super) method: String,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// `true` once a redirect led to another origin. The administrator's headers are then not sent any more.
    pub(super) is_abroad: bool,
}

/// The only headers that go to another origin. Any other may be a credential.
const HARMLESS: [HeaderName; 4] = [header::ACCEPT, header::ACCEPT_LANGUAGE, header::CONTENT_TYPE, header::USER_AGENT];

/// Headers that describe a body.
const OF_BODY: [HeaderName; 4] =
    [header::CONTENT_ENCODING, header::CONTENT_LANGUAGE, header::CONTENT_LOCATION, header::CONTENT_TYPE];

impl Hop {
    /// Returns `true` if a response of this status and these headers asks for another request.
    pub(super) fn is_redirected(status: StatusCode, headers: &HeaderMap) -> bool {
        matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) && headers.contains_key(header::LOCATION)
    }

    /// Turns the request into the one that the response asks for.
    ///
    /// # Errors
    /// If the new URL cannot be used.
    pub(super) fn follow(&mut self, status: StatusCode, headers: &HeaderMap) -> Result<(), UrlError> {
        let location = headers.get(header::LOCATION).and_then(|location| location.to_str().ok());
        let url = self.url.join(location.ok_or(UrlError::Characters)?)?;
        let becomes_get = match status.as_u16() {
            301 | 302 => self.method == "POST",
            303 => self.method != "HEAD",
            _ => false,
        };
        if becomes_get {
            "GET".clone_into(&mut self.method);
            self.body = Bytes::new();
            OF_BODY.iter().for_each(|name| drop(self.headers.remove(name)));
        }
        if !url.same_origin(&self.url) {
            self.is_abroad = true;
            let kept = |name| Some((HeaderName::clone(name), self.headers.get(name)?.clone()));
            self.headers = HARMLESS.iter().filter_map(kept).collect();
        }
        self.url = url;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn followed(method: &str, status: u16, location: &str) -> Result<String, UrlError> {
        let header = |name, value| (name, HeaderValue::from_static(value));
        let mut hop = Hop {
            method: method.to_owned(),
            url: Url::parse("https://a.com/x/y").expect("it is a URL"),
            headers: HeaderMap::from_iter([
                header(header::ACCEPT, "a"),
                header(header::AUTHORIZATION, "b"),
                header(header::CONTENT_TYPE, "c"),
                header(HeaderName::from_static("x-api-key"), "d"),
            ]),
            body: Bytes::from_static(b"body"),
            is_abroad: false,
        };
        let location = HeaderMap::from_iter([(header::LOCATION, HeaderValue::from_str(location).expect("a value"))]);
        hop.follow(StatusCode::from_u16(status).expect("a status"), &location)?;
        let mut names: Vec<&str> = hop.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let body = if hop.body.is_empty() { "" } else { " +body" };
        let abroad = if hop.is_abroad { " abroad" } else { "" };
        let Hop { method, url, .. } = &hop;
        Ok(format!("{method} {}{} {}{body}{abroad}", url.origin(), url.target, names.join(",")))
    }

    #[test]
    fn method_and_body_change_as_in_browsers() {
        for (method, status, expected) in [
            ("POST", 301, "GET https://a.com:443/x/z accept,authorization,x-api-key"),
            ("POST", 302, "GET https://a.com:443/x/z accept,authorization,x-api-key"),
            ("PUT", 302, "PUT https://a.com:443/x/z accept,authorization,content-type,x-api-key +body"),
            ("PUT", 303, "GET https://a.com:443/x/z accept,authorization,x-api-key"),
            ("HEAD", 303, "HEAD https://a.com:443/x/z accept,authorization,content-type,x-api-key +body"),
            ("POST", 307, "POST https://a.com:443/x/z accept,authorization,content-type,x-api-key +body"),
            ("DELETE", 308, "DELETE https://a.com:443/x/z accept,authorization,content-type,x-api-key +body"),
        ] {
            assert_eq!(followed(method, status, "z").as_deref(), Ok(expected), "{method} {status}");
        }
    }

    #[test]
    fn another_origin_gets_no_credentials() {
        for (location, expected) in [
            ("https://a.com:443/", "POST https://a.com:443/ accept,authorization,content-type,x-api-key +body"),
            ("//b.com/", "POST https://b.com:443/ accept,content-type +body abroad"),
            ("https://a.com:444/", "POST https://a.com:444/ accept,content-type +body abroad"),
            ("http://a.com/", "POST http://a.com:80/ accept,content-type +body abroad"),
        ] {
            assert_eq!(followed("POST", 307, location).as_deref(), Ok(expected), "{location}");
        }
        assert_eq!(followed("GET", 302, "ftp://a.com"), Err(UrlError::Scheme));
        assert_eq!(followed("GET", 302, "https://u:p@a.com"), Err(UrlError::User));
    }

    #[test]
    fn only_a_redirect_with_a_location_is_followed() {
        let with = HeaderMap::from_iter([(header::LOCATION, HeaderValue::from_static("/"))]);
        let is = |status, headers| Hop::is_redirected(StatusCode::from_u16(status).expect("a status"), headers);
        assert_eq!([301, 302, 303, 307, 308].map(|status| is(status, &with)), [true; 5]);
        assert_eq!([200, 201, 300, 304, 305, 306, 400].map(|status| is(status, &with)), [false; 7]);
        assert!(!is(302, &HeaderMap::new()));
    }
}
