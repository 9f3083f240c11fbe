#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request as HttpHead, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use parking_lot::Mutex;
use pilothouse_core::{
    grant::{AdminFile, Grants},
    http::{Host, Pattern, Url},
    manifest::HttpPermission,
    rate::Rate,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use super::{
    client::{Admission, Client, Outbound},
    connect::{Connector, check_public},
    metrics::Requests,
};
use crate::wasm::{HttpError, HttpRequest, HttpResponse, MAX_HTTP_BODY};

/// The addresses of a name.
type Found = futures::future::BoxFuture<'static, io::Result<Vec<SocketAddr>>>;

/// Decides about a request.
type Admit = dyn Fn(&str, &Url) -> Result<Admission, HttpError> + Send + Sync;

/// A request as a server saw it.
#[derive(Clone, Debug)]
struct Seen {
    line: String,
    headers: HeaderMap,
    body: Bytes,
}

/// A server on loopback that records what arrives.
struct Server {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

type Answer = Response<Full<Bytes>>;

impl Server {
    async fn start(answer: impl Fn(&Seen) -> Answer + Clone + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", None, answer).await
    }

    async fn at(
        address: &str,
        tls: Option<ServerConfig>,
        answer: impl Fn(&Seen) -> Answer + Clone + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let (address, connections, seen) = (listener.local_addr().unwrap(), Arc::default(), Arc::default());
        let server = Self { address, connections, seen };
        let (connections, seen) = (server.connections.clone(), server.seen.clone());
        let tls = tls.map(|tls| TlsAcceptor::from(Arc::new(tls)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                let (seen, answer) = (seen.clone(), answer.clone());
                let service = service_fn(move |request: HttpHead<Incoming>| {
                    let (seen, answer) = (seen.clone(), answer.clone());
                    async move {
                        let (head, body) = request.into_parts();
                        let line = format!("{} {} {:?}", head.method, head.uri.path(), head.version);
                        let body = body.collect().await?.to_bytes();
                        let one = Seen { line, headers: head.headers, body };
                        seen.lock().push(one.clone());
                        Ok::<_, hyper::Error>(answer(&one))
                    }
                });
                let tls = tls.clone();
                tokio::spawn(async move {
                    let serving = auto::Builder::new(TokioExecutor::new());
                    match tls {
                        None => drop(serving.serve_connection(TokioIo::new(stream), service).await),
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                drop(serving.serve_connection(TokioIo::new(stream), service).await);
                            }
                        }
                    }
                });
            }
        });
        server
    }

    fn port(&self) -> u16 {
        self.address.port()
    }

    fn lines(&self) -> Vec<String> {
        self.seen.lock().iter().map(|seen| seen.line.clone()).collect()
    }

    /// Returns `true` if nobody has connected.
    fn is_untouched(&self) -> bool {
        self.connections.load(Ordering::Relaxed) == 0
    }
}

fn ok(body: impl Into<Bytes>) -> Answer {
    Response::new(Full::new(body.into()))
}

fn redirect(status: u16, location: &str) -> Answer {
    Response::builder().status(status).header("location", location).body(Full::default()).unwrap()
}

/// Resolves the names of a test. Counts the lookups.
fn names(names: &[(&str, &[&str])], lookups: &Arc<AtomicUsize>) -> Connector {
    let names: BTreeMap<String, Vec<IpAddr>> = names
        .iter()
        .map(|(name, all)| ((*name).to_owned(), all.iter().map(|one| one.parse().unwrap()).collect()))
        .collect();
    let lookups = lookups.clone();
    let resolve = move |name: String, port: u16| -> Found {
        lookups.fetch_add(1, Ordering::Relaxed);
        let found = names.get(&name).map(|all| all.iter().map(|one| SocketAddr::new(*one, port)).collect());
        Box::pin(async move { found.ok_or_else(|| io::Error::other("no such name")) })
    };
    Connector { resolve: Box::new(resolve), proxies: Box::new(|_| Ok(None)), ..Connector::default() }
}

fn client_of(connector: Connector) -> Client {
    Outbound::with(connector, Arc::default()).client(&"sender".parse().unwrap())
}

