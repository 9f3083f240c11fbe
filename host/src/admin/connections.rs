//! The connections of a server.
//!
//! Anybody who reaches the port may connect, so a connection is cheap and short. It carries one request of HTTP/1.1, as
//! kubelet's probes and scrapers connect for each.
//!
//! # Guarantees
//! - A probe is answered even if other clients hold all connections: the newest connection is always served.
//! - A connection ends after [`Limits::whole`], however slowly its client sends and reads. A handshake has less time.

use std::{future::Future, io, sync::Arc, time::Duration};

use axum::Router;
use hyper::{
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tracing::debug;

use crate::{
    connections::{self, Activity, Bounds},
    tls::Acceptor,
};

/// Time that requests in flight have after the shutdown. All are answered from memory, so only slow readers need
/// longer.
const DRAIN: Duration = Duration::from_secs(1);

/// Bytes of a request's head. Probes and scrapers send hundreds, a browser with cookies thousands.
const HEAD: usize = 16 << 10;

/// Bounds of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at once. A further one closes the oldest without a request, or else the oldest.
    pub(super) connections: usize,
    /// Time for the head of the request.
    pub(super) head: Duration,
    /// Time for the whole connection.
    pub(super) whole: Duration,
}

impl Limits {
    /// Probes wait for seconds, scrapers for ten. Twenty of each at once are many.
    pub(super) const DEFAULT: Self =
        Self { connections: 64, head: Duration::from_secs(10), whole: Duration::from_secs(30) };
}

/// What is served to each connection.
pub(super) struct Served {
    /// The server's name in the log.
    pub(super) name: &'static str,
    pub(super) router: Router,
    pub(super) limits: Limits,
    /// `None` is plain.
    pub(super) tls: Option<Acceptor>,
}

/// Serves until `shutdown`. Requests in flight have [`DRAIN`] to finish.
///
/// # Errors
/// If the listener fails for good.
///
/// # Cancellation
/// Dropping the future closes all connections.
pub(super) async fn serve(listener: TcpListener, shutdown: impl Future<Output = ()>, served: Served) -> io::Result<()> {
    let bounds =
        Bounds { server: served.name, connections: served.limits.connections, drain: DRAIN, says_goodbye: false };
    let served = Arc::new(served);
    let connection = |stream, activity| connection(stream, served.clone(), activity);
    connections::serve(listener, shutdown, bounds, connection).await
}

