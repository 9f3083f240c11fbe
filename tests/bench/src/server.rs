//! A fast API server that has only pods. A cache's client sees what it sees of a real one.
//!
//! It speaks HTTP/1.1 without TLS or compression, and renders pods on demand: lists in pages or as a streaming list,
//! and one watch. Commands on its input change pods:
//!
//! ```text
//! modify N   sends N MODIFIED events; answers when they are rendered, before the first is sent
//! expire     creates one more pod without an event and ends the watch as expired, so that its client lists again
//! ```

use std::{
    convert::Infallible,
    env,
    io::{self, BufRead, Write},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Query, State},
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
    routing::get,
};
use futures::stream;
use serde::Deserialize;
use tokio::{
    net::TcpListener,
    runtime::{Handle, Runtime},
    sync::{RwLock, mpsc, watch},
};

use crate::objects::{Pod, scatter};

pub(crate) const NAME: &str = "server";
/// Environment variable with the number of pods at the start.
pub(crate) const OBJECTS: &str = "BENCH_SERVER_OBJECTS";

/// Size of a chunk, about a kernel's socket buffer.
const CHUNK: usize = 64 << 10;
/// Number of chunks that wait for a slow reader.
const CHUNKS: usize = 16;
const POLL: Duration = Duration::from_millis(5);

const RESOURCES: &str = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get","list","watch"]}]}"#;
const EXPIRED: &str = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}
"#;

/// Prints its address, then obeys commands on standard input until its end.
pub(crate) fn run() -> Result<()> {
    let objects: u64 = env::var(OBJECTS).ok().and_then(|text| text.parse().ok()).context("how many objects?")?;
    let runtime = Runtime::new().context("cannot start a runtime")?;
    let pods = Arc::new(Pods::new(objects));
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).context("cannot listen")?;
    let address = listener.local_addr().context("the listener has no address")?;
    let router = Router::new().route("/api/v1", get(resources)).route("/api/v1/pods", get(collection));
    let router = router.with_state(pods.clone());
    runtime.spawn(async move { axum::serve(listener, router).await });
    say(&format!("http://{address}"))?;
    for line in io::stdin().lock().lines() {
        command(runtime.handle(), &pods, &line.context("cannot read a command")?)?;
        say("done")?;
    }
    Ok(())
}

fn command(runtime: &Handle, pods: &Pods, line: &str) -> Result<()> {
    match line.split_once(' ').map_or((line, None), |(command, argument)| (command, argument.parse().ok())) {
        ("modify", Some(events)) => runtime.block_on(pods.modify(events)),
        ("expire", None) => runtime.block_on(pods.expire()),
        _ => bail!("not a command here: {line:?}"),
    }
    Ok(())
}

/// Answers the process that started this one.
pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("nobody listens")
}

/// Data for a watch.
#[derive(Clone)]
enum News {
    Nothing,
    /// Lines, in chunks.
    Events(Arc<[Bytes]>),
    Expired,
}

/// The cluster.
struct Pods {
    /// The version of each pod, by its number.
    versions: RwLock<Vec<u64>>,
    news: watch::Sender<News>,
}

impl Pods {
    fn new(objects: u64) -> Self {
        Self { versions: RwLock::new((1..=objects).collect()), news: watch::Sender::new(News::Nothing) }
    }

    /// Modifies pods in pseudorandom order, and sends the events to the watch.
    async fn modify(&self, events: u64) {
        let mut versions = self.versions.write().await;
        let first = newest(&versions) + 1;
        let (mut chunks, mut chunk) = (Vec::new(), String::new());
        for version in first..first + events {
            let number = scatter(version) % versions.len() as u64;
            versions[number as usize] = version;
            event(&mut chunk, "MODIFIED", number, version);
            if chunk.len() >= CHUNK || version + 1 == first + events {
                chunks.push(Bytes::from(std::mem::take(&mut chunk)));
            }
        }
        drop(versions);
        self.tell(News::Events(chunks.into())).await;
    }