fn client() -> Client {
    client_of(Connector { proxies: Box::new(|_| Ok(None)), ..Connector::default() })
}

fn get(url: &str) -> HttpRequest {
    HttpRequest {
        method: "GET".to_owned(),
        url: Url::parse(url).unwrap(),
        headers: Vec::new(),
        body: Vec::new(),
        timeout: Duration::from_secs(60),
        redirects: 0,
    }
}

/// Admits every request. Addresses need not be public.
fn anything(_: &str, _: &Url) -> Result<Admission, HttpError> {
    Ok(Admission { private: true, headers: Vec::new() })
}

/// Admits what the manifest's `http` and the administrator's file grant.
fn granted(asked: &[(&str, u16, &[&str])], file: &str) -> impl Fn(&str, &Url) -> Result<Admission, HttpError> + use<> {
    let asked: Vec<_> = asked
        .iter()
        .map(|(host, port, methods)| HttpPermission {
            host: Pattern::parse(host).unwrap(),
            port: *port,
            plain: true,
            methods: methods.iter().map(|method| (*method).to_owned()).collect(),
        })
        .collect();
    let file: AdminFile = crate::yaml::read(file).unwrap();
    let grants = Grants::new(&[], &[]).with_http(&asked, &file.http);
    move |method, url| match grants.check_http(method, url) {
        Ok(granted) => Ok(Admission { private: granted.private, headers: Vec::new() }),
        Err(denied) => Err(HttpError::NotGranted(denied.to_string())),
    }
}

fn refusal(result: Result<HttpResponse, HttpError>) -> String {
    match result.unwrap_err() {
        HttpError::NotGranted(why) => why,
        other => panic!("{other:?}"),
    }
}

