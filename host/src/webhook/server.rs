//! The HTTPS server that the API server calls.
//!
//! | path | body | answer |
//! |---|---|---|
//! | `/admission/PLUGIN/WEBHOOK` | `AdmissionReview` | `AdmissionReview` |
//! | `/conversion/PLUGIN` | `ConversionReview` | `ConversionReview` |
//!
//! Every other answer than 200 makes the API server apply the webhook's failure policy.
//!
//! A plugin that is not active yet is waited for. One that the administrator removed or disabled has no say, so its
//! reviews allow everything until its configuration is gone.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{
    Parts,
    metrics::Counters,
    review::{Asked, Conversion, Invalid, allowed},
};
use crate::{
    connections::{self, Activity, Bounds},
    dispatch::{Dispatch, ReviewError, Reviewing},
    name::PluginName,
    plugin::{State, Statuses},
    tls::{Acceptor, HANDSHAKE, Serving},
};

/// The server's name in the log.
const SERVER: &str = "webhooks";

/// Connections at once. Each API server opens one or two for each webhook.
const CONNECTIONS: usize = 128;

/// Requests in flight on one connection.
const STREAMS: u32 = 250;

/// Time for a request's head, and for its body.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// Bytes of a request's head.
const HEAD: usize = 16 << 10;

/// Bytes of an `AdmissionReview`: two objects of the largest size, and more, as in controller-runtime.
const MAX_REVIEW: usize = 7 << 20;

/// Bytes of a `ConversionReview`. The API server converts the objects of a list at once.
const MAX_CONVERSION: usize = 32 << 20;

/// MiB of all bodies that are read or answered at once. Further requests wait.
const BODIES: u32 = 128;

/// Time after which an idle client is asked whether it is there, and then for its answer.
const PING: Duration = Duration::from_secs(30);

/// Time that requests in flight have after the shutdown: as long as the API server waits for one.
const DRAIN: Duration = Duration::from_secs(30);

/// Time that the API server waits, if it does not say so: its own default.
const DEFAULT_WAIT: Duration = Duration::from_secs(10);

type Answer = Response<Full<Bytes>>;

/// Serves until `stop`.
pub(super) async fn serve(
    listener: TcpListener,
    stop: CancellationToken,
    serving: Arc<Serving>,
    answering: Arc<Answering>,
) -> io::Result<()> {
    info!(address = %listener.local_addr()?, "serving webhooks");
    let acceptor = Acceptor::new(SERVER, serving, &[b"h2", b"http/1.1"], HANDSHAKE)?;
    let bounds = Bounds { server: SERVER, connections: CONNECTIONS, drain: DRAIN, says_goodbye: true };
    let connection = |stream, activity| connection(acceptor.clone(), stream, stop.clone(), activity, answering.clone());
    connections::serve(listener, stop.clone().cancelled_owned(), bounds, connection).await
}

