//! The HTTP server: `/healthz`, `/readyz`, `/metrics`, `/debug/informers`, `/debug/plugins`, `/debug/webhooks`,
//! and an index.
//!
//! - `/healthz` answers as long as the process serves at all.
//! - `/readyz` is 200 or 503, with a line for each check of the host in kube-apiserver's form. With `verbose` in the
//!   query it also lists plugins and informers, which do not change the code.
//! - `/readyz/plugins/NAME` is the same for one plugin.
//!
//! All but `/healthz` and `/metrics` answer with JSON if the query says `format=json` or the request accepts
//! `application/json`.

use std::{fmt::Write as _, future::Future, io, sync::Arc, thread};

use axum::{
    Json, Router,
    extract::{self, Query, Request},
    middleware::{self, Next},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderMap, StatusCode, header};
use pilothouse_apiserver::browser;
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, sync::oneshot, task::spawn_blocking};

use super::{
    Check, Control, Inspect, Readiness, Release,
    connections::{self, Limits},
    table,
};
use crate::{
    metrics::{Registry, encode},
    prompt::be_prompt,
};

/// Threads that collect answers. They may wait for locks of the host. Requests beyond them wait.
const COLLECTORS: usize = 4;

/// The content type of what `prometheus-client` writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const INDEX: &str = "<!doctype html>
<title>pilothouse</title>
<h1>pilothouse</h1>
<ul>
<li><a href=\"/healthz\">/healthz</a>: whether the process serves
<li><a href=\"/readyz\">/readyz</a>: whether the host is ready (<a href=\"/readyz?verbose\">with plugins and informers</a>,
<a href=\"/readyz?verbose&amp;format=json\">as JSON</a>); /readyz/plugins/NAME is one plugin's
<li><a href=\"/metrics\">/metrics</a>: for Prometheus
<li><a href=\"/debug/informers\">/debug/informers</a>: what is cached, and for whom (<a href=\"/debug/informers?format=json\">as JSON</a>)
<li><a href=\"/debug/plugins\">/debug/plugins</a>: how the plugins are, and why (<a href=\"/debug/plugins?format=json\">as JSON</a>);
/debug/plugins?plugin=NAME is all that is known of one; POST /debug/plugins/NAME/release ends a quarantine
<li><a href=\"/debug/webhooks\">/debug/webhooks</a>: which webhooks are in force, and what they answered
(<a href=\"/debug/webhooks?format=json\">as JSON</a>)
</ul>
";

/// What the server shows.
#[derive(Clone)]
pub struct State {
    /// For `/metrics`.
    pub registry: Arc<Registry>,
    /// For `/readyz`.
    pub readiness: Arc<dyn Readiness>,
    /// For `/debug/…`.
    pub inspect: Arc<dyn Inspect>,
    /// For what can be done by POST.
    pub control: Arc<dyn Control>,
}

/// Serves on a thread of its own until `shutdown`. The receiver gets the result of [`serve`], or an error if the thread
/// panicked.
///
/// No plugin, no request to the API server and no lock of the host delays `/healthz`. It is answered on this thread,
/// and everything else on others.
///
/// # Errors
/// If the thread or its runtime cannot be started.
pub fn start(
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
    state: State,
) -> io::Result<oneshot::Receiver<io::Result<()>>> {
    let listener = listener.into_std()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(COLLECTORS)
        .thread_name("admin")
        .build()?;
    let (ended, end) = oneshot::channel();
    thread::Builder::new().name("admin".to_owned()).spawn(move || {
        be_prompt();
        let served = runtime.block_on(async { serve(TcpListener::from_std(listener)?, shutdown, state).await });
        // Does not wait for a collector that waits for a lock.
        runtime.shutdown_background();
        // The receiver is dropped when the whole host ends.
        let _ = ended.send(served);
    })?;
    Ok(end)
}

/// Serves until `shutdown`. Requests in flight have a second to finish.
///
/// # Errors
/// If the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
    state: State,
) -> io::Result<()> {
    connections::serve(listener, shutdown, router(state), Limits::DEFAULT).await
}

/// Runs `collect` on a thread that may wait for locks of the host.
async fn collect<T: Send + 'static>(collect: impl FnOnce() -> T + Send + 'static) -> Result<T, Response> {
    spawn_blocking(collect).await.map_err(|_| {
        (StatusCode::INTERNAL_SERVER_ERROR, "the host failed to collect this; its log says why\n").into_response()
    })
}

