//! The client of one plugin.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use parking_lot::Mutex;
use pilothouse_core::{http::Url, rate::Rate};
use tokio::{io::DuplexStream, sync::Semaphore, time::Instant};

use super::{
    connect::{Connector, failure},
    metrics::{Requests, Tally},
    pool::{Connection, Key, Pool},
    redirect::Hop,
};
use crate::{
    name::PluginName,
    wasm::{HttpError, HttpRequest, HttpResponse, MAX_HTTP_BODY},
};

/// Requests of a plugin at once.
const MAX_IN_FLIGHT: usize = 16;

/// Lookups of names of a plugin at once. Each holds a thread for up to half a minute if the resolver is slow.
const MAX_LOOKUPS: usize = 4;

/// Headers that belong to the connection, or that the host sets.
const NOT_THE_PLUGINS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Methods that change nothing. Such a request is sent again if the server closed an idle connection, as Go does.
const SAFE: [&str; 3] = ["GET", "HEAD", "OPTIONS"];

/// How a request that is granted is sent.
#[derive(Debug, Default)]
pub struct Admission {
    /// `true` if the server may have an address that is not public.
    pub private: bool,
    /// Headers in place of the plugin's. They go to the origin of the request only.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// Decides whether a request, or a redirect, may be sent: its method, and where it goes.
type Admit<'a> = dyn Fn(&str, &Url) -> Result<Admission, HttpError> + Send + Sync + 'a;

/// Creates the clients of all plugins. Clones share what they are made of.
#[derive(Clone)]
pub struct Outbound {
    connector: Arc<Connector>,
    requests: Arc<Requests>,
}

impl Outbound {
    /// Creates it with the resolver, the proxies and the CAs of this machine. Counts in `requests`.
    pub fn new(requests: Arc<Requests>) -> Self {
        Self::with(Connector::default(), requests)
    }

    /// Creates one whose connections `dial` opens, without TLS, and without a check of addresses.
    pub fn instead(dial: impl Fn(&Url) -> DuplexStream + Send + Sync + 'static, requests: Arc<Requests>) -> Self {
        Self::with(Connector { instead: Some(Box::new(dial)), ..Connector::default() }, requests)
    }

    pub(super) fn with(connector: Connector, requests: Arc<Requests>) -> Self {
        Self { connector: Arc::new(connector), requests }
    }

    /// Creates the client of a plugin.
    pub fn client(&self, plugin: &PluginName) -> Client {
        Client {
            outbound: self.clone(),
            plugin: plugin.clone(),
            pool: Arc::default(),
            in_flight: Semaphore::new(MAX_IN_FLIGHT),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            rate: Mutex::new(Bucket { rate: None, used: std::time::Duration::ZERO }),
            origin: Instant::now(),
        }
    }
}

/// Sends the requests of one plugin. Its connections close when it is dropped.
pub struct Client {
    outbound: Outbound,
    plugin: PluginName,
    pool: Arc<Pool>,
    in_flight: Semaphore,
    lookups: Arc<Semaphore>,
    rate: Mutex<Bucket>,
    origin: Instant,
}

struct Bucket {
    rate: Option<Rate>,
    used: std::time::Duration,
}

/// A response whose body is still to be read.
struct Answer {
    head: http::response::Parts,
    body: Incoming,
    connection: Connection,
    key: Key,
}

impl Client {
    /// Limits how often requests are sent. Redirects are not counted.
    pub fn limit(&self, rate: Option<Rate>) {
        self.rate.lock().rate = rate;
    }

    /// Sends a request, and follows its redirects. `admit` is asked before each of them.
    ///
    /// # Cancellation
    /// Dropping the future closes the connection. The server may or may not have acted.
    pub async fn send(&self, request: HttpRequest, admit: &Admit<'_>) -> Result<HttpResponse, HttpError> {
        let mut tally = self.outbound.requests.count(self.plugin.as_str());
        let result = self.admitted(request, admit, &mut tally).await;
        tally.end(&result);
        result
    }

    async fn admitted(
        &self,
        request: HttpRequest,
        admit: &Admit<'_>,
        tally: &mut Tally,
    ) -> Result<HttpResponse, HttpError> {
        let HttpRequest { method, url, headers, body, timeout, redirects } = request;
        let headers = self.headers(headers)?;
        let admission = admit(&method, &url)?;
        let _permit = self.in_flight.try_acquire().map_err(|_| HttpError::TooMany)?;
        self.take_turn()?;
        tally.begin();
        let hop = Hop { method, url, headers, body: body.into(), is_abroad: false };
        tokio::time::timeout(timeout, self.follow(hop, admission, redirects, admit, tally))
            .await
            .unwrap_or(Err(HttpError::Timeout))
    }

    fn take_turn(&self) -> Result<(), HttpError> {
        let mut bucket = self.rate.lock();
        let Some(rate) = bucket.rate else { return Ok(()) };
        let now = self.origin.elapsed();
        if !rate.wait(bucket.used, now).is_zero() {
            return Err(HttpError::TooMany);
        }
        bucket.used = rate.take(bucket.used, now);
        Ok(())
    }

