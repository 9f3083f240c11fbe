//! Calls webhooks over HTTPS, for `admission` and `convert`. Those of a [`Local`] are called without sockets.
//!
//! ```text
//!  clientConfig ─► Endpoint ─► URL, and for a Service the address of one of its endpoints ─► pooled connection ─► answer
//! ```
//!
//! A Service has no virtual IP here. Its address is that of a ready endpoint: from its EndpointSlices, else from its
//! Endpoints, else `externalName` or `clusterIP`. The certificate must be valid for `NAME.NAMESPACE.svc`, as in a
//! cluster.
//!
//! Errors are in the words of Go's HTTP client, because kube-apiserver quotes them.

use std::{
    collections::HashMap,
    error::Error as StdError,
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use parking_lot::Mutex;
use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde_json::Value;
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};
use tower::Service;

use crate::{
    body,
    object::{Key, array, meta_str, to_json},
    resources::GroupResource,
    schema::Cause,
    server::Server,
};

/// Upper bound for the bytes of an answer. A list of converted objects is the largest.
const ANSWER: usize = 64 << 20;
/// Upper bound for calls at the same time. A call waits for its turn within its own timeout.
const CALLS: usize = 128;
/// Clients with their connections, as many as in kube-apiserver.
const CLIENTS: usize = 200;
/// Idle connections of one client.
const IDLE: usize = 16;
/// Time after which an idle connection is closed, as in Go.
const IDLE_TIME: Duration = Duration::from_secs(90);
/// Upper bound for the text of an answer in an error.
const QUOTED: usize = 2048;

/// The address of a webhook: the `clientConfig` of a webhook configuration or of a definition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    target: Target,
    /// The CA bundle as PEM. If it is empty, the system's certificates are trusted.
    ca: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Target {
    Url(String),
    Service { namespace: String, name: String, path: String, port: u16 },
}

impl Endpoint {
    /// Reads a valid `clientConfig`.
    pub(crate) fn parse(config: &Value) -> Option<Self> {
        let ca = BASE64.decode(config["caBundle"].as_str().unwrap_or_default()).ok()?;
        let text = |field: &str| config["service"][field].as_str().unwrap_or_default().to_owned();
        let target = match config["url"].as_str() {
            Some(url) => Target::Url(url.to_owned()),
            None => Target::Service {
                namespace: text("namespace"),
                name: text("name"),
                path: text("path"),
                port: config["service"]["port"].as_u64().map_or(Some(443), |port| u16::try_from(port).ok())?,
            },
        };
        config["url"].as_str().map(|_| ()).or_else(|| config["service"].as_object().map(|_| ()))?;
        Some(Endpoint { target, ca })
    }

    /// Returns the URL with its path and the timeout in its query.
    fn url(&self, seconds: u64) -> String {
        let base = match &self.target {
            Target::Url(url) => url.clone(),
            Target::Service { namespace, name, path, port } => {
                let path = path.trim_start_matches('/');
                format!("https://{name}.{namespace}.svc:{port}/{path}")
            }
        };
        let (scheme, rest) = base.split_once("://").unwrap_or(("https", &base));
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        format!("{scheme}://{host}/{}?timeout={seconds}s", path.trim_end_matches('/'))
    }
}

/// Returns all violations of a `clientConfig`. `at` is its path.
pub(crate) fn validate(config: &Value, at: &str) -> Vec<Cause> {
    let (url, service) = (&config["url"], &config["service"]);
    let mut causes = Vec::new();
    if url.is_null() == service.is_null() {
        causes.push(Cause::required(at, "exactly one of url or service is required"));
    } else if let Some(url) = url.as_str() {
        validate_url(url, &format!("{at}.url"), &mut causes);
    } else {
        validate_service(service, &format!("{at}.service"), &mut causes);
    }
    causes
}

/// Returns the violation of a CA bundle, if it has no certificate.
pub(crate) fn validate_ca(config: &Value, at: &str) -> Option<Cause> {
    let text = config["caBundle"].as_str().filter(|text| !text.is_empty())?;
    let ca = BASE64.decode(text).unwrap_or_default();
    let why = roots(&ca).err()?;
    Some(Cause::invalid(&format!("{at}.caBundle"), &text.into(), &why))
}