    async fn expire(&self) {
        let mut versions = self.versions.write().await;
        let version = newest(&versions) + 1;
        versions.push(version);
        drop(versions);
        self.tell(News::Expired).await;
    }

    /// Waits for the watch: after its first list a client may not have opened it yet.
    async fn tell(&self, news: News) {
        while self.news.is_closed() {
            tokio::time::sleep(POLL).await;
        }
        self.news.send_replace(news);
    }

    /// Serves a watch until its client is gone or its version has expired. A streaming list comes first.
    async fn watch(&self, initial: bool, out: mpsc::Sender<Bytes>) -> Result<(), mpsc::error::SendError<Bytes>> {
        let mut news = self.news.subscribe();
        news.mark_unchanged();
        if initial {
            self.stream(&out).await?;
        }
        while news.changed().await.is_ok() {
            let now = news.borrow_and_update().clone();
            match now {
                News::Nothing => {}
                News::Events(chunks) => {
                    for chunk in chunks.iter() {
                        out.send(chunk.clone()).await?;
                    }
                }
                News::Expired => return out.send(Bytes::from_static(EXPIRED.as_bytes())).await,
            }
        }
        Ok(())
    }

    async fn stream(&self, out: &mpsc::Sender<Bytes>) -> Result<(), mpsc::error::SendError<Bytes>> {
        let versions = self.versions.read().await;
        let mut chunk = String::new();
        for (number, version) in (0..).zip(versions.iter()) {
            event(&mut chunk, "ADDED", number, *version);
            if chunk.len() >= CHUNK {
                out.send(std::mem::take(&mut chunk).into()).await?;
            }
        }
        let version = newest(&versions);
        chunk.push_str(&format!(
            r#"{{"type":"BOOKMARK","object":{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}},"spec":{{"containers":null}},"status":{{}}}}}}"#
        ));
        chunk.push('\n');
        out.send(chunk.into()).await
    }

    async fn page(&self, begin: usize, limit: usize) -> String {
        let versions = self.versions.read().await;
        let end = if limit == 0 { versions.len() } else { versions.len().min(begin + limit) };
        let more = versions.len() - end;
        let more = if more > 0 { format!(r#","continue":"{end}","remainingItemCount":{more}"#) } else { String::new() };
        let version = newest(&versions);
        let mut body = format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"{more}}},"items":["#
        );
        for (number, version) in (0..).zip(versions.iter()).take(end).skip(begin) {
            Pod::of(number).write(&mut body, *version, false);
            body.push(',');
        }
        body.truncate(body.trim_end_matches(',').len());
        body.push_str("]}");
        body
    }
}

fn newest(versions: &[u64]) -> u64 {
    versions.iter().copied().max().unwrap_or(0)
}

fn event(out: &mut String, r#type: &str, number: u64, version: u64) {
    crate::lines::watch_line(out, r#type, &Pod::of(number), version);
    out.push('\n');
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    watch: Option<String>,
    send_initial_events: Option<bool>,
    limit: Option<usize>,
    r#continue: Option<usize>,
}

async fn resources() -> Response {
    ([(CONTENT_TYPE, "application/json")], RESOURCES).into_response()
}

async fn collection(State(pods): State<Arc<Pods>>, Query(asked): Query<Asked>) -> Response {
    let head = [(CONTENT_TYPE, "application/json")];
    if asked.watch.is_none_or(|watch| watch == "false" || watch == "0") {
        return (head, pods.page(asked.r#continue.unwrap_or(0), asked.limit.unwrap_or(0)).await).into_response();
    }
    let (out, chunks) = mpsc::channel(CHUNKS);
    tokio::spawn(async move { pods.watch(asked.send_initial_events == Some(true), out).await });
    let chunks = stream::unfold(chunks, |mut chunks| async move {
        let chunk = chunks.recv().await?;
        Some((Ok::<_, Infallible>(chunk), chunks))
    });
    (head, Body::from_stream(chunks)).into_response()
}
