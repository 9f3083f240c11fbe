//! Rejects requests that a web page makes a browser send.
//!
//! A page may send requests to any address that the machine reaches, including `127.0.0.1`, but cannot read the
//! answers. With its own name for such an address (DNS rebinding) it may even read them. A browser sends `Origin` or
//! `Sec-Fetch-Site` with every request that changes something; `curl`, `kubectl` and client libraries send neither.

use http::{HeaderMap, HeaderName, Method, header, request::Parts, uri::Authority};

/// Returns why a request is rejected because a web page may have caused it, or `None` if it is allowed.
///
/// Reads are allowed, because a page cannot read the answer. Pages from the server's own address are allowed if that is
/// an IP address or `localhost`. Any other name may resolve to anything.
#[must_use]
pub fn refusal(head: &Parts) -> Option<&'static str> {
    if [Method::GET, Method::HEAD, Method::OPTIONS].contains(&head.method) {
        return None;
    }
    let (origin, site) = (value(&head.headers, &header::ORIGIN), value(&head.headers, &SEC_FETCH_SITE));
    if origin.is_none() && site.is_none() {
        return None;
    }
    if site.is_some_and(|site| !["same-origin", "none"].contains(&site)) {
        return Some("the request comes from a web page of another site");
    }
    let host = host(head);
    if origin.is_some_and(|origin| host.as_ref().is_none_or(|host| !is_origin_of(origin, host.as_str()))) {
        return Some("the request comes from a web page of another site");
    }
    (!is_address(head)).then_some(FOREIGN_HOST)
}

/// Returns why a request is rejected because a web page may control the name in its `Host`, or `None` if it is allowed.
#[must_use]
pub fn host_refusal(head: &Parts) -> Option<&'static str> {
    (!is_address(head)).then_some(FOREIGN_HOST)
}

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

const FOREIGN_HOST: &str = "the request's Host is not this server's: use its IP address, or localhost";

/// Returns a header's text. A header that is not text counts as a value that is not allowed.
fn value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Returns the request's host, from the URI (HTTP/2) or the header.
fn host(head: &Parts) -> Option<Authority> {
    match head.uri.authority() {
        Some(authority) => Some(authority.clone()),
        None => value(&head.headers, &header::HOST)?.parse().ok(),
    }
}

/// `true` if the request names an IP address, `localhost` or no host. Browsers always send a host.
fn is_address(head: &Parts) -> bool {
    let names_one = head.uri.authority().is_some() || head.headers.contains_key(header::HOST);
    let Some(host) = host(head) else { return !names_one };
    let name = host.host();
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || bare.parse::<std::net::IpAddr>().is_ok()
}

fn is_origin_of(origin: &str, host: &str) -> bool {
    let of = ["http://", "https://"].iter().find_map(|scheme| origin.strip_prefix(scheme));
    of.is_some_and(|of| of.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn head(method: Method, headers: &[(&str, &str)]) -> Parts {
        let request = headers.iter().fold(Request::builder().method(method).uri("/debug"), |request, (name, value)| {
            request.header(*name, *value)
        });
        request.body(()).expect("the request is well formed").into_parts().0
    }

    #[test]
    fn what_a_foreign_page_sends_is_refused() {
        let (host, rebound) = (("host", "127.0.0.1:8080"), ("host", "evil.example:8080"));
        for headers in [
            &[host, ("origin", "https://evil.example")][..],
            &[host, ("origin", "null")],
            &[host, ("origin", "http://127.0.0.1:9090")],
            &[host, ("sec-fetch-site", "cross-site")],
            &[host, ("sec-fetch-site", "same-site")],
            &[rebound, ("origin", "http://evil.example:8080")],
            &[rebound, ("origin", "http://evil.example:8080"), ("sec-fetch-site", "same-origin")],
            &[("origin", "http://evil.example")],
        ] {
            assert!(refusal(&head(Method::POST, headers)).is_some(), "{headers:?}");
            assert!(refusal(&head(Method::DELETE, headers)).is_some(), "{headers:?}");
            assert_eq!(refusal(&head(Method::GET, headers)), None, "{headers:?}");
        }
    }

    #[test]
    fn what_tools_and_the_servers_own_pages_send_passes() {
        for headers in [
            &[("host", "127.0.0.1:8080")][..],
            &[("host", "pilothouse.system.svc:8080")],
            &[],
            &[("host", "localhost:8080"), ("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")],
            &[("host", "[::1]:8080"), ("origin", "http://[::1]:8080")],
            &[("host", "10.0.0.7"), ("sec-fetch-site", "none")],
        ] {
            assert_eq!(refusal(&head(Method::POST, headers)), None, "{headers:?}");
        }
    }

    #[test]
    fn only_addresses_and_localhost_are_hosts_where_that_is_asked() {
        for (host, passes) in [
            ("127.0.0.1:8080", true),
            ("[::1]:8080", true),
            ("LocalHost", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example:80", false),
            ("a b", false),
        ] {
            assert_eq!(host_refusal(&head(Method::GET, &[("host", host)])).is_none(), passes, "{host}");
        }
        assert_eq!(host_refusal(&head(Method::GET, &[])), None);
    }
}
