//! From a URL to an open connection: resolve, check the addresses, connect, TLS.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use http::Uri;
use hyper::client::conn::{http1, http2};
use hyper_util::{
    client::legacy::connect::HttpConnector,
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::client::ConfigExt as _;
use pilothouse_core::http::{Host, Url, is_link_local, is_public};
use rustls::{CertificateError, ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream},
    net::TcpStream,
    sync::{OnceCell, Semaphore},
};
use tokio_rustls::TlsConnector;
use tower::Service;

use super::pool::Connection;
use crate::{causes::with_causes, cluster, proxy::Proxied, wasm::HttpError};

/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 8;

/// Time for a connection to one address.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// Headers of a response.
const MAX_HEADERS: usize = 128;

/// Bytes of the headers of a response.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// Bytes that a server may send over HTTP/2 before they are read.
const WINDOW: u32 = 256 << 10;

/// Resolves a name.
pub(super) type Resolve = dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;

/// Chooses the proxy for a URL.
pub(super) type Proxies = dyn Fn(&Uri) -> Result<Option<Uri>, String> + Send + Sync;

/// Opens a connection in place of one to a server.
pub(super) type Dial = dyn Fn(&Url) -> DuplexStream + Send + Sync;

/// A connection to a server or a proxy.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Opens connections for all plugins.
pub(super) struct Connector {
    /// `None`: connections go to the servers.
    pub(super) instead: Option<Box<Dial>>,
    pub(super) resolve: Box<Resolve>,
    pub(super) proxies: Box<Proxies>,
    /// Trusts the CAs of this machine. Read when it is first needed.
    pub(super) tls: OnceCell<Arc<ClientConfig>>,
}

impl Default for Connector {
    /// Resolves and chooses proxies as this machine does.
    fn default() -> Self {
        let resolve = |name: String, port: u16| -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
            Box::pin(async move { Ok(tokio::net::lookup_host((name, port)).await?.collect()) })
        };
        let proxies = |url: &Uri| {
            let proxy = cluster::environment_proxy(url, &|name| std::env::var_os(name));
            // The plugin must not see the password that the address may have.
            proxy.map_err(|_| "the host's HTTPS_PROXY or HTTP_PROXY is not an address of a proxy".to_owned())
        };
        Self { instead: None, resolve: Box::new(resolve), proxies: Box::new(proxies), tls: OnceCell::new() }
    }
}

impl Connector {
    /// Opens a connection to the server of `url`. `lookups` bounds those that resolve a name at once.
    pub(super) async fn connect(
        &self,
        url: &Url,
        private: bool,
        lookups: &Arc<Semaphore>,
    ) -> Result<Connection, HttpError> {
        if let Some(dial) = &self.instead {
            return http1(url, dial(url)).await;
        }
        let uri = format!("{}://{}:{}/", url.scheme(), url.host, url.port);
        let uri: Uri = uri.parse().map_err(|_| HttpError::Invalid("the URL is not valid".to_owned()))?;
        let proxy = (self.proxies)(&uri).map_err(HttpError::Unreachable)?;
        if let Host::Address(address) = url.host {
            check_public(&url.host, &[SocketAddr::new(address, url.port)], private)?;
        }
        let stream: Box<dyn Stream> = match proxy {
            Some(proxy) => {
                let tls = self.tls().await?;
                let failed =
                    |error| HttpError::Unreachable(format!("cannot reach {} through the proxy: {error}", url.origin()));
                tunnel(&proxy, uri, &tls).await.map_err(failed)?
            }
            None => {
                let addresses = self.addresses(url, lookups).await?;
                check_public(&url.host, &addresses, private)?;
                Box::new(dial(url, &addresses).await?)
            }
        };
        if url.plain {
            return http1(url, stream).await;
        }
        let mut tls = ClientConfig::clone(&*self.tls().await?);
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = match &url.host {
            Host::Name(name) => ServerName::try_from(name.clone())
                .map_err(|_| HttpError::Invalid(format!("{name} cannot be the name of a certificate")))?,
            Host::Address(address) => ServerName::from(*address),
        };
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await;
        let stream = stream.map_err(|error| HttpError::Unreachable(tls_failure(url, &error)))?;
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            http2(url, stream).await
        } else {
            http1(url, stream).await
        }
    }

    /// Returns the addresses of the URL's host.
    async fn addresses(&self, url: &Url, lookups: &Arc<Semaphore>) -> Result<Vec<SocketAddr>, HttpError> {
        let name = match &url.host {
            Host::Address(address) => return Ok(vec![SocketAddr::new(*address, url.port)]),
            Host::Name(name) => name,
        };
        // A lookup holds a thread until the resolver gives up, even if its request has ended.
        let permit = lookups.clone().acquire_owned().await.expect("it is never closed");
        let lookup = (self.resolve)(name.clone(), url.port);
        let lookup = tokio::spawn(async move {
            let _permit = permit;
            lookup.await
        });
        let failed = |error: String| HttpError::Unreachable(format!("cannot resolve {name}: {error}"));
        let mut addresses = match lookup.await {
            Ok(Ok(addresses)) => addresses,
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(error) => return Err(failed(error.to_string())),
        };
        addresses.truncate(MAX_ADDRESSES);
        if addresses.is_empty() { Err(failed("it has no address".to_owned())) } else { Ok(addresses) }
    }

    async fn tls(&self) -> Result<Arc<ClientConfig>, HttpError> {
        let config = self.tls.get_or_try_init(|| async {
            let read = || kube::Config::new(Uri::from_static("https://localhost")).rustls_client_config();
            match tokio::task::spawn_blocking(read).await {
                Ok(Ok(config)) => Ok(Arc::new(config)),
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(error.to_string()),
            }
        });
        let failed =
            |error| HttpError::Unreachable(format!("cannot read the CA certificates of this machine: {error}"));
        config.await.cloned().map_err(failed)
    }
}