fn unreachable(result: Result<HttpResponse, HttpError>) -> String {
    match result.unwrap_err() {
        HttpError::Unreachable(why) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_granted_request_arrives_and_its_response_comes_back() {
    let server = Server::start(|seen| {
        let body = seen.body.clone();
        Response::builder().status(418).header("x-answer", "yes").body(Full::new(body)).unwrap()
    })
    .await;
    let request = HttpRequest {
        method: "POST".to_owned(),
        headers: vec![("X-Token".to_owned(), "t".to_owned()), ("x-token".to_owned(), "u".to_owned())],
        body: b"hello".to_vec(),
        ..get(&format!("http://127.0.0.1:{}/a?b=c", server.port()))
    };
    let response = client().send(request, &anything).await.unwrap();
    assert_eq!((response.status, &*response.body), (418, &b"hello"[..]));
    assert!(response.headers.contains(&("x-answer".to_owned(), "yes".to_owned())));
    let seen = server.seen.lock()[0].clone();
    assert_eq!(seen.line, "POST /a HTTP/1.1");
    assert_eq!(seen.headers.get_all("x-token").iter().count(), 2);
    assert_eq!(seen.headers["host"], format!("127.0.0.1:{}", server.port()));
    assert_eq!(seen.headers["content-length"], "5");
    assert!(seen.headers["user-agent"].to_str().unwrap().starts_with("pilothouse/"));
}

#[tokio::test]
async fn invariant_7_nothing_arrives_without_its_grant() {
    let (server, other) = (Server::start(|_| ok("")).await, Server::start(|_| ok("")).await);
    let (port, elsewhere) = (server.port(), other.port());
    let connector =
        names(&[("public.test", &["127.0.0.1"]), ("mixed.test", &["1.1.1.1", "::ffff:127.0.0.1"])], &Arc::default());
    let client = client_of(connector);
    let asked: &[(&str, u16, &[&str])] = &[
        ("127.0.0.1", port, &["GET", "POST"]),
        ("*.test", port, &["GET"]),
        ("::1", port, &["GET"]),
        ("0.0.0.0", port, &["GET"]),
        ("64:ff9b::7f00:1", port, &["GET"]),
    ];
    let none = granted(asked, "{}");
    let public = granted(
        asked,
        &format!(
            "http: [{{ hosts: ['127.0.0.1', '*.test', '::1', '0.0.0.0', '64:ff9b::7f00:1'], ports: [{port}], methods: [GET], plain: true }}]"
        ),
    );
    let (none, public): (&Admit, &Admit) = (&none, &public);
    for (url, method, admit, why) in [
        // No grant, or one for another port or method.
        (format!("http://127.0.0.1:{port}/"), "GET", none, "add under http"),
        (format!("http://127.0.0.1:{elsewhere}/"), "GET", public, "manifest"),
        (format!("http://127.0.0.1:{port}/"), "POST", public, "add under http"),
        (format!("http://127.0.0.1:{port}/"), "PUT", public, "manifest"),
        (format!("https://127.0.0.1:{port}/"), "GET", public, "manifest"),
        // Granted, but not for an address that is not public.
        (format!("http://127.0.0.1:{port}/"), "GET", public, "not public"),
        (format!("http://[::ffff:127.0.0.1]:{port}/"), "GET", public, "not public"),
        (format!("http://[::1]:{port}/"), "GET", public, "not public"),
        (format!("http://0.0.0.0:{port}/"), "GET", public, "not public"),
        (format!("http://[64:ff9b::127.0.0.1]:{port}/"), "GET", public, "not public"),
        (format!("http://public.test:{port}/"), "GET", public, "not public"),
        (format!("http://mixed.test:{port}/"), "GET", public, "not public"),
    ] {
        let request = HttpRequest { method: method.to_owned(), ..get(&url) };
        let refused = refusal(client.send(request, admit).await);
        assert!(refused.contains(why), "{method} {url}: {refused}");
    }
    assert!(server.is_untouched() && other.is_untouched(), "{:?} {:?}", server.lines(), other.lines());
    let private = granted(
        asked,
        &format!("http: [{{ hosts: ['127.0.0.1'], ports: [{port}], methods: [GET], plain: true, private: true }}]"),
    );
    assert_eq!(client.send(get(&format!("http://127.0.0.1:{port}/")), &private).await.unwrap().status, 200);
}

#[tokio::test]
async fn invariant_7_a_redirect_is_granted_like_a_request() {
    let denied = Server::start(|_| ok("")).await;
    let target = format!("http://127.0.0.1:{}/b", denied.port());
    let server = Server::start(move |_| redirect(307, &target)).await;
    let port = server.port();
    let file =
        format!("http: [{{ hosts: ['127.0.0.1'], ports: [{port}], methods: [GET], plain: true, private: true }}]");
    let admit = granted(&[("127.0.0.1", port, &["GET"]), ("127.0.0.1", denied.port(), &["GET"])], &file);
    let request = || get(&format!("http://127.0.0.1:{port}/a"));
    let refused = refusal(client().send(HttpRequest { redirects: 5, ..request() }, &admit).await);
    assert!(refused.contains("add under http"), "{refused}");
    assert!(denied.is_untouched());
    // A plugin that follows none gets the redirect itself.
    assert_eq!(client().send(request(), &admit).await.unwrap().status, 307);
}

#[tokio::test]
async fn redirects_are_followed_without_credentials_to_another_origin_and_have_an_end() {
    let other = Server::start(|_| ok("there")).await;
    let target = format!("http://127.0.0.1:{}/there", other.port());
    let server = Server::start(move |seen| match seen.line.split(' ').nth(1) {
        Some("/loop") => redirect(302, "/loop"),
        Some("/a") => redirect(307, "b?x"),
        _ => redirect(308, &target),
    })
    .await;
    let base = format!("http://127.0.0.1:{}", server.port());
    let headers = [("authorization", "secret"), ("x-api-key", "secret"), ("accept", "text/plain")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let request = HttpRequest {
        method: "PUT".to_owned(),
        body: b"body".to_vec(),
        headers,
        redirects: 2,
        ..get(&format!("{base}/a"))
    };
    let client = client();
    assert_eq!(&*client.send(request, &anything).await.unwrap().body, b"there");
    assert_eq!(server.lines(), ["PUT /a HTTP/1.1", "PUT /b HTTP/1.1"]);
    assert!(server.seen.lock().iter().all(|seen| seen.headers["authorization"] == "secret" && seen.body == "body"));
    let seen = other.seen.lock()[0].clone();
    assert!(!seen.headers.contains_key("authorization") && !seen.headers.contains_key("x-api-key"));
    assert_eq!((&seen.headers["accept"], &*seen.body), (&"text/plain".parse().unwrap(), &b"body"[..]));
    let response = client.send(HttpRequest { redirects: 3, ..get(&format!("{base}/loop")) }, &anything).await.unwrap();
    assert_eq!((response.status, server.lines().len()), (302, 6));
}

#[tokio::test]
async fn the_administrators_headers_replace_the_plugins_and_stay_at_their_origin() {
    let other = Server::start(|_| ok("")).await;
    let target = format!("http://127.0.0.1:{}/", other.port());
    let server = Server::start(move |seen| match seen.line.contains("/a") {
        true => redirect(307, "/b"),
        false => redirect(307, &target),
    })
    .await;
    let admit = |_: &str, _: &Url| {
        let header = ("authorization".parse().unwrap(), "Bearer secret".parse().unwrap());
        Ok(Admission { private: true, headers: vec![header] })
    };
    let headers = vec![("Authorization".to_owned(), "mine".to_owned()), ("Authorization".to_owned(), "too".to_owned())];
    let request = HttpRequest { headers, redirects: 5, ..get(&format!("http://127.0.0.1:{}/a", server.port())) };
    assert_eq!(client().send(request, &admit).await.unwrap().status, 200);
    for seen in server.seen.lock().iter() {
        assert_eq!(seen.headers.get_all("authorization").iter().collect::<Vec<_>>(), ["Bearer secret"]);
    }
    assert_eq!(server.lines().len(), 2);
    assert!(!other.seen.lock()[0].headers.contains_key("authorization"));
}

#[tokio::test]
async fn a_name_is_resolved_once_for_a_connection_to_the_checked_address() {
    let server = Server::start(|_| ok("")).await;
    let lookups = Arc::default();
    let client = client_of(names(&[("a.test", &["127.0.0.1"])], &lookups));
    for _ in 0..3 {
        client.send(get(&format!("http://a.test:{}/", server.port())), &anything).await.unwrap();
    }
    assert_eq!((lookups.load(Ordering::Relaxed), server.connections.load(Ordering::Relaxed)), (1, 1));
    assert_eq!(server.seen.lock()[0].headers["host"], format!("a.test:{}", server.port()));
    let error = unreachable(client.send(get("http://b.test/"), &anything).await);
    assert_eq!(error, "cannot resolve b.test: no such name");
}

#[tokio::test]
async fn a_connection_to_a_private_address_serves_no_request_without_that_grant() {
    let server = Server::start(|_| ok("")).await;
    let client = client();
    let url = format!("http://127.0.0.1:{}/", server.port());
    client.send(get(&url), &anything).await.unwrap();
    let public = |_: &str, _: &Url| Ok(Admission { private: false, headers: Vec::new() });
    assert!(refusal(client.send(get(&url), &public).await).contains("not public"));
    assert_eq!(server.lines().len(), 1);
}

#[tokio::test]
async fn no_name_leads_to_a_metadata_service() {
    let lookups = Arc::default();
    let addresses = [("imds.test", &["169.254.169.254"][..]), ("mixed.test", &["127.0.0.1", "fd00:ec2::254"])];
    let client = client_of(names(&addresses, &lookups));
    for name in ["imds.test", "mixed.test"] {
        let refused = refusal(client.send(get(&format!("http://{name}/latest/meta-data/")), &anything).await);
        assert!(refused.contains("link-local or a metadata service"), "{refused}");
    }
    let address = "169.254.169.254".parse().unwrap();
    assert!(check_public(&Host::Address(address), &[SocketAddr::new(address, 80)], true).is_ok());
}

#[tokio::test]
async fn a_body_beyond_the_bound_is_cut_off() {
    let server = Server::start(|seen| match seen.line.contains("fits") {
        true => ok(vec![b'x'; MAX_HTTP_BODY]),
        false => ok(vec![b'x'; MAX_HTTP_BODY + 1]),
    })
    .await;
    let base = format!("http://127.0.0.1:{}", server.port());
    assert_eq!(client().send(get(&format!("{base}/fits")), &anything).await.unwrap().body.len(), MAX_HTTP_BODY);
    assert!(matches!(client().send(get(&base), &anything).await, Err(HttpError::TooLarge)));
    // An endless body that does not say how long it is.
    let endless = raw(|mut stream| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
        loop {
            stream.write_all(&[b'x'; 65_536]).await?;
        }
    })
    .await;
    assert!(matches!(client().send(get(&format!("http://{endless}/")), &anything).await, Err(HttpError::TooLarge)));
}

/// Starts a server that answers every connection by `serve`, once a request has begun.
async fn raw<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            if stream.read(&mut head).await.is_ok() {
                tokio::spawn(serve(stream));
            }
        }
    });
    address
}

