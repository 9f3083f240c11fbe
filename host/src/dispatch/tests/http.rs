//! Requests to other servers: none begins while this process may not act, without a grant, or for a plugin that is
//! removed.

use std::net::Ipv4Addr;

use arc_swap::ArcSwap;
use pilothouse_core::{
    http::{Pattern, Url},
    manifest::{HttpPermission, Manifest},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;
use crate::{
    dispatch::imports::{Access, CallImports},
    wasm::{HttpError, HttpImports as _, HttpRequest, HttpResponse},
};

/// A server on loopback. It answers one request of each connection, when the test says so.
struct FarEnd {
    port: u16,
    requests: mpsc::UnboundedReceiver<()>,
    answers: mpsc::UnboundedSender<String>,
}

impl FarEnd {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let ((arrived, requests), (answers, mut answer)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let read = stream.read_buf(&mut head).await.expect("a request arrives");
                    assert!(read > 0, "the connection ends without a request");
                }
                let _ended = arrived.send(());
                let Some(answer) = answer.recv().await else { return };
                let answer: String = answer;
                stream.write_all(answer.as_bytes()).await.expect("the answer is read");
            }
        });
        Self { port, requests, answers }
    }

    fn request(&self, redirects: u8) -> HttpRequest {
        HttpRequest {
            method: "GET".to_owned(),
            url: Url::parse(&format!("http://127.0.0.1:{}/", self.port)).expect("a URL"),
            headers: Vec::new(),
            body: Vec::new(),
            timeout: Duration::from_secs(60),
            redirects,
        }
    }

    async fn got_a_request(&mut self) {
        soon("a request", self.requests.recv()).await.expect("the server runs");
    }

    fn got_none(&mut self) -> bool {
        self.requests.try_recv().is_err()
    }

    fn answers(&self, status: &str, header: &str) {
        let answer = format!("HTTP/1.1 {status}\r\n{header}content-length: 0\r\nconnection: close\r\n\r\n");
        self.answers.send(answer).expect("the server runs");
    }

    fn redirects(&self) {
        self.answers("307 Temporary Redirect", &format!("location: http://127.0.0.1:{}/again\r\n", self.port));
    }
}

impl Scene {
    /// The access of the active plugin, with a grant of requests to this server.
    fn reaching(&self, far: &FarEnd) -> Arc<Access> {
        let serving = self.controller().serving();
        let mut manifest = Manifest::clone(serving.revision.manifest());
        let host = Pattern::parse("127.0.0.1").expect("a host");
        manifest.http = vec![HttpPermission { host, port: far.port, plain: true, methods: ["GET".to_owned()].into() }];
        let grants = Grants::all_asked(&manifest.permissions).with_http(&manifest.http, &[]);
        let client = Arc::new(self.dispatch.parts.outbound.client(self.controller().plugin()));
        let record = self.dispatch.records().remove(0);
        Arc::new(Access::new(
            serving.view.clone(),
            serving.access.writer.clone(),
            (client, References::default()),
            Arc::new(ArcSwap::from_pointee(grants)),
            &manifest,
            record,
            None,
        ))
    }
}

/// Sends a request in a task of its own.
fn sent(access: &Arc<Access>, request: HttpRequest) -> tokio::task::JoinHandle<Result<HttpResponse, HttpError>> {
    let imports = CallImports::new(access.clone());
    tokio::spawn(async move { imports.send(request).await })
}

/// Returns the status of the response, or what is wrong.
async fn ended(sent: tokio::task::JoinHandle<Result<HttpResponse, HttpError>>) -> Result<u16, String> {
    match soon("the request ends", sent).await.expect("it does not panic") {
        Ok(response) => Ok(response.status),
        Err(HttpError::NotGranted(why)) => Err(format!("not granted: {why}")),
        Err(HttpError::Unreachable(why)) => Err(format!("unreachable: {why}")),
        Err(other) => Err(format!("{other:?}")),
    }
}

fn is_not_granted(ended: Result<u16, String>) -> bool {
    ended.is_err_and(|why| why.starts_with("not granted: "))
}

async fn active() -> (Scene, FarEnd, Arc<Access>) {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new()).await;
    let far = FarEnd::start().await;
    let access = scene.reaching(&far);
    (scene, far, access)
}

#[tokio::test]
async fn no_request_to_another_server_begins_while_this_process_may_not_act() {
    let (scene, mut far, access) = active().await;
    let acting = scene.dispatch.parts.acting.host().clone();
    let refused = Err("unreachable: not sent: this process may not act now".to_owned());
    acting.set(false);
    assert_eq!(ended(sent(&access, far.request(0))).await, refused);
    assert!(far.got_none());
    acting.set(true);
    let first = sent(&access, far.request(0));
    far.got_a_request().await;
    // What is under way ends, so that its outcome is known.
    acting.set(false);
    far.answers("200 OK", "");
    assert_eq!(ended(first).await, Ok(200));
    acting.set(true);
    let redirected = sent(&access, far.request(3));
    far.got_a_request().await;
    acting.set(false);
    far.redirects();
    assert_eq!(ended(redirected).await, refused);
    assert!(far.got_none());
}

#[tokio::test]
async fn invariant_7_a_grant_that_is_withdrawn_counts_from_the_next_request_or_redirect_on() {
    let (_scene, mut far, access) = active().await;
    let plain = sent(&access, far.request(0));
    far.got_a_request().await;
    access.allow(&Grants::new(&[], &[]));
    far.answers("200 OK", "");
    assert_eq!(ended(plain).await, Ok(200));
    assert!(is_not_granted(ended(sent(&access, far.request(0))).await));
    assert!(far.got_none());

    access.allow(&Grants::all_asked(&[]));
    let redirected = sent(&access, far.request(3));
    far.got_a_request().await;
    access.allow(&Grants::new(&[], &[]));
    far.redirects();
    assert!(is_not_granted(ended(redirected).await));
    assert!(far.got_none());
}

#[tokio::test]
async fn a_plugin_that_was_removed_begins_no_request_to_another_server() {
    let (scene, mut far, access) = active().await;
    let record = scene.dispatch.records().remove(0);
    let redirected = sent(&access, far.request(3));
    far.got_a_request().await;
    record.fence().close_after(Duration::ZERO);
    far.redirects();
    let why = "not granted: not sent: the plugin was removed or disabled, or the host stops";
    let refused = Err(why.to_owned());
    assert_eq!(ended(redirected).await, refused);
    assert_eq!(ended(sent(&access, far.request(0))).await, refused);
    assert!(far.got_none());
}