/// Refuses addresses that are not public, unless `private`, and link-local ones of a name anyway. Otherwise a Service
/// without a selector or a record of DNS could lead to the metadata service, which has the machine's credentials.
pub(super) fn check_public(host: &Host, addresses: &[SocketAddr], private: bool) -> Result<(), HttpError> {
    for address in addresses.iter().map(SocketAddr::ip) {
        if matches!(host, Host::Name(_)) && is_link_local(address) {
            return Err(HttpError::NotGranted(format!(
                "not granted: {host} has the address {address}, which is link-local or a metadata service; only a rule that names the address \
                 itself allows that"
            )));
        }
        if !private && !is_public(address) {
            return Err(HttpError::NotGranted(format!(
                "not granted: {host} has the address {address}, which is not public; the administrator's file must allow that under http: \
                 with `private: true`"
            )));
        }
    }
    Ok(())
}

/// Opens a tunnel through `proxy` to the host and port of `target`.
///
/// # Errors
/// The proxy cannot be reached, or refuses.
async fn tunnel(proxy: &Uri, target: Uri, tls: &ClientConfig) -> Result<Box<dyn Stream>, String> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    Ok(match Proxied::new(proxy, http, tls) {
        Proxied::Socks(socks) => Box::new(opened(socks, target).await?.into_inner()),
        Proxied::Https(tunnel) => Box::new(TokioIo::new(opened(tunnel, target).await?)),
        Proxied::Http(tunnel) => Box::new(opened(tunnel, target).await?.into_inner()),
    })
}

async fn opened<S>(mut connector: S, target: Uri) -> Result<S::Response, String>
where
    S: Service<Uri>,
    S::Error: std::fmt::Display,
{
    std::future::poll_fn(|context| connector.poll_ready(context)).await.map_err(|error| error.to_string())?;
    connector.call(target).await.map_err(|error| error.to_string())
}

/// Connects to the first address that accepts.
async fn dial(url: &Url, addresses: &[SocketAddr]) -> Result<TcpStream, HttpError> {
    let mut last = String::new();
    for address in addresses {
        match tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Requests are written at once.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = format!("{address}: {error}"),
            Err(_) => last = format!("{address}: no answer within {} s", CONNECT_WITHIN.as_secs()),
        }
    }
    Err(HttpError::Unreachable(format!("cannot connect to {}: {last}", url.origin())))
}

async fn http1(url: &Url, stream: impl Stream + 'static) -> Result<Connection, HttpError> {
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEADER_BYTES);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(|error| failure(url, &error))?;
    // Errors reach the request.
    tokio::spawn(async move { drop(connection.await) });
    Ok(Connection::Http1(sender))
}

async fn http2(url: &Url, stream: impl Stream + 'static) -> Result<Connection, HttpError> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(u32::try_from(MAX_HEADER_BYTES).unwrap_or(u32::MAX))
        .keep_alive_interval(Duration::from_secs(10));
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(|error| failure(url, &error))?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(Connection::Http2(sender))
}

/// Returns the error for a connection or a response that broke.
pub(super) fn failure(url: &Url, error: &hyper::Error) -> HttpError {
    HttpError::Unreachable(format!("no response from {}: {}", url.origin(), with_causes(error)))
}

/// Says what is wrong with the server's certificate, and what to do.
fn tls_failure(url: &Url, error: &io::Error) -> String {
    let rustls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    let why = match rustls {
        Some(rustls::Error::InvalidCertificate(error)) => match error {
            // A CA of the same name has another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate is signed by a CA that this host does not trust; add the CA to the file that SSL_CERT_FILE names".to_owned()
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "its certificate has expired".to_owned(),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet".to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for another name".to_owned()
            }
            other => other.to_string(),
        },
        Some(other) => other.to_string(),
        None => error.to_string(),
    };
    format!("no TLS with {}: {why}", url.origin())
}