fn validate_url(url: &str, at: &str, causes: &mut Vec<Cause>) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if scheme != "https" {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        causes.push(Cause::invalid(at, &scheme.into(), &why));
    }
    if host.is_empty() {
        causes.push(Cause::invalid(at, &"".into(), &format!("host must be specified{FORM}")));
    } else if url.parse::<Uri>().is_err() {
        causes.push(Cause::required(at, &format!("url must be a valid URL{FORM}")));
    }
    for (part, why) in [
        (user, "user information is not permitted in the URL"),
        (fragment, "fragments are not permitted in the URL"),
        (query, "query parameters are not permitted in the URL"),
    ] {
        if !part.is_empty() {
            causes.push(Cause::invalid(at, &part.into(), why));
        }
    }
}

fn validate_service(service: &Value, at: &str, causes: &mut Vec<Cause>) {
    for field in ["name", "namespace"] {
        if service[field].as_str().unwrap_or_default().is_empty() {
            causes.push(Cause::required(&format!("{at}.{field}"), ""));
        }
    }
    let port = &service["port"];
    if !port.is_null() && port.as_u64().is_none_or(|port| !(1..=65535).contains(&port)) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        causes.push(Cause::invalid(&format!("{at}.port"), port, why));
    }
    let path = service["path"].as_str().unwrap_or_default();
    if !path.is_empty() && path != "/" {
        let at = format!("{at}.path");
        if !path.starts_with('/') {
            causes.push(Cause::invalid(&at, &path.into(), "must start with a '/'"));
        }
        let steps = path.strip_prefix('/').unwrap_or(path);
        for (index, step) in steps.strip_suffix('/').unwrap_or(steps).split('/').enumerate() {
            if !crate::names::is_subdomain(step) {
                let why = if step.is_empty() { "may not be empty" } else { "is not a lowercase RFC 1123 subdomain" };
                causes.push(Cause::invalid(&at, &path.into(), &format!("segment[{index}] {why}")));
            }
        }
    }
}

type HttpClient = Client<HttpsConnector<Dial>, Full<Bytes>>;

/// Calls webhooks and keeps their connections.
#[derive(Debug)]
pub(crate) struct Caller {
    /// By endpoint, and for a Service by the address of the endpoint that serves it.
    clients: Mutex<HashMap<(Endpoint, Option<String>), HttpClient>>,
    turns: Semaphore,
    local: OnceLock<Local>,
}

/// Answers webhooks in the same process.
struct Local {
    /// The beginning of their URLs.
    url: String,
    answer: Box<dyn Fn(Value) -> BoxFuture<'static, Result<Value, String>> + Send + Sync>,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Default for Caller {
    fn default() -> Self {
        Caller { clients: Mutex::default(), turns: Semaphore::new(CALLS), local: OnceLock::new() }
    }
}

impl Caller {
    /// Answers webhooks whose URLs begin with `url` by a function. Only the first call has an effect.
    pub(crate) fn answer_locally(
        &self,
        url: &str,
        answer: impl Fn(Value) -> BoxFuture<'static, Result<Value, String>> + Send + Sync + 'static,
    ) {
        self.local.get_or_init(|| Local { url: url.to_owned(), answer: Box::new(answer) });
    }

