//! What each path answers.
//!
//! All but `/healthz`, `/livez`, `/metrics` and the probes answer with JSON if the query says `format=json` or the
//! request accepts `application/json`.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    Json,
    extract::{self, Query},
    response::{Html, IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::{Check, Control, Inspect, Readiness, Release, table};
use crate::metrics::{Registry, encode};

/// The content type of what `prometheus-client` writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the servers show.
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

const INDEX: &str = "<!doctype html>
<title>pilothouse</title>
<h1>pilothouse</h1>
<ul>
<li><a href=\"/healthz\">/healthz</a>, <a href=\"/livez\">/livez</a>: whether the process serves
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

pub(super) async fn index() -> Html<&'static str> {
    Html(INDEX)
}

/// Says that the process serves at all.
pub(super) async fn alive() -> &'static str {
    "ok\n"
}

/// Says whether the host is ready, to whoever asks: the names of failing checks, and no reasons.
pub(super) async fn probe_readyz(extract::State(state): extract::State<State>) -> Result<Response, Response> {
    let checks = collect(move || state.readiness.host()).await?;
    let failed: Vec<_> = checks.iter().filter(|check| !check.ok).collect();
    if failed.is_empty() {
        return Ok("ok\n".into_response());
    }
    let mut text = String::new();
    for Check { name, .. } in failed {
        writeln!(text, "[-]{name} failed: reason withheld").expect("a string takes everything");
    }
    text.push_str("readyz check failed\n");
    Ok((StatusCode::SERVICE_UNAVAILABLE, text).into_response())
}

/// Runs `collect` on a thread that may wait for locks of the host.
async fn collect<T: Send + 'static>(collect: impl FnOnce() -> T + Send + 'static) -> Result<T, Response> {
    spawn_blocking(collect).await.map_err(|_| {
        (StatusCode::INTERNAL_SERVER_ERROR, "the host failed to collect this; its log says why\n").into_response()
    })
}

pub(super) async fn metrics(extract::State(state): extract::State<State>) -> Result<Response, Response> {
    let text = collect(move || encode(&state.registry)).await?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}

pub(super) async fn informers(
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

pub(super) async fn plugins(
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

pub(super) async fn webhooks(
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

pub(super) async fn release(
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
pub(super) struct FormatQuery {
    #[serde(default)]
    format: String,
}

#[derive(Deserialize)]
pub(super) struct PluginsQuery {
    #[serde(default)]
    format: String,
    /// Shows all that is known of this plugin. Without it, shows what is wrong with which.
    plugin: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ReadyzQuery {
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

pub(super) async fn readyz(
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

pub(super) async fn plugin_readyz(
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