    async fn follow(
        &self,
        mut hop: Hop,
        mut admission: Admission,
        redirects: u8,
        admit: &Admit<'_>,
        tally: &mut Tally,
    ) -> Result<HttpResponse, HttpError> {
        let mut left = redirects;
        loop {
            tally.sent(hop.body.len());
            let answer = self.exchange(&hop, &admission).await?;
            if left == 0 || !Hop::is_redirected(answer.head.status, &answer.head.headers) {
                return self.read(&hop.url, answer, tally).await;
            }
            left -= 1;
            // The body of the redirect is not read, and its connection is closed.
            let from = hop.url.clone();
            hop.follow(answer.head.status, &answer.head.headers).map_err(|error| {
                HttpError::Unreachable(format!("a redirect of {} cannot be followed: {error}", from.origin()))
            })?;
            admission = admit(&hop.method, &hop.url)?;
        }
    }

    /// Sends one request. Connections that the server closed meanwhile do not count.
    async fn exchange(&self, hop: &Hop, admission: &Admission) -> Result<Answer, HttpError> {
        let Url { plain, host, port, .. } = &hop.url;
        let key = Key { plain: *plain, host: host.clone(), port: *port, private: admission.private };
        loop {
            let (mut connection, is_reused) = match self.pool.take(&key) {
                Some(connection) => (connection, true),
                None => {
                    let connecting = self.outbound.connector.connect(&hop.url, admission.private, &self.lookups);
                    (connecting.await?, false)
                }
            };
            let message = request(hop, admission, &connection)?;
            match connection.send(message).await {
                Ok(response) => {
                    let (head, body) = Response::into_parts(response);
                    return Ok(Answer { head, body, connection, key });
                }
                Err(error) if is_reused && (error.is_unsent || SAFE.contains(&&*hop.method)) => {}
                Err(error) => return Err(failure(&hop.url, &error.error)),
            }
        }
    }

    /// Reads the body, and keeps the connection.
    async fn read(&self, url: &Url, answer: Answer, tally: &mut Tally) -> Result<HttpResponse, HttpError> {
        let Answer { head, mut body, connection, key } = answer;
        if body.size_hint().lower() > MAX_HTTP_BODY as u64 {
            return Err(HttpError::TooLarge);
        }
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| failure(url, &error))?;
            if let Some(data) = frame.data_ref() {
                tally.received(data.len());
                if bytes.len() + data.len() > MAX_HTTP_BODY {
                    return Err(HttpError::TooLarge);
                }
                bytes.extend_from_slice(data);
            }
        }
        self.pool.keep(key, connection);
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = head.headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
        Ok(HttpResponse { status: head.status.as_u16(), headers, body: bytes })
    }

    /// Checks the plugin's headers.
    fn headers(&self, headers: Vec<(String, String)>) -> Result<HeaderMap, HttpError> {
        let mut map = HeaderMap::with_capacity(headers.len() + 1);
        for (name, value) in headers {
            // A value may be a credential, so it is not quoted.
            let invalid = |why: &str| HttpError::Invalid(format!("the header {name:?} {why}"));
            let lower = HeaderName::try_from(&name).map_err(|_| invalid("is not a header's name"))?;
            if NOT_THE_PLUGINS.contains(&lower.as_str()) {
                return Err(invalid("is set by the host"));
            }
            let value = HeaderValue::try_from(value).map_err(|_| invalid("has a value with control characters"))?;
            map.append(lower, value);
        }
        if !map.contains_key(header::USER_AGENT) {
            map.insert(header::USER_AGENT, HeaderValue::from_static(concat!("pilothouse/", env!("CARGO_PKG_VERSION"))));
        }
        Ok(map)
    }

    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.pool.len()
    }
}

/// Creates the request for a connection.
fn request(hop: &Hop, admission: &Admission, connection: &Connection) -> Result<Request<Full<Bytes>>, HttpError> {
    let invalid = |_| HttpError::Invalid("the URL has characters that must be written as %XX".to_owned());
    let Hop { method, url, headers, body, .. } = hop;
    let uri = match connection {
        Connection::Http1(_) => url.target.clone(),
        Connection::Http2(_) => format!("{}://{}{}", url.scheme(), url.authority(), url.target),
    };
    let mut request = Request::new(Full::new(body.clone()));
    *request.method_mut() = method.parse().map_err(|_| HttpError::Invalid("the method is not valid".to_owned()))?;
    *request.uri_mut() = uri.parse::<Uri>().map_err(invalid)?;
    request.headers_mut().clone_from(headers);
    for (name, value) in admission.headers.iter().filter(|_| !hop.is_abroad) {
        request.headers_mut().insert(name, value.clone());
    }
    match connection {
        Connection::Http1(_) => {
            let host = HeaderValue::try_from(url.authority())
                .map_err(|_| HttpError::Invalid("the host is not valid".to_owned()))?;
            request.headers_mut().insert(header::HOST, host);
        }
        Connection::Http2(_) => *request.version_mut() = Version::HTTP_2,
    }
    Ok(request)
}