fn router(state: State) -> Router {
    Router::new()
        .route("/", get(|| async { Html(INDEX) }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/readyz/plugins/{plugin}", get(plugin_readyz))
        .route("/metrics", get(metrics))
        .route("/debug/informers", get(informers))
        .route("/debug/plugins", get(plugins))
        .route("/debug/plugins/{plugin}/release", post(release))
        .route("/debug/webhooks", get(webhooks))
        .layer(middleware::from_fn(refuse_web_pages))
        .with_state(state)
}

/// Rejects requests that a page of another site made a browser send: the port asks for no credentials.
async fn refuse_web_pages(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match browser::refusal(&head) {
        Some(why) => (StatusCode::FORBIDDEN, format!("{why}\n")).into_response(),
        None => next.run(Request::from_parts(head, body)).await,
    }
}

async fn metrics(extract::State(state): extract::State<State>) -> Result<Response, Response> {
    let text = collect(move || encode(&state.registry)).await?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}

async fn informers(
    extract::State(state): extract::State<State>,
    Query(query): Query<FormatQuery>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let rows = collect(move || state.inspect.informers()).await?;
    Ok(if query.format == "json" || accepts_json(&headers) {
        Json(rows).into_response()
    } else {
        table::informers(&rows).into_response()
    })
}

async fn plugins(
    extract::State(state): extract::State<State>,
    Query(query): Query<PluginsQuery>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let mut rows = collect(move || state.inspect.plugins()).await?;
    if let Some(wanted) = &query.plugin {
        let Some(row) = rows.iter().position(|row| row.plugin == *wanted) else {
            let known: Vec<_> = rows.into_iter().map(|row| row.plugin).collect();
            return Ok((StatusCode::NOT_FOUND, unknown("there is no plugin of that name", &known)).into_response());
        };
        rows = vec![rows.swap_remove(row)];
    }
    Ok(if query.format == "json" || accepts_json(&headers) {
        Json(rows).into_response()
    } else {
        table::plugins(&rows, query.plugin.is_some()).into_response()
    })
}

async fn webhooks(
    extract::State(state): extract::State<State>,
    Query(query): Query<FormatQuery>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let rows = collect(move || state.inspect.webhooks()).await?;
    Ok(if query.format == "json" || accepts_json(&headers) {
        Json(rows).into_response()
    } else {
        table::webhooks(&rows).into_response()
    })
}

/// Returns what is wrong, and the names that would do.
fn unknown(what: &str, known: &[String]) -> String {
    let known = if known.is_empty() { "none is".to_owned() } else { format!("these are: {}", known.join(", ")) };
    format!("{what}; {known}\n")
}

async fn release(
    extract::State(state): extract::State<State>,
    extract::Path(plugin): extract::Path<String>,
) -> Result<Response, Response> {
    let (control, name) = (state.control, plugin.clone());
    Ok(match collect(move || control.release(&name)).await? {
        Release::Released => format!("plugin {plugin} is released: its keys are handed out again\n").into_response(),
        Release::Free => format!("plugin {plugin} is not quarantined: there is nothing to release\n").into_response(),
        Release::Unknown(known) => {
            (StatusCode::NOT_FOUND, unknown("no plugin of that name is at work", &known)).into_response()
        }
    })
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
    /// Shows all that is known of this plugin. Without it, shows what is wrong with which.
    plugin: Option<String>,
}

#[derive(Deserialize)]
struct ReadyzQuery {
    #[serde(default)]
    format: String,
    /// Lists plugins and informers, too.
    verbose: Option<String>,
}

#[derive(Serialize)]
struct Report {
    ready: bool,
    checks: Vec<Check>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parts: Option<Vec<Check>>,
}

impl Report {
    fn code(&self) -> StatusCode {
        if self.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    }
}

async fn readyz(
    extract::State(state): extract::State<State>,
    Query(query): Query<ReadyzQuery>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let (readiness, verbose) = (state.readiness, query.verbose.is_some());
    let (checks, parts) = collect(move || (readiness.host(), verbose.then(|| readiness.parts()))).await?;
    let ready = checks.iter().all(|check| check.ok);
    let report = Report { ready, checks, parts };
    Ok(if query.format == "json" || accepts_json(&headers) {
        (report.code(), Json(report)).into_response()
    } else {
        (report.code(), text(&report)).into_response()
    })
}

async fn plugin_readyz(
    extract::State(state): extract::State<State>,
    extract::Path(plugin): extract::Path<String>,
    Query(query): Query<FormatQuery>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let Some(check) = collect(move || state.readiness.plugin(&plugin)).await? else {
        let message = "no plugin has that name; /readyz?verbose lists all\n";
        return Ok((StatusCode::NOT_FOUND, message).into_response());
    };
    let report = Report { ready: check.ok, checks: vec![check], parts: None };
    Ok(if query.format == "json" || accepts_json(&headers) {
        (report.code(), Json(report)).into_response()
    } else {
        (report.code(), text(&report)).into_response()
    })
}

/// Returns `true` if the request names JSON. `*/*`, which every client sends, does not.
fn accepts_json(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|range| range.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json")))
}

/// Returns the report in the form of kube-apiserver.
fn text(Report { ready, checks, parts }: &Report) -> String {
    let mut text = lines(checks);
    text.push_str(if *ready { "readyz check passed\n" } else { "readyz check failed\n" });
    if let Some(parts) = parts.as_ref().filter(|parts| !parts.is_empty()) {
        text.push_str("\nWhat follows concerns single plugins, and not whether the host is ready:\n");
        text.push_str(&lines(parts));
    }
    text
}

/// Returns a line for each check. Further lines of a detail are indented.
fn lines(checks: &[Check]) -> String {
    let mut text = String::new();
    for Check { name, ok, detail } in checks {
        let (mark, word) = if *ok { ("[+]", "ok") } else { ("[-]", "failed") };
        let detail = detail.trim().lines().map(table::printable).collect::<Vec<_>>().join("\n    ");
        let colon = if detail.is_empty() { "" } else { ": " };
        writeln!(text, "{mark}{name} {word}{colon}{detail}").expect("a string takes everything");
    }
    text
}
