//! The HTTP server: `/healthz`, `/readyz`, `/metrics`, `/debug/informers`, `/debug/plugins`, and an index.
//!
//! `/healthz` answers as long as the process serves at all. `/readyz` is 200 or 503, with a line for each check in
//! kube-apiserver's form, or as JSON where the query says `format=json` or the request accepts `application/json`.

use std::{fmt::Write as _, future::Future, io, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{self, Query},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Check, Control, Inspect, Metrics, Readiness, Release, debug, plugins};

/// How long requests in flight may take after the shutdown: all are answered from memory, so only a client that reads slowly
/// or sends half a request takes longer.
const DRAIN: Duration = Duration::from_secs(1);

/// The format that `prometheus-client` writes, as Prometheus asks for it.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const INDEX: &str = "<!doctype html>
<title>pilothouse</title>
<h1>pilothouse</h1>
<ul>
<li><a href=\"/healthz\">/healthz</a>: whether the process serves
<li><a href=\"/readyz\">/readyz</a>: what is ready and what is not (<a href=\"/readyz?format=json\">as JSON</a>)
<li><a href=\"/metrics\">/metrics</a>: for Prometheus
<li><a href=\"/debug/informers\">/debug/informers</a>: what is cached, and for whom (<a href=\"/debug/informers?format=json\">as JSON</a>)
<li><a href=\"/debug/plugins\">/debug/plugins</a>: how the plugins are, and why (<a href=\"/debug/plugins?format=json\">as JSON</a>);
/debug/plugins?plugin=NAME is all that is known of one; POST /debug/plugins/NAME/release ends a quarantine
</ul>
";

/// What the server tells about.
#[derive(Clone)]
pub struct State {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/readyz`.
    pub readiness: Arc<dyn Readiness>,
    /// For `/debug/…`.
    pub inspect: Arc<dyn Inspect>,
    /// For what can be done by POST.
    pub control: Arc<dyn Control>,
}

/// Serves until `shutdown`, then finishes the requests that are being answered (within a second).
///
/// # Errors
/// If the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
    state: State,
) -> io::Result<()> {
    let draining = CancellationToken::new();
    let drained = {
        let draining = draining.clone();
        async move {
            draining.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        }
    };
    let served = axum::serve(listener, router(state)).with_graceful_shutdown(async move {
        shutdown.await;
        draining.cancel();
    });
    tokio::select! {
        served = served.into_future() => served,
        () = drained => Ok(()),
    }
}

fn router(state: State) -> Router {
    Router::new()
        .route("/", get(|| async { Html(INDEX) }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/debug/informers", get(informers))
        .route("/debug/plugins", get(plugins))
        .route("/debug/plugins/{plugin}/release", post(release))
        .with_state(state)
}

async fn metrics(extract::State(state): extract::State<State>) -> Response {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], state.metrics.encode()).into_response()
}

async fn informers(
    extract::State(state): extract::State<State>,
    Query(query): Query<FormatQuery>,
    headers: HeaderMap,
) -> Response {
    let rows = state.inspect.informers();
    if query.format == "json" || accepts_json(&headers) {
        Json(rows).into_response()
    } else {
        debug::table(&rows).into_response()
    }
}

async fn plugins(
    extract::State(state): extract::State<State>,
    Query(query): Query<PluginsQuery>,
    headers: HeaderMap,
) -> Response {
    let mut rows = state.inspect.plugins();
    if let Some(wanted) = &query.plugin {
        let Some(row) = rows.iter().position(|row| row.plugin == *wanted) else {
            let known: Vec<_> = rows.into_iter().map(|row| row.plugin).collect();
            return (StatusCode::NOT_FOUND, unknown("there is no plugin of that name", &known)).into_response();
        };
        rows = vec![rows.swap_remove(row)];
    }
    if query.format == "json" || accepts_json(&headers) {
        Json(rows).into_response()
    } else {
        plugins::table(&rows, query.plugin.is_some()).into_response()
    }
}

/// What is wrong, and what would do.
fn unknown(what: &str, known: &[String]) -> String {
    let known = if known.is_empty() { "none is".to_owned() } else { format!("these are: {}", known.join(", ")) };
    format!("{what}; {known}\n")
}

async fn release(
    extract::State(state): extract::State<State>,
    extract::Path(plugin): extract::Path<String>,
) -> Response {
    match state.control.release(&plugin) {
        Release::Released => format!("plugin {plugin} is released: its keys are handed out again\n").into_response(),
        Release::Free => format!("plugin {plugin} is not quarantined: there is nothing to release\n").into_response(),
        Release::Unknown(known) => {
            (StatusCode::NOT_FOUND, unknown("no plugin of that name is at work", &known)).into_response()
        }
    }
}

#[derive(Deserialize)]
struct FormatQuery {
    #[serde(default)]
    format: String,
}

#[derive(Deserialize)]
struct PluginsQuery {
    #[serde(default)]
    format: String,
    /// All that is known of this one; none: what is wrong with which.
    plugin: Option<String>,
}

#[derive(Serialize)]
struct Report {
    ready: bool,
    checks: Vec<Check>,
}

async fn readyz(
    extract::State(state): extract::State<State>,
    Query(query): Query<FormatQuery>,
    headers: HeaderMap,
) -> Response {
    let checks = state.readiness.report();
    let ready = checks.iter().all(|check| check.ok);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if query.format == "json" || accepts_json(&headers) {
        (status, Json(Report { ready, checks })).into_response()
    } else {
        (status, lines(&checks, ready)).into_response()
    }
}

/// Only where JSON is named: `*/*`, which every client sends, gets the text.
fn accepts_json(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|range| range.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json")))
}

/// As kube-apiserver writes it. A detail's further lines are indented, so that each check still begins a line.
fn lines(checks: &[Check], ready: bool) -> String {
    let mut text = String::new();
    for Check { name, ok, detail } in checks {
        let (mark, word) = if *ok { ("[+]", "ok") } else { ("[-]", "failed") };
        let detail = detail.trim().lines().map(debug::printable).collect::<Vec<_>>().join("\n    ");
        let colon = if detail.is_empty() { "" } else { ": " };
        writeln!(text, "{mark}{name} {word}{colon}{detail}").expect("a string takes everything");
    }
    text.push_str(if ready { "readyz check passed\n" } else { "readyz check failed\n" });
    text
}
