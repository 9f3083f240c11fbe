//! Through a real socket: what a probe and a scraper see.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use super::*;

/// Checks that a test sets.
#[derive(Default)]
struct Board(Mutex<Vec<Check>>);

impl Readiness for Board {
    fn report(&self) -> Vec<Check> {
        self.0.lock().clone()
    }
}

/// Rows that a test sets.
#[derive(Default)]
struct Rows(Mutex<Vec<InformerRow>>);

impl Inspect for Rows {
    fn informers(&self) -> Vec<InformerRow> {
        self.0.lock().clone()
    }
}

struct Server {
    address: SocketAddr,
    board: Arc<Board>,
    metrics: Arc<Metrics>,
    rows: Arc<Rows>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Server {
    async fn start(checks: Vec<Check>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (board, metrics) = (Arc::new(Board(Mutex::new(checks))), Arc::new(Metrics::new()));
        let (stop, stopped) = oneshot::channel();
        let rows = Arc::<Rows>::default();
        let state = State { metrics: metrics.clone(), readiness: board.clone(), inspect: rows.clone() };
        let served = tokio::spawn(serve(listener, async { drop(stopped.await) }, state));
        Self { address, board, metrics, rows, stop, served }
    }

    /// The status code, the content type and the body.
    async fn get(&self, path: &str, accept: &str) -> (u16, String, String) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
        let address = self.address;
        let answer = tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let answer = answer.await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        let content_type = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
        (code, content_type.to_owned(), body.to_owned())
    }

    async fn text(&self, path: &str) -> (u16, String) {
        let (code, _, body) = self.get(path, "*/*").await;
        (code, body)
    }
}

fn check(name: &str, ok: bool, detail: &str) -> Check {
    Check { name: name.to_owned(), ok, detail: detail.to_owned() }
}

#[tokio::test]
async fn a_living_host_is_healthy_though_it_is_not_ready() {
    let server = Server::start(vec![check("plugin apples", false, "cannot compile")]).await;
    assert_eq!(server.text("/healthz").await, (200, "ok\n".to_owned()));
}