    /// Sends a review, and returns the answer as JSON. `late` is the error for no answer `within` the time.
    ///
    /// # Errors
    /// The text is what kube-apiserver quotes.
    pub(crate) async fn post(
        &self,
        server: &Server,
        endpoint: &Endpoint,
        review: &Value,
        within: Duration,
        late: &str,
    ) -> Result<Value, String> {
        let url = endpoint.url(within.as_secs() + u64::from(within.subsec_nanos() > 0));
        let failed = |why: &str| format!("Post \"{url}\": {why}");
        let answer = async {
            let _turn = self.turns.acquire().await.map_err(|error| failed(&error.to_string()))?;
            if let Some(local) = self.local.get().filter(|local| url.starts_with(&local.url)) {
                return (local.answer)(review.clone()).await.map_err(|why| failed(&why));
            }
            let client = self.client(server, endpoint).map_err(|why| failed(&why))?;
            let request = Request::builder()
                .method(Method::POST)
                .uri(&url)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json, */*")
                .header(header::USER_AGENT, "kube-apiserver-admission")
                .body(Full::new(to_json(review)))
                .map_err(|error| failed(&error.to_string()))?;
            let response = client.request(request).await.map_err(|error| failed(&reason(&error)))?;
            let (head, body) = response.into_parts();
            let body = match Limited::new(body, ANSWER).collect().await {
                Ok(body) => body.to_bytes(),
                Err(error) if error.is::<LengthLimitError>() => {
                    return Err(format!("the answer is larger than {ANSWER} bytes"));
                }
                Err(error) => return Err(format!("unexpected error when reading response body: {error}")),
            };
            if !(200..=206).contains(&head.status.as_u16()) {
                let is_text =
                    head.headers.get(header::CONTENT_TYPE).is_none_or(|kind| kind.as_bytes().starts_with(b"text/"));
                let text = if is_text { String::from_utf8_lossy(&body) } else { "unknown".into() };
                return Err(refused(head.status.as_u16(), &text));
            }
            body::json(&body)
                .map(|decoded| decoded.value)
                .map_err(|why| format!("couldn't get version/kind; json parse error: {why}"))
        };
        timeout(within, answer).await.unwrap_or_else(|_| Err(failed(late)))
    }

    fn client(&self, server: &Server, endpoint: &Endpoint) -> Result<HttpClient, String> {
        let dialed = match &endpoint.target {
            Target::Url(_) => None,
            Target::Service { namespace, name, port, .. } => Some(resolve(server, namespace, name, *port)?),
        };
        let key = (endpoint.clone(), dialed.clone());
        if let Some(client) = self.clients.lock().get(&key) {
            return Ok(client.clone());
        }
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(&endpoint.ca)?)
            .https_only()
            .enable_http1()
            .wrap_connector(Dial { instead: dialed });
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIME)
            .pool_max_idle_per_host(IDLE)
            .build(connector);
        let mut clients = self.clients.lock();
        if clients.len() >= CLIENTS {
            // Endpoints change rarely, so starting over is rare too.
            clients.clear();
        }
        clients.insert(key, client.clone());
        Ok(client)
    }
}

fn roots(ca: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca) {
        let certificate = certificate.map_err(|error| format!("unable to load root certificates: {error}"))?;
        roots.add(certificate).map_err(|error| format!("unable to load root certificates: {error}"))?;
    }
    if roots.is_empty() {
        return Err("unable to load root certificates: unable to parse bytes as PEM block".to_owned());
    }
    Ok(roots)
}

fn tls(ca: &[u8]) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = if ca.trim_ascii().is_empty() {
        builder.with_native_roots().map_err(|error| format!("cannot read the system's certificates: {error}"))?
    } else {
        builder.with_root_certificates(roots(ca)?)
    };
    Ok(builder.with_no_client_auth())
}

/// Returns host and port of a Service's port.
fn resolve(server: &Server, namespace: &str, name: &str, port: u16) -> Result<String, String> {
    let of = |plural: &str| GroupResource::new("", plural);
    let key = Key::new(namespace, name);
    let service = server.store.get(&of("services"), &key).ok_or_else(|| format!("service \"{name}\" not found"))?;
    let spec = &service.value["spec"];
    if spec["type"] == "ExternalName" {
        return Ok(format!("{}:{port}", spec["externalName"].as_str().unwrap_or_default()));
    }
    let served = array(&spec["ports"]).iter().find(|served| served["port"].as_u64() == Some(u64::from(port)));
    let served = served.ok_or_else(|| format!("no service port {port} found for service \"{name}\""))?;
    let named = |ports: &Value| {
        let wanted = served["name"].as_str().unwrap_or_default();
        let found = array(ports).iter().find(|port| port["name"].as_str().unwrap_or_default() == wanted)?;
        found["port"].as_u64()
    };
    let join =
        |host: &str, port: u64| if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };

    let slices = GroupResource::new("discovery.k8s.io", "endpointslices");
    let slices = server.store.list(&slices, Some(namespace), None, None).map_or_else(|_| Vec::new(), |all| all.objects);
    for slice in slices.iter().map(|slice| &slice.value) {
        if slice["metadata"]["labels"]["kubernetes.io/service-name"] != name {
            continue;
        }
        let ready = |endpoint: &&Value| endpoint["conditions"]["ready"].as_bool() != Some(false);
        let address = array(&slice["endpoints"]).iter().filter(ready).find_map(|found| found["addresses"][0].as_str());
        if let (Some(address), Some(port)) = (address, named(&slice["ports"])) {
            return Ok(join(address, port));
        }
    }
    if let Some(endpoints) = server.store.get(&of("endpoints"), &key) {
        for subset in array(&endpoints.value["subsets"]) {
            if let (Some(address), Some(port)) = (subset["addresses"][0]["ip"].as_str(), named(&subset["ports"])) {
                return Ok(join(address, port));
            }
        }
    }
    match spec["clusterIP"].as_str() {
        None | Some("" | "None") => {
            Err(format!("no endpoints available for service \"{}\"", meta_str(&service.value, "name")))
        }
        Some(ip) => Ok(join(ip, u64::from(port))),
    }
}

/// Opens connections, to the URL's host or `instead` to another `host:port`.
#[derive(Debug, Clone)]
struct Dial {
    instead: Option<String>,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let own = || format!("{}:{}", uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(443));
        let address = self.instead.clone().unwrap_or_else(own);
        Box::pin(async move {
            let found = tokio::net::lookup_host(&address).await.map_err(|_| {
                let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                io::Error::other(format!("dial tcp: lookup {host}: no such host"))
            })?;
            let mut last = format!("dial tcp: lookup {address}: no such host");
            for address in found {
                match TcpStream::connect(address).await {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        return Ok(TokioIo::new(stream));
                    }
                    Err(error) => last = format!("dial tcp {address}: connect: {}", plain(&error)),
                }
            }
            Err(io::Error::other(last))
        })
    }
}

/// Returns the operating system's words for an error, as in Go.
fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset by peer".to_owned(),
        io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        _ => error.to_string(),
    }
}

/// Returns Go's words for a failed request.
fn reason(error: &hyper_util::client::legacy::Error) -> String {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    let mut last = String::new();
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            let mut inner = io;
            // Errors of TLS are wrapped twice.
            while let Some(deeper) = inner.get_ref().and_then(|inner| inner.downcast_ref::<io::Error>()) {
                inner = deeper;
            }
            return match inner.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                Some(error) => of_tls(error),
                None if inner.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
                None if inner.kind() == io::ErrorKind::ConnectionReset => "read: connection reset by peer".to_owned(),
                None => plain(inner),
            };
        }
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message) {
            return "EOF".to_owned();
        }
        last = error.to_string();
        next = error.source();
    }
    last
}

fn of_tls(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(error) = error else {
        return match error {
            // What does not speak TLS nearly always speaks HTTP.
            rustls::Error::InvalidMessage(_) => "http: server gave HTTP response to HTTPS client".to_owned(),
            error => format!("tls: {error}"),
        };
    };
    let why = match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "certificate signed by unknown authority".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().filter_map(|name| name.split('"').nth(1)).collect();
            let expected = expected.to_str();
            match names.as_slice() {
                _ if expected.parse::<std::net::IpAddr>().is_ok() => {
                    format!("cannot validate certificate for {expected} because it doesn't contain any IP SANs")
                }
                [] => format!("certificate is not valid for any names, but wanted to match {expected}"),
                names => format!("certificate is valid for {}, not {expected}", names.join(", ")),
            }
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => "certificate has expired or is not yet valid".to_owned(),
        error => error.to_string(),
    };
    format!("tls: failed to verify certificate: x509: {why}")
}

/// Returns client-go's words for an answer with an error's code. `text` is the body if it is text.
fn refused(code: u16, text: &str) -> String {
    let text: String = text.trim().chars().take(QUOTED).collect();
    let fixed = match code {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        403 | 406 | 415 => return text,
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        409 => "the server reported a conflict",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        500.. => return format!("an error on the server ({text:?}) has prevented the request from succeeding"),
        _ => {
            return format!("the server responded with the status code {code} but did not return more information");
        }
    };
    fixed.to_owned()
}