#[tokio::test]
async fn a_server_that_breaks_or_hangs_costs_the_request() {
    let garbage = raw(|mut stream| async move { stream.write_all(b"SSH-2.0-x\r\n\r\n").await }).await;
    let cut =
        raw(|mut stream| async move { stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx").await }).await;
    let shut = raw(|_| async { Ok(()) }).await;
    let long = raw(|mut stream| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await?;
        loop {
            stream.write_all(&[b'x'; 65_536]).await?;
        }
    })
    .await;
    for address in [garbage, cut, shut, long] {
        let why = unreachable(client().send(get(&format!("http://{address}/secret-path")), &anything).await);
        assert!(why.starts_with(&format!("no response from http://{address}: ")) && !why.contains("secret"), "{why}");
    }
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let why = unreachable(client().send(get(&format!("http://{free}/")), &anything).await);
    assert!(why.starts_with(&format!("cannot connect to http://{free}: {free}: ")), "{why}");
    let silent = raw(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
        Ok(())
    })
    .await;
    let request = HttpRequest { timeout: Duration::from_millis(20), ..get(&format!("http://{silent}/")) };
    assert!(matches!(client().send(request, &anything).await, Err(HttpError::Timeout)));
}

#[tokio::test]
async fn more_than_the_rate_or_sixteen_at_once_are_refused_at_once() {
    let silent = raw(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
        Ok(())
    })
    .await;
    let client = Arc::new(client());
    let url = format!("http://{silent}/");
    let mut waiting: Vec<_> = (0..16).map(|_| Box::pin(client.send(get(&url), &anything))).collect();
    for request in &mut waiting {
        assert!(futures::poll!(request).is_pending());
    }
    assert!(matches!(client.send(get(&url), &anything).await, Err(HttpError::TooMany)));
    drop(waiting);
    let server = Server::start(|_| ok("")).await;
    let url = format!("http://127.0.0.1:{}/", server.port());
    client.limit(Some(Rate { burst: 2, every: Duration::from_secs(3600) }));
    assert!(client.send(get(&url), &anything).await.is_ok());
    assert!(client.send(get(&url), &anything).await.is_ok());
    assert!(matches!(client.send(get(&url), &anything).await, Err(HttpError::TooMany)));
    client.limit(None);
    assert!(client.send(get(&url), &anything).await.is_ok());
}

