//! The client for watches: HTTP/2 over TLS, so that many watches share a connection.
//!
//! A connection carries at most [`STREAMS`] watches. Another one is opened when all are full; one that carries none is closed. Where the
//! server does not speak HTTP/2, each watch has a connection of its own, under HTTP/1.1.
//!
//! Writes, reads and lists stay on HTTP/1.1: on a shared connection a large page would delay the events behind it.

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

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Watches on one connection. Go's servers, kube-apiserver among them, take 100 to 250 streams; some proxies take fewer than others.
const STREAMS: usize = 64;

/// Bytes that a watch may receive before its reader takes them.
const STREAM_WINDOW: u32 = 256 << 10;

/// The same of a connection: the windows of all its streams, so that a watch whose reader is slow holds up no other.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * 64;

/// A connection on which nothing comes for so long is asked whether it is alive: client-go asks after 30 s.
const PING_AFTER: Duration = Duration::from_secs(30);

/// It is dead if it does not answer for so long; client-go waits as long.
const PONG_WITHIN: Duration = Duration::from_secs(15);

/// A client for watches. None: they share no connections, as the server is reached without TLS or through a proxy.
///
/// # Errors
/// The configuration has certificates or credentials that cannot be used.
pub(super) fn client(config: &kube::Config) -> Result<Option<kube::Client>, kube::Error> {
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
        // The other client's error says what is wrong with it.
        Some(Err(_)) => return Ok(None),
        None => builder,
    };
    let https = builder.enable_all_versions().wrap_connector(http);
    let service = Watches {
        https,
        within,
        single: Client::builder(TokioExecutor::new()).build(config.rustls_https_connector()?),
        shared: Arc::default(),
        connecting: Arc::default(),
        speaks_http1: Arc::default(),
    };
    let builder =
        ClientBuilder::new(service, config.default_namespace.clone()).with_layer(&config.extra_headers_layer()?);
    let base = config.base_uri_layer();
    Ok(Some(match config.auth_layer()? {
        Some(auth) => builder.with_layer(&auth).with_layer(&base).build(),
        None => builder.with_layer(&base).build(),
    }))
}

/// Sends each watch on a connection that has room for it.
#[derive(Clone)]
struct Watches {
    https: HttpsConnector<HttpConnector>,
    /// How long a connection may take to be there.
    within: Duration,
    /// For a server that does not speak HTTP/2.
    single: Client<HttpsConnector<HttpConnector>, Body>,
    shared: Arc<Mutex<Vec<Shared>>>,
    /// Locked while a connection is opened: those that wait for it use it too. What it says is of the last that failed.
    connecting: Arc<tokio::sync::Mutex<Option<(Instant, String)>>>,
    /// The server chose HTTP/1.1 once. It is not asked again.
    speaks_http1: Arc<AtomicBool>,
}

/// A connection of several watches.
struct Shared {
    sender: http2::SendRequest<Body>,
    streams: Arc<AtomicUsize>,
}

impl Shared {
    /// Room for one watch on it.
    fn take(&self) -> Way {
        self.streams.fetch_add(1, Ordering::Relaxed);
        Way::Shared(self.sender.clone(), Stream(self.streams.clone()))
    }
}

/// One watch on a connection.
struct Stream(Arc<AtomicUsize>);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where a watch goes.
enum Way {
    Shared(http2::SendRequest<Body>, Stream),
    /// The server does not speak HTTP/2.
    Single,
}

impl Watches {
    /// Room for one more watch on a connection that is there. Connections without a watch are closed by that.
    fn room(&self) -> Option<Way> {
        let mut shared = self.shared.lock();
        shared.retain(|of| !of.sender.is_closed());
        let has_room = |of: &&Shared| of.streams.load(Ordering::Relaxed) < STREAMS;
        let way = shared.iter().find(has_room).map(Shared::take)?;
        shared.retain(|of| of.streams.load(Ordering::Relaxed) > 0);
        Some(way)
    }

    /// Room on a connection that is there, or on a new one.
    async fn way(&self, uri: &Uri) -> Result<Way, BoxError> {
        if self.speaks_http1.load(Ordering::Relaxed) {
            return Ok(Way::Single);
        }
        if let Some(way) = self.room() {
            return Ok(way);
        }
        let asked = Instant::now();
        let mut failed = self.connecting.lock().await;
        if let Some(way) = self.room() {
            return Ok(way);
        }
        // A server that is not there is not asked again by each watch that waited for it.
        if let Some((_, error)) = failed.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(error.clone().into());
        }
        let connected = timeout(self.within, self.connect(uri)).await;
        let connected = connected.unwrap_or_else(|_| Err("the connection took too long".into()));
        match connected {
            Ok(Some(shared)) => {
                let way = shared.take();
                self.shared.lock().push(shared);
                Ok(way)
            }
            Ok(None) => {
                self.speaks_http1.store(true, Ordering::Relaxed);
                Ok(Way::Single)
            }
            Err(error) => {
                *failed = Some((Instant::now(), super::error::chain(error.as_ref())));
                Err(error)
            }
        }
    }

    /// Opens a connection. None: the server does not speak HTTP/2.
    async fn connect(&self, uri: &Uri) -> Result<Option<Shared>, BoxError> {
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
        // It ends with the last sender and stream. Those who read from it hear why.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Some(Shared { sender, streams: Arc::default() }))
    }

    async fn send(self, request: Request<Body>) -> Result<Response<Watched>, BoxError> {
        match self.way(request.uri()).await? {
            Way::Shared(mut sender, stream) => {
                sender.ready().await?;
                let response = sender.send_request(request).await?;
                Ok(response.map(|body| Watched { body, _stream: Some(stream) }))
            }
            Way::Single => {
                let response = self.single.request(request).await?;
                Ok(response.map(|body| Watched { body, _stream: None }))
            }
        }
    }
}

impl Service<Request<Body>> for Watches {
    type Response = Response<Watched>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

/// The body of a watch, which has room on its connection as long as this lives.
struct Watched {
    body: Incoming,
    _stream: Option<Stream>,
}

impl http_body::Body for Watched {
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
