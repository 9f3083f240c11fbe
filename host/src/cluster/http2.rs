//! The client for watches. It uses HTTP/2 over TLS, so that many watches share a connection.
//!
//! A connection carries at most [`STREAMS`] watches. If all connections are full, another one is opened; an unused one
//! is closed. If the server does not speak HTTP/2, each watch has its own connection under HTTP/1.1.
//!
//! Writes, reads and lists stay on HTTP/1.1, because a large page would delay the events on a shared connection.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use hyper::{body::Incoming, client::conn::http2};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connection as _, HttpConnector},
    },
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ClientBuilder, ConfigExt};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tower::Service;

use super::metrics::WatchConnection;
use crate::causes::with_causes;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Watches on one connection. Go's servers, such as kube-apiserver, accept 100 to 250 streams, and some proxies fewer.
const STREAMS: usize = 64;

/// Bytes that a watch may receive before its reader consumes them.
const STREAM_WINDOW: u32 = 256 << 10;

/// The window of a connection: the sum of its streams' windows, so that a slow reader does not block other watches.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * 64;

/// Silence after which a connection is pinged. client-go uses 30 s.
const PING_AFTER: Duration = Duration::from_secs(30);

/// Time without a pong after which a connection counts as dead. client-go uses the same.
const PONG_WITHIN: Duration = Duration::from_secs(15);

/// Creates the client for watches. Returns `None` if watches cannot share connections, because there is no TLS or there
/// is a proxy.
///
/// # Errors
/// The certificates or credentials of the configuration cannot be used.
pub(super) fn client(
    config: &kube::Config,
    connections: &Arc<AtomicUsize>,
) -> Result<Option<kube::Client>, kube::Error> {
    if config.cluster_url.scheme_str() != Some("https") || config.proxy_url.is_some() {
        return Ok(None);
    }
    let within = config.connect_timeout.unwrap_or(Duration::from_secs(30));
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(within));
    let builder = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_only();
    let builder = match config.tls_server_name.clone().map(TryInto::try_into) {
        Some(Ok(name)) => builder.with_server_name_resolver(FixedServerNameResolver::new(name)),
        // The other client reports what is wrong with the name.
        Some(Err(_)) => return Ok(None),
        None => builder,
    };
    let https = builder.enable_all_versions().wrap_connector(http);
    let service = WatchClient {
        https,
        within,
        single: Client::builder(TokioExecutor::new()).build(config.rustls_https_connector()?),
        shared: Arc::default(),
        connecting: Arc::default(),
        speaks_http1: Arc::default(),
        connections: connections.clone(),
    };
    layered(service, config).map(Some)
}

/// Adds the configuration's headers, credentials and address to what sends requests.
///
/// # Errors
/// The credentials cannot be used.
pub(super) fn layered<S, B>(service: S, config: &kube::Config) -> Result<kube::Client, kube::Error>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let builder =
        ClientBuilder::new(service, config.default_namespace.clone()).with_layer(&config.extra_headers_layer()?);
    let base = config.base_uri_layer();
    Ok(match config.auth_layer()? {
        Some(auth) => builder.with_layer(&auth).with_layer(&base).build(),
        None => builder.with_layer(&base).build(),
    })
}

/// Sends each watch on a connection that has room for it.
#[derive(Clone)]
struct WatchClient {
    https: HttpsConnector<HttpConnector>,
    /// Timeout for opening a connection.
    within: Duration,
    /// The client for a server that does not speak HTTP/2.
    single: Client<HttpsConnector<HttpConnector>, Body>,
    shared: Arc<Mutex<Vec<Connection>>>,
    /// Locked while a connection is opened, so that waiting watches share the new connection. Holds time and error of
    /// the last failure.
    connecting: Arc<tokio::sync::Mutex<Option<(Instant, String)>>>,
    /// `true` if the server chose HTTP/1.1 once. HTTP/2 is then not tried again.
    speaks_http1: Arc<AtomicBool>,
    /// Open connections that carry watches.
    connections: Arc<AtomicUsize>,
}