#[tokio::test]
async fn lookups_that_nobody_waits_for_are_bounded() {
    let lookups = Arc::<AtomicUsize>::default();
    let counted = lookups.clone();
    let resolve = move |_: String, _: u16| -> Found {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::pending())
    };
    let client = client_of(Connector { resolve: Box::new(resolve), ..names(&[], &Arc::default()) });
    for _ in 0..10 {
        let request = HttpRequest { timeout: Duration::from_millis(1), ..get("http://a.test/") };
        assert!(matches!(client.send(request, &anything).await, Err(HttpError::Timeout)));
    }
    assert_eq!(lookups.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn idle_connections_are_reused_bounded_and_replaced_when_the_server_closed_them() {
    let server = Server::start(|_| ok("")).await;
    let lookups = Arc::default();
    let many: Vec<String> = (0..20).map(|number| format!("n{number}.test")).collect();
    let known: Vec<(&str, &[&str])> = many.iter().map(|name| (name.as_str(), &["127.0.0.1"][..])).collect();
    let client = client_of(names(&known, &lookups));
    for name in &many {
        client.send(get(&format!("http://{name}:{}/", server.port())), &anything).await.unwrap();
    }
    assert_eq!((client.idle(), server.connections.load(Ordering::Relaxed)), (8, 20));
    // A server that closes each connection after its response, though it promised to keep it.
    let closing =
        raw(|mut stream| async move { stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await }).await;
    let client = self::client();
    for _ in 0..5 {
        assert_eq!(client.send(get(&format!("http://{closing}/")), &anything).await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn headers_of_the_connection_belong_to_the_host() {
    let server = Server::start(|_| ok("")).await;
    let url = format!("http://127.0.0.1:{}/", server.port());
    for (name, value) in [
        ("Host", "other"),
        ("content-length", "7"),
        ("Transfer-Encoding", "chunked"),
        ("connection", "upgrade"),
        ("x y", "z"),
        ("", "z"),
        ("x", "a\r\nhost: b"),
    ] {
        let headers = vec![(name.to_owned(), value.to_owned())];
        let result = client().send(HttpRequest { headers, ..get(&url) }, &anything).await;
        assert!(matches!(&result, Err(HttpError::Invalid(why)) if !why.contains(value)), "{name}: {result:?}");
    }
    assert!(server.is_untouched());
}

/// A CA, and server certificates of it.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn server(&self, name: &str, change: impl FnOnce(&mut CertificateParams), alpn: &[&str]) -> ServerConfig {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.serialize_der().try_into().unwrap())
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    /// Returns a client that trusts this CA, and resolves every name to loopback.
    fn trusting(&self) -> Client {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = names(&[("a.test", &["127.0.0.1"])], &Arc::default());
        connector.tls.set(Arc::new(config)).unwrap();
        client_of(connector)
    }
}

#[tokio::test]
async fn tls_offers_http2_and_says_what_is_wrong_with_a_certificate() {
    let ca = Ca::new();
    let start = async |config| Server::at("127.0.0.1:0", Some(config), |_| ok("tls")).await;
    for (alpn, version) in [(&["h2", "http/1.1"][..], "HTTP/2.0"), (&["http/1.1"], "HTTP/1.1"), (&[], "HTTP/1.1")] {
        let server = start(ca.server("a.test", |_| (), alpn)).await;
        let client = ca.trusting();
        let url = format!("https://a.test:{}/x", server.port());
        for _ in 0..2 {
            assert_eq!(&*client.send(get(&url), &anything).await.unwrap().body, b"tls");
        }
        assert_eq!(
            (server.lines()[1].as_str(), server.connections.load(Ordering::Relaxed)),
            (&*format!("GET /x {version}"), 1)
        );
    }
    let expired = |params: &mut CertificateParams| params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    for (config, client, why) in [
        (ca.server("b.test", |_| (), &[]), ca.trusting(), "its certificate is for another name"),
        (ca.server("a.test", expired, &[]), ca.trusting(), "its certificate has expired"),
        (ca.server("a.test", |_| (), &[]), Ca::new().trusting(), "signed by a CA that this host does not trust"),
    ] {
        let server = start(config).await;
        let error = unreachable(client.send(get(&format!("https://a.test:{}/", server.port())), &anything).await);
        assert!(error.contains(why), "{error}");
        assert_eq!(server.lines(), [""; 0]);
    }
    let plain = Server::start(|_| ok("")).await;
    let error = unreachable(ca.trusting().send(get(&format!("https://a.test:{}/", plain.port())), &anything).await);
    assert!(error.starts_with(&format!("no TLS with https://a.test:{}", plain.port())), "{error}");
}

/// A proxy that connects every tunnel to `to`, and records what it was asked for.
async fn proxy(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, asked) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
    let heard = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut head = vec![0; 1024];
            let length = near.read(&mut head).await.unwrap_or_default();
            heard.lock().push(String::from_utf8_lossy(&head[..length]).into_owned());
            near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut far = TcpStream::connect(to).await.unwrap();
            tokio::spawn(async move { drop(tokio::io::copy_bidirectional(&mut near, &mut far).await) });
        }
    });
    (address, asked)
}

