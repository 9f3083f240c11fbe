//! Connections through the host's own proxy.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, Uri};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::connect::{
        HttpConnector,
        proxy::{SocksV5, Tunnel},
    },
    rt::TokioIo,
};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tower::Service;

/// A connection to a server or a proxy.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Opens a tunnel through `proxy` to the host and port of `target`. The proxy resolves the name.
///
/// # Errors
/// The proxy cannot be reached, or refuses.
pub(super) async fn tunnel(proxy: &Uri, target: Uri, tls: &ClientConfig) -> Result<Box<dyn Stream>, String> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    let user = proxy.authority().and_then(|authority| authority.as_str().rsplit_once('@')).map(|(user, _)| user);
    match proxy.scheme_str() {
        Some("socks5") => {
            let mut socks = SocksV5::new(proxy.clone(), http);
            if let Some((user, password)) = user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
                let text = |text| String::from_utf8_lossy(&decoded(text)).into_owned();
                socks = socks.with_auth(text(user), text(password));
            }
            opened(socks, target).await.map(|stream| Box::new(stream.into_inner()) as Box<dyn Stream>)
        }
        Some("https") => {
            let https = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_only().enable_http1();
            let tunnel = authorized(Tunnel::new(proxy.clone(), https.wrap_connector(http)), user);
            opened(tunnel, target).await.map(|stream| Box::new(TokioIo::new(stream)) as Box<dyn Stream>)
        }
        _ => {
            let tunnel = authorized(Tunnel::new(proxy.clone(), http), user);
            opened(tunnel, target).await.map(|stream| Box::new(stream.into_inner()) as Box<dyn Stream>)
        }
    }
}

async fn opened<S>(mut connector: S, target: Uri) -> Result<S::Response, String>
where
    S: Service<Uri>,
    S::Error: std::fmt::Display,
{
    std::future::poll_fn(|context| connector.poll_ready(context)).await.map_err(|error| error.to_string())?;
    connector.call(target).await.map_err(|error| error.to_string())
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