/// A connection that several watches share.
struct Connection {
    sender: http2::SendRequest<Body>,
    streams: Arc<AtomicUsize>,
}

impl Connection {
    /// Reserves a stream for one watch.
    fn take(&self) -> Room {
        self.streams.fetch_add(1, Ordering::Relaxed);
        Room::Shared(self.sender.clone(), StreamGuard(self.streams.clone()))
    }
}

/// Reserves one stream of a connection.
struct StreamGuard(Arc<AtomicUsize>);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connection for a new watch.
enum Room {
    Shared(http2::SendRequest<Body>, StreamGuard),
    /// The server does not speak HTTP/2.
    Single,
}

impl WatchClient {
    /// Reserves a stream on an open connection, if one has room. Closes connections without a watch.
    fn reserve_open(&self) -> Option<Room> {
        let mut shared = self.shared.lock();
        shared.retain(|of| !of.sender.is_closed());
        let has_room = |of: &&Connection| of.streams.load(Ordering::Relaxed) < STREAMS;
        let room = shared.iter().find(has_room).map(Connection::take)?;
        shared.retain(|of| of.streams.load(Ordering::Relaxed) > 0);
        Some(room)
    }

    /// Reserves a stream on an open connection, or on a new one.
    async fn reserve(&self, uri: &Uri) -> Result<Room, BoxError> {
        if self.speaks_http1.load(Ordering::Relaxed) {
            return Ok(Room::Single);
        }
        if let Some(room) = self.reserve_open() {
            return Ok(room);
        }
        let asked = Instant::now();
        let mut failed = self.connecting.lock().await;
        if let Some(room) = self.reserve_open() {
            return Ok(room);
        }
        // The watches that waited share a failure, instead of each trying again.
        if let Some((_, error)) = failed.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(error.clone().into());
        }
        let connected = timeout(self.within, self.connect(uri)).await;
        let connected = connected.unwrap_or_else(|_| Err("opening the connection timed out".into()));
        match connected {
            Ok(Some(shared)) => {
                let room = shared.take();
                self.shared.lock().push(shared);
                Ok(room)
            }
            Ok(None) => {
                self.speaks_http1.store(true, Ordering::Relaxed);
                Ok(Room::Single)
            }
            Err(error) => {
                *failed = Some((Instant::now(), with_causes(error.as_ref())));
                Err(error)
            }
        }
    }

    /// Opens a connection. Returns `None` if the server does not speak HTTP/2.
    async fn connect(&self, uri: &Uri) -> Result<Option<Connection>, BoxError> {
        let mut https = self.https.clone();
        std::future::poll_fn(|context| https.poll_ready(context)).await?;
        let stream = https.call(uri.clone()).await?;
        if !stream.connected().is_negotiated_h2() {
            return Ok(None);
        }
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PONG_WITHIN);
        let (sender, connection) = builder.handshake(stream).await?;
        // The task ends with the last sender and stream. Readers of the streams receive its error.
        let open = WatchConnection::count(&self.connections);
        tokio::spawn(async move {
            drop(connection.await);
            drop(open);
        });
        Ok(Some(Connection { sender, streams: Arc::default() }))
    }

    async fn send(self, request: Request<Body>) -> Result<Response<WatchBody>, BoxError> {
        match self.reserve(request.uri()).await? {
            Room::Shared(mut sender, stream) => {
                sender.ready().await?;
                let response = sender.send_request(request).await?;
                Ok(response.map(|body| WatchBody { body, _stream: Some(stream), _single: None }))
            }
            Room::Single => {
                let open = WatchConnection::count(&self.connections);
                let response = self.single.request(request).await?;
                Ok(response.map(|body| WatchBody { body, _stream: None, _single: Some(open) }))
            }
        }
    }
}

impl Service<Request<Body>> for WatchClient {
    type Response = Response<WatchBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

/// The body of a watch. Dropping it frees the stream.
struct WatchBody {
    body: Incoming,
    _stream: Option<StreamGuard>,
    /// Its own connection, if it shares none.
    _single: Option<WatchConnection>,
}

impl http_body::Body for WatchBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