async fn connection(
    acceptor: Acceptor,
    stream: TcpStream,
    stop: CancellationToken,
    activity: Activity,
    answering: Arc<Answering>,
) {
    // A review is small and urgent.
    let _slower = stream.set_nodelay(true);
    let Some(stream) = acceptor.accept(stream).await else { return };
    let service = service_fn(move |request| {
        let (in_flight, answering) = (activity.begin(), answering.clone());
        async move {
            let answer = answering.answer(request).await;
            drop(in_flight);
            Ok::<_, Infallible>(answer)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD as u32);
    let served = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        debug!(error, "a connection to the server of webhooks failed");
    }
}

/// What answers requests.
pub(super) struct Answering {
    dispatch: Arc<Dispatch>,
    statuses: Statuses,
    counters: Arc<Counters>,
    bodies: Semaphore,
}

/// Why a request has no answer.
struct Failed(StatusCode, String);

impl From<Invalid> for Failed {
    fn from(invalid: Invalid) -> Self {
        Self(StatusCode::BAD_REQUEST, invalid.0)
    }
}

impl From<ReviewError> for Failed {
    fn from(error: ReviewError) -> Self {
        let code = match &error {
            ReviewError::Busy => StatusCode::TOO_MANY_REQUESTS,
            ReviewError::Stopped | ReviewError::NotSynced(_) | ReviewError::Late => StatusCode::SERVICE_UNAVAILABLE,
            ReviewError::NotGranted => StatusCode::NOT_FOUND,
            ReviewError::Refused(_) | ReviewError::Call(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(code, error.to_string())
    }
}

/// What is known of a plugin.
enum Found {
    Active(Arc<Reviewing>),
    /// The administrator removed or disabled it.
    Withdrawn,
}

impl Answering {
    pub(super) fn new(parts: &Parts) -> Self {
        Self {
            dispatch: parts.dispatch.clone(),
            statuses: parts.statuses.clone(),
            counters: parts.board.counters.clone(),
            bodies: Semaphore::new(usize::try_from(BODIES).unwrap_or(usize::MAX)),
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let arrived = Instant::now();
        let mut counted = self.counters.request(request.uri().path());
        let answer = match self.route(request, arrived).await {
            Ok(value) => {
                if let Some(counted) = &mut counted {
                    counted.answered(&value);
                }
                let body = Full::from(value.to_string());
                Response::builder().header(header::CONTENT_TYPE, "application/json").body(body)
            }
            Err(Failed(code, why)) => {
                debug!(code = code.as_u16(), why, "a webhook has no answer");
                if let Some(counted) = &mut counted {
                    counted.failed(code.as_u16(), &why);
                }
                Response::builder().status(code).body(Full::from(format!("{why}\n")))
            }
        };
        answer.unwrap_or_default()
    }

    async fn route(&self, request: Request<Incoming>, arrived: Instant) -> Result<Value, Failed> {
        let path = request.uri().path().to_owned();
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let unknown = || Failed(StatusCode::NOT_FOUND, "there is no webhook at this path".to_owned());
        let name = |text: &str| PluginName::new(text).map_err(|_| unknown());
        if request.method() != http::Method::POST {
            return Err(Failed(StatusCode::METHOD_NOT_ALLOWED, "a review comes by POST".to_owned()));
        }
        let deadline = arrived + wait_of(request.uri().query());
        match *parts {
            ["admission", plugin, webhook] => {
                let plugin = name(plugin)?;
                let body = self.body(request, MAX_REVIEW).await?;
                match self.find(&plugin, deadline).await? {
                    Found::Active(reviewing) => review(&reviewing, webhook, &body, arrived).await,
                    Found::Withdrawn => Ok(allowed(&body)?),
                }
            }
            ["conversion", plugin] => {
                let plugin = name(plugin)?;
                let body = self.body(request, MAX_CONVERSION).await?;
                match self.find(&plugin, deadline).await? {
                    Found::Active(reviewing) => convert(&reviewing, &body, arrived).await,
                    Found::Withdrawn => {
                        Err(Failed(StatusCode::NOT_FOUND, format!("the plugin {plugin} is removed or disabled")))
                    }
                }
            }
            _ => Err(unknown()),
        }
    }

    /// Reads a body.
    async fn body(&self, request: Request<Incoming>, most: usize) -> Result<Bytes, Failed> {
        let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let too_large = || Failed(StatusCode::PAYLOAD_TOO_LARGE, format!("a review has at most {most} bytes"));
        let length: usize = length.unwrap_or(most);
        if length > most {
            return Err(too_large());
        }
        let mib = u32::try_from(length >> 20).unwrap_or(BODIES) + 1;
        let read = async {
            let permit = self.bodies.acquire_many(mib.min(BODIES)).await;
            let body = Limited::new(request.into_body(), most).collect().await.map_err(|_| too_large())?.to_bytes();
            drop(permit);
            Ok(body)
        };
        let late = || Failed(StatusCode::REQUEST_TIMEOUT, "the body took too long".to_owned());
        tokio::time::timeout(HEAD_WITHIN, read).await.unwrap_or_else(|_| Err(late()))
    }

    /// Finds a plugin. Waits until it is active, or is known to be withdrawn.
    async fn find(&self, plugin: &PluginName, deadline: Instant) -> Result<Found, Failed> {
        let mut changes = self.dispatch.reviewing_changes();
        loop {
            changes.mark_unchanged();
            // In this order: it may become active in between.
            let is_withdrawn = is_withdrawn(&self.statuses, plugin);
            if let Some(reviewing) = self.dispatch.reviewing_of(plugin) {
                return Ok(Found::Active(reviewing));
            }
            if is_withdrawn {
                return Ok(Found::Withdrawn);
            }
            // `changes` announces a plugin that becomes active. It does not announce one that is withdrawn.
            let again = deadline.min(Instant::now() + Duration::from_millis(200));
            let _announced = tokio::time::timeout_at(again, changes.changed()).await;
            if Instant::now() >= deadline {
                let why = format!("the plugin {plugin} does not serve yet");
                return Err(Failed(StatusCode::SERVICE_UNAVAILABLE, why));
            }
        }
    }
}

/// `true` if the administrator removed or disabled the plugin, or it serves. Then it has no webhooks, unless dispatch
/// knows some.
pub(super) fn is_withdrawn(statuses: &Statuses, plugin: &PluginName) -> bool {
    match statuses.get(plugin) {
        Some(status) => matches!(status.state, State::Gone | State::Disabled | State::Active),
        // Before the first look at the directory, nothing is known of it.
        None => statuses.snapshot().unsettled.is_some_and(|unsettled| !unsettled.contains(plugin)),
    }
}

async fn review(reviewing: &Reviewing, webhook: &str, body: &[u8], arrived: Instant) -> Result<Value, Failed> {
    let asked = Asked::read(body, webhook)?;
    match reviewing.review(asked.review.clone(), arrived).await {
        Ok((decision, changed)) => {
            let answer = asked.answer(decision, changed.as_deref());
            answer.map_err(|Invalid(why)| Failed(StatusCode::INTERNAL_SERVER_ERROR, why))
        }
        // The administrator does not grant it any more, so it has no say.
        Err(ReviewError::NotGranted) => Ok(allowed(body)?),
        Err(error) => Err(error.into()),
    }
}

async fn convert(reviewing: &Reviewing, body: &[u8], arrived: Instant) -> Result<Value, Failed> {
    let conversion = Conversion::read(body)?;
    let converted = reviewing.convert(conversion.api_version.clone(), conversion.texts(), arrived).await;
    // The API server shows the text of a failure, and no more than the code of another answer.
    Ok(conversion.answer(converted.map_err(|error| match error {
        ReviewError::Refused(message) => message,
        error => error.to_string(),
    })))
}

/// Returns how long the API server waits: `timeout=10s` in the query.
fn wait_of(query: Option<&str>) -> Duration {
    let timeout = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("timeout="));
    let seconds = timeout.and_then(|text| text.strip_suffix('s')?.parse().ok());
    seconds.map_or(DEFAULT_WAIT, Duration::from_secs).min(pilothouse_core::manifest::MAX_REVIEW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_server_says_how_long_it_waits() {
        let seconds = |query| wait_of(query).as_secs();
        assert_eq!(
            [seconds(Some("timeout=5s")), seconds(None), seconds(Some("timeout=1m")), seconds(Some("timeout=90s"))],
            [5, 10, 10, 30]
        );
    }
}