#[tokio::test]
async fn readyz_has_a_line_for_each_check() {
    let server = Server::start(vec![
        check("informer stable.example.com/v1 MyApple", true, ""),
        check("plugin pears", true, "revision 2 serves; the newest file failed"),
        check("plugin apples", false, "cannot link:\nimport `wasi:http` is not there\n"),
    ])
    .await;
    let (code, body) = server.text("/readyz").await;
    assert_eq!(code, 503);
    insta::assert_snapshot!(body, @r"
    [+]informer stable.example.com/v1 MyApple ok
    [+]plugin pears ok: revision 2 serves; the newest file failed
    [-]plugin apples failed: cannot link:
        import `wasi:http` is not there
    readyz check failed
    ");

    server.board.0.lock().pop();
    let (code, body) = server.text("/readyz").await;
    assert_eq!(code, 200);
    insta::assert_snapshot!(body, @r"
    [+]informer stable.example.com/v1 MyApple ok
    [+]plugin pears ok: revision 2 serves; the newest file failed
    readyz check passed
    ");
}

#[tokio::test]
async fn readyz_is_json_where_it_is_asked_for() {
    let server = Server::start(vec![check("plugin apples", false, "cannot compile")]).await;
    let json = r#"{"ready":false,"checks":[{"name":"plugin apples","ok":false,"detail":"cannot compile"}]}"#;
    let expected = (503, "application/json".to_owned(), json.to_owned());
    assert_eq!(server.get("/readyz?format=json", "*/*").await, expected);
    assert_eq!(server.get("/readyz", "text/html;q=0.5, application/json;q=0.9").await, expected);
    for (path, accept) in [("/readyz", "*/*"), ("/readyz?format=text", "text/plain"), ("/readyz?verbose", "text/html")]
    {
        let (code, content_type, _) = server.get(path, accept).await;
        assert_eq!((code, content_type.as_str()), (503, "text/plain; charset=utf-8"), "{path} {accept}");
    }
}

#[tokio::test]
async fn a_host_without_checks_is_ready() {
    let server = Server::start(Vec::new()).await;
    assert_eq!(server.text("/readyz").await, (200, "readyz check passed\n".to_owned()));
}

#[tokio::test]
async fn metrics_are_served_as_open_metrics() {
    let server = Server::start(Vec::new()).await;
    server.metrics.add_plugin("apples");
    let (code, content_type, body) = server.get("/metrics", "*/*").await;
    assert_eq!((code, content_type.as_str()), (200, "application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(body.contains("pilothouse_plugin_active{plugin=\"apples\"} 0\n"), "{body}");
    assert!(body.ends_with("# EOF\n"));
}

fn row(kind: &str) -> InformerRow {
    InformerRow {
        kind: kind.to_owned(),
        namespace: None,
        labels: String::new(),
        fields: String::new(),
        keeps: String::new(),
        compressed: false,
        synced: true,
        state: "watching".to_owned(),
        leases: vec![LeaseRow { plugin: "apples".to_owned(), asks: kind.to_owned() }],
        objects: 12,
        bytes: 34_567,
        events: 15,
        skipped: 0,
        relists: 1,
        restarts: 0,
        heard_seconds: Some(3),
        version: 4_711,
        behind: 2,
    }
}

#[tokio::test]
async fn informers_are_a_table_with_a_line_for_each_and_whom_it_serves() {
    let server = Server::start(Vec::new()).await;
    *server.rows.0.lock() = vec![
        row("v1 ConfigMap"),
        InformerRow {
            namespace: Some("web".to_owned()),
            labels: "app=a".to_owned(),
            fields: "type=Opaque".to_owned(),
            keeps: "metadata only".to_owned(),
            compressed: true,
            state: "denied; grant the host's account list and watch: secrets is\nforbidden".to_owned(),
            leases: Vec::new(),
            heard_seconds: None,
            ..row("v1 Secret")
        },
    ];
    let (code, body) = server.text("/debug/informers").await;
    assert_eq!(code, 200);
    insta::assert_snapshot!(body, @r"
    KIND          NAMESPACE  SELECTOR               KEEPS                      STATE     LEASES  OBJECTS  BYTES  EVENTS  RELISTS  HEARD   VERSION
    v1 ConfigMap  *          -                      whole                      watching  1       12       34567  15      1        3s ago  4711
        apples asks for v1 ConfigMap
    v1 Secret     web        app=a and type=Opaque  metadata only, compressed  denied    0       12       34567  15      1        never   4711
        denied; grant the host's account list and watch: secrets is forbidden
    ");
}

#[tokio::test]
async fn informers_are_json_where_it_is_asked_for() {
    let server = Server::start(Vec::new()).await;
    *server.rows.0.lock() = vec![row("v1 ConfigMap")];
    let json = r#"[{"kind":"v1 ConfigMap","namespace":null,"labels":"","fields":"","keeps":"","compressed":false,"synced":true,"state":"watching","leases":[{"plugin":"apples","asks":"v1 ConfigMap"}],"objects":12,"bytes":34567,"events":15,"skipped":0,"relists":1,"restarts":0,"heard_seconds":3,"version":4711,"behind":2}]"#;
    let expected = (200, "application/json".to_owned(), json.to_owned());
    assert_eq!(server.get("/debug/informers?format=json", "*/*").await, expected);
    assert_eq!(server.get("/debug/informers", "application/json").await, expected);
}

#[tokio::test]
async fn the_index_links_to_what_there_is() {
    let server = Server::start(Vec::new()).await;
    let (code, content_type, body) = server.get("/", "text/html").await;
    assert_eq!((code, content_type.as_str()), (200, "text/html; charset=utf-8"));
    let links: Vec<_> = body.split("href=\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0)).collect();
    assert_eq!(
        links,
        ["/healthz", "/readyz", "/readyz?format=json", "/metrics", "/debug/informers", "/debug/informers?format=json"]
    );
    for link in links {
        assert_eq!(server.text(link).await.0, 200, "{link}");
    }
    assert_eq!(server.text("/nothing").await.0, 404);
}

#[tokio::test]
async fn shutdown_ends_the_server_though_a_client_holds_half_a_request() {
    let server = Server::start(Vec::new()).await;
    let mut half = std::net::TcpStream::connect(server.address).unwrap();
    half.write_all(b"GET /healthz HTTP/1.1\r\n").unwrap();
    // Another request after it is answered: the server has taken the first one's connection.
    assert_eq!(server.text("/healthz").await.0, 200);
    server.stop.send(()).unwrap();
    let served = tokio::time::timeout(Duration::from_secs(10), server.served).await;
    assert!(served.expect("the server ends").unwrap().is_ok());
    drop(half);
}