#[tokio::test]
async fn a_proxy_gets_the_name_and_no_literal_private_address() {
    let server = Server::start(|_| ok("through")).await;
    let (address, asked) = proxy(server.address).await;
    let lookups = Arc::default();
    let connector = Connector {
        proxies: Box::new(move |_| Ok(Some(format!("http://u:p%40w@{address}").parse().unwrap()))),
        ..names(&[], &lookups)
    };
    let client = client_of(connector);
    let public = |_: &str, _: &Url| Ok(Admission { private: false, headers: Vec::new() });
    let response = client.send(get("http://far.test:8080/a"), &public).await.unwrap();
    assert_eq!((&*response.body, lookups.load(Ordering::Relaxed)), (&b"through"[..], 0));
    let head = asked.lock()[0].clone();
    assert!(head.starts_with("CONNECT far.test:8080 HTTP/1.1\r\n") && head.contains("Basic dTpwQHc="), "{head}");
    assert_eq!(server.lines(), ["GET /a HTTP/1.1"]);
    assert!(refusal(client.send(get("http://10.0.0.1/"), &public).await).contains("not public"));
    assert_eq!(asked.lock().len(), 1);
}

#[tokio::test]
async fn requests_over_ipv6_work_and_loopback_needs_its_grant() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return;
    }
    let server = Server::at("[::1]:0", None, |_| ok("six")).await;
    let url = format!("http://[::1]:{}/", server.port());
    let public = |_: &str, _: &Url| Ok(Admission { private: false, headers: Vec::new() });
    refusal(client().send(get(&url), &public).await);
    assert!(server.is_untouched());
    assert_eq!(&*client().send(get(&url), &anything).await.unwrap().body, b"six");
    assert_eq!(server.seen.lock()[0].headers["host"], format!("[::1]:{}", server.port()));
}

