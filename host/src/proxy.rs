//! Connections through a proxy.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::{
    HttpConnector,
    proxy::{SocksV5, Tunnel},
};
use rustls::ClientConfig;

/// The way through a proxy, by the scheme of the proxy's URL. The proxy resolves the names of servers.
pub(crate) enum Proxied {
    /// `socks5`.
    Socks(SocksV5<HttpConnector>),
    /// `https`.
    Https(Tunnel<HttpsConnector<HttpConnector>>),
    /// `http`.
    Http(Tunnel<HttpConnector>),
}

impl Proxied {
    /// Makes connectors that use `proxy`, with the user and password in its URL. `http` opens the connections to it.
    pub(crate) fn new(proxy: &Uri, http: HttpConnector, tls: &ClientConfig) -> Self {
        let user = proxy.authority().and_then(|authority| authority.as_str().rsplit_once('@')).map(|(user, _)| user);
        match proxy.scheme_str() {
            Some("socks5") => {
                let socks = SocksV5::new(proxy.clone(), http);
                Self::Socks(match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
                    Some((user, password)) => {
                        let text = |text| String::from_utf8_lossy(&decoded(text)).into_owned();
                        socks.with_auth(text(user), text(password))
                    }
                    None => socks,
                })
            }
            Some("https") => {
                let https = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_only().enable_http1();
                Self::Https(authorized(Tunnel::new(proxy.clone(), https.wrap_connector(http)), user))
            }
            _ => Self::Http(authorized(Tunnel::new(proxy.clone(), http), user)),
        }
    }
}

fn authorized<C>(tunnel: Tunnel<C>, user: Option<&str>) -> Tunnel<C> {
    let header = user.and_then(|user| HeaderValue::try_from(format!("Basic {}", STANDARD.encode(decoded(user)))).ok());
    match header {
        Some(header) => tunnel.with_auth(header),
        None => tunnel,
    }
}

/// Decodes `%XX`.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        let digit = |place: usize| others.get(place).and_then(|digit| char::from(*digit).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).expect("two hexadecimal digits are a byte"));
                rest = &others[2..];
            }
            _ => {
                bytes.push(first);
                rest = others;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_decoded() {
        assert_eq!(decoded("user:p%40ss%3Aw%"), b"user:p@ss:w%");
        assert_eq!(decoded("%+A%4"), b"%+A%4");
    }
}