async fn connection(stream: TcpStream, served: Arc<Served>, activity: Activity) {
    let Served { name: server, router, limits, tls } = &*served;
    let answered = async {
        match tls {
            None => answer(stream, router.clone(), *limits, activity).await,
            Some(acceptor) => match acceptor.accept(stream).await {
                Some(stream) => answer(stream, router.clone(), *limits, activity).await,
                None => Ok(()),
            },
        }
    };
    match tokio::time::timeout(limits.whole, answered).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(server, %error, "a connection failed"),
        Err(_) => debug!(server, "a connection took too long"),
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    router: Router,
    limits: Limits,
    activity: Activity,
) -> hyper::Result<()> {
    let (router, asked) = (TowerToHyperService::new(router), Mutex::new(None));
    let service = service_fn(move |request| {
        // The connection ends with its only request. Until then, the answer is being read.
        *asked.lock() = Some(activity.begin());
        router.call(request)
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use jiff::Timestamp;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        task::JoinSet,
    };
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::tls::{Pair, Serving, certificates};

    /// The address, and what serves it until it is dropped.
    async fn start(router: Router, limits: Limits) -> (SocketAddr, JoinSet<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = JoinSet::new();
        let served = Served { name: "test", router, limits, tls: None };
        server.spawn(serve(listener, std::future::pending(), served));
        (address, server)
    }

    /// A client that trusts this authority, and offers HTTP/2 first.
    fn trusting(authority: &str) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(certificates(authority).unwrap().remove(0)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = versions.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    fn healthy() -> Router {
        Router::new().route("/healthz", get(|| async { "ok\n" }))
    }

    async fn half_a_request(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n").await.unwrap();
        stream
    }

    async fn is_healthy(address: SocketAddr) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok\n"), "{answer}");
    }

    /// Returns when the server has closed the connection.
    async fn closes(mut stream: TcpStream) {
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ended = stream.read_to_end(&mut rest).await;
    }

    #[tokio::test]
    async fn invariant_12_a_thousand_half_requests_end_in_time_and_probes_are_answered_meanwhile() {
        rustix::process::setrlimit(rustix::process::Resource::Nofile, {
            let maximum = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
            rustix::process::Rlimit { current: maximum, maximum }
        })
        .unwrap();
        let limits = Limits { head: Duration::from_millis(500), ..Limits::DEFAULT };
        let (address, _server) = start(healthy(), limits).await;
        let mut half = Vec::new();
        for number in 0..1_000 {
            half.push(half_a_request(address).await);
            if number % 100 == 0 {
                is_healthy(address).await;
            }
        }
        is_healthy(address).await;
        let all = futures::future::join_all(half.into_iter().map(closes));
        tokio::time::timeout(Duration::from_secs(30), all).await.expect("the server closes every half request");
    }

    #[tokio::test]
    async fn connections_past_the_bound_take_the_place_of_the_oldest_without_a_request() {
        let (entered, mut entries) = tokio::sync::mpsc::unbounded_channel();
        let release = Arc::new(tokio::sync::Notify::new());
        let router = {
            let release = release.clone();
            let slow = move || {
                entered.send(()).unwrap();
                let release = release.clone();
                async move { release.notified().await }
            };
            healthy().route("/slow", get(slow))
        };
        let (address, _server) = start(router, Limits { connections: 2, ..Limits::DEFAULT }).await;
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        entries.recv().await.unwrap();

        let half = half_a_request(address).await;
        is_healthy(address).await;
        tokio::time::timeout(Duration::from_secs(5), closes(half)).await.expect("the half request gave way");

        release.notify_one();
        let mut answer = String::new();
        slow.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_is_cut_off() {
        let router = Router::new().route("/large", get(|| async { vec![b'x'; 64 << 20] }));
        let limits = Limits { whole: Duration::from_millis(500), ..Limits::DEFAULT };
        let (address, _server) = start(router, limits).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        // The time is what is tested: nothing is read while the server still would.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut read = Vec::new();
        let _ended = stream.read_to_end(&mut read).await;
        assert!(read.len() < 64 << 20, "the whole answer came");
    }

    #[tokio::test]
    async fn a_client_that_does_not_finish_its_handshake_is_cut_off_and_others_are_served() {
        let serving = Arc::<Serving>::default();
        let (pair, authority) = Pair::make(&["127.0.0.1".to_owned()], "test", Timestamp::now()).unwrap();
        serving.serve(pair.certified("test").unwrap());
        let acceptor = Acceptor::new("test", serving, &[b"http/1.1"], Duration::from_millis(500)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = Served { name: "test", router: healthy(), limits: Limits::DEFAULT, tls: Some(acceptor) };
        let mut server = JoinSet::new();
        server.spawn(serve(listener, std::future::pending(), served));

        let silent = TcpStream::connect(address).await.unwrap();
        let plain = half_a_request(address).await;
        for stream in [silent, plain] {
            tokio::time::timeout(Duration::from_secs(10), closes(stream)).await.expect("the handshake ends");
        }
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = trusting(&authority).connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    }

    #[tokio::test]
    async fn a_head_that_is_too_long_is_refused() {
        let (address, _server) = start(healthy(), Limits::DEFAULT).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nCookie: {}\r\n\r\n", "x".repeat(2 * HEAD));
        // It may have answered before it was sent all.
        let _sent = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ended = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
}