#[tokio::test]
async fn each_request_is_counted_once() {
    let requests = Arc::<Requests>::default();
    requests.begin("sender");
    let connector = Connector { proxies: Box::new(|_| Ok(None)), ..Connector::default() };
    let client = Outbound::with(connector, requests.clone()).client(&"sender".parse().unwrap());
    let server = Server::start(|_| ok("four")).await;
    let url = format!("http://127.0.0.1:{}/", server.port());
    client.send(HttpRequest { body: b"sent!".to_vec(), ..get(&url) }, &anything).await.unwrap();
    let denies = |_: &str, _: &Url| Err(HttpError::NotGranted(String::new()));
    assert!(client.send(get(&url), &denies).await.is_err());
    {
        // Its call has ended.
        let mut dropped = Box::pin(client.send(get(&url), &anything));
        assert!(futures::poll!(&mut dropped).is_pending());
    }
    let mut registry = crate::metrics::Registry::default();
    super::metrics::register(&mut registry, &requests);
    insta::assert_snapshot!(crate::metrics::samples(&registry, "pilothouse"), @r#"
    pilothouse_http_requests_total{plugin="sender",result="invalid"} 0
    pilothouse_http_requests_total{plugin="sender",result="not_granted"} 1
    pilothouse_http_requests_total{plugin="sender",result="success"} 1
    pilothouse_http_requests_total{plugin="sender",result="timeout"} 1
    pilothouse_http_requests_total{plugin="sender",result="too_large"} 0
    pilothouse_http_requests_total{plugin="sender",result="too_many"} 0
    pilothouse_http_requests_total{plugin="sender",result="unreachable"} 0
    pilothouse_http_requests_in_flight{plugin="sender"} 0
    pilothouse_http_sent_bytes_total{plugin="sender"} 5
    pilothouse_http_received_bytes_total{plugin="sender"} 4
    "#);
}
