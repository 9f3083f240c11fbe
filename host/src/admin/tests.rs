//! Through a real socket: what a probe and a scraper see.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body};
use jiff::Timestamp;
use parking_lot::Mutex;
use pilothouse_core::key::Key;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use super::{
    guard::{
        Guard,
        tests::{Api, Mode},
    },
    routes::{ROUTES, probe_router, router},
    *,
};
use crate::{
    dispatch::{
        BacklogFigures, BacklogRow, CallFailure, ControllerRow, FailingKey, GivenUp, GoneFigures, HookFailure,
        Quarantined, StormRow,
    },
    informer::LeaseRow,
    plugin::{Failure, Stage},
    wasm::{Digest, InstanceFigures, Limits},
    webhook::LastFailure,
};

/// Checks that a test sets: the host's, and those of its parts.
#[derive(Default)]
struct Board(Mutex<Vec<Check>>, Mutex<Vec<Check>>);

impl Readiness for Board {
    fn host(&self) -> Vec<Check> {
        self.0.lock().clone()
    }

    fn parts(&self) -> Vec<Check> {
        self.1.lock().clone()
    }

    fn plugin(&self, name: &str) -> Option<Check> {
        self.1.lock().iter().find(|check| check.name == format!("plugin {name}")).cloned()
    }
}

/// Rows that a test sets.
#[derive(Default)]
struct Rows(Mutex<Vec<InformerRow>>, Mutex<Vec<PluginRow>>, Mutex<Vec<WebhookRow>>);

impl Inspect for Rows {
    fn informers(&self) -> Vec<InformerRow> {
        self.0.lock().clone()
    }

    fn plugins(&self) -> Vec<PluginRow> {
        self.1.lock().clone()
    }

    fn webhooks(&self) -> Vec<WebhookRow> {
        self.2.lock().clone()
    }
}

/// `apples` is quarantined, `pears` is not, and others are not there.
impl Control for Rows {
    fn release(&self, plugin: &str) -> Release {
        match plugin {
            "apples" => Release::Released,
            "pears" => Release::Free,
            _ => Release::Unknown(vec!["apples".to_owned(), "pears".to_owned()]),
        }
    }
}

struct Server {
    address: SocketAddr,
    board: Arc<Board>,
    counter: Counter,
    rows: Arc<Rows>,
    stop: CancellationToken,
    servers: Servers,
}

/// Answers nobody: a plain server asks nothing.
fn nobody() -> Arc<Api> {
    Api::new(&[], &[])
}

impl Server {
    async fn start(checks: Vec<Check>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let board = Arc::new(Board(Mutex::new(checks), Mutex::default()));
        let (mut registry, counter) = (Registry::default(), Counter::default());
        registry.register("apples", "Apples that were eaten", counter.clone());
        let registry = Arc::new(registry);
        let (stop, rows) = (CancellationToken::new(), Arc::<Rows>::default());
        let state = State { registry, readiness: board.clone(), inspect: rows.clone(), control: rows.clone() };
        let servers = start(Endpoints::plain(listener), &stop, state, nobody()).unwrap();
        Self { address, board, counter, rows, stop, servers }
    }

    /// The status code, the content type and the body.
    async fn get(&self, path: &str, accept: &str) -> (u16, String, String) {
        self.ask("GET", path, accept).await
    }

    async fn ask(&self, method: &str, path: &str, accept: &str) -> (u16, String, String) {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
        let answer = self.send(request).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        let content_type = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
        (code, content_type.to_owned(), body.to_owned())
    }

    /// The whole answer to a request.
    async fn send(&self, request: String) -> String {
        let address = self.address;
        let answer = tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        answer.await.unwrap()
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
    let server = Server::start(vec![check("API server", false, "no request has been answered so far")]).await;
    assert_eq!(server.text("/healthz").await, (200, "ok\n".to_owned()));
}

#[tokio::test]
async fn invariant_8_health_is_answered_while_every_other_request_waits_for_a_lock() {
    let [metrics, probes] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = [&metrics, &probes].map(|listener| listener.local_addr().unwrap());
    let (board, rows) = (Arc::<Board>::default(), Arc::<Rows>::default());
    let registry = Arc::new(Registry::default());
    let state = State { registry, readiness: board.clone(), inspect: rows.clone(), control: rows };
    let endpoints = Endpoints { probes: Some(probes), ..Endpoints::plain(metrics) };
    let stop = CancellationToken::new();
    let mut servers = start(endpoints, &stop, state, nobody()).unwrap();
    // This thread holds what `/readyz` needs, and runs nothing else meanwhile.
    let held = board.0.lock();
    let ask = move |address: SocketAddr, path: &'static str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let all = addresses.iter().flat_map(|address| [*address; 10]);
    let waiting: Vec<_> = all.map(|address| std::thread::spawn(move || ask(address, "/readyz"))).collect();
    for _ in 0..10 {
        for address in addresses {
            assert!(ask(address, "/healthz").ends_with("ok\n"));
        }
    }
    assert!(waiting.iter().all(|asked| !asked.is_finished()));
    drop(held);
    for asked in waiting {
        assert!(asked.join().unwrap().starts_with("HTTP/1.1 200 OK"));
    }
    stop.cancel();
    servers.one_ends().await;
}

#[tokio::test]
async fn readyz_has_a_line_for_each_check_of_the_host() {
    let server = Server::start(vec![
        check("plugin directory", true, ""),
        check("informers", true, "a remark"),
        check("API server", false, "no request was answered:\nconnection refused\n"),
    ])
    .await;
    let (code, body) = server.text("/readyz").await;
    assert_eq!(code, 503);
    insta::assert_snapshot!(body, @r"
    [+]plugin directory ok
    [+]informers ok: a remark
    [-]API server failed: no request was answered:
        connection refused
    readyz check failed
    ");

    server.board.0.lock().pop();
    let (code, body) = server.text("/readyz").await;
    assert_eq!(code, 200);
    insta::assert_snapshot!(body, @r"
    [+]plugin directory ok
    [+]informers ok: a remark
    readyz check passed
    ");
}

#[tokio::test]
async fn invariant_8_a_plugin_that_is_not_well_is_named_and_does_not_make_the_host_unready() {
    let server = Server::start(vec![check("plugin directory", true, "")]).await;
    *server.board.1.lock() = vec![
        check("plugin apples", false, "cannot link:\nimport `wasi:http` is not there"),
        check("plugin pears", true, "serving 1.2.0"),
        check("informer stable.example.com/v1 MyApple", false, "denied"),
    ];
    assert_eq!(server.text("/readyz").await, (200, "[+]plugin directory ok\nreadyz check passed\n".to_owned()));
    let (code, body) = server.text("/readyz?verbose").await;
    assert_eq!(code, 200);
    insta::assert_snapshot!(body, @r"
    [+]plugin directory ok
    readyz check passed

    What follows concerns single plugins, and not whether the host is ready:
    [-]plugin apples failed: cannot link:
        import `wasi:http` is not there
    [+]plugin pears ok: serving 1.2.0
    [-]informer stable.example.com/v1 MyApple failed: denied
    ");
    let (code, _, body) = server.get("/readyz?verbose&format=json", "*/*").await;
    assert_eq!(code, 200);
    assert!(body.contains(r#""parts":[{"name":"plugin apples","ok":false,"detail":"cannot link:"#), "{body}");

    let (code, body) = server.text("/readyz/plugins/apples").await;
    assert_eq!(code, 503);
    assert!(body.starts_with("[-]plugin apples failed: cannot link:\n") && body.ends_with("readyz check failed\n"));
    let pears = (200, "[+]plugin pears ok: serving 1.2.0\nreadyz check passed\n".to_owned());
    assert_eq!(server.text("/readyz/plugins/pears").await, pears);
    let json = r#"{"ready":true,"checks":[{"name":"plugin pears","ok":true,"detail":"serving 1.2.0"}]}"#;
    assert_eq!(server.get("/readyz/plugins/pears", "application/json").await.2, json);
    assert_eq!(server.text("/readyz/plugins/plums").await.0, 404);
}

#[tokio::test]
async fn readyz_is_json_where_it_is_asked_for() {
    let server = Server::start(vec![check("API server", false, "away")]).await;
    let json = r#"{"ready":false,"checks":[{"name":"API server","ok":false,"detail":"away"}]}"#;
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
    server.counter.inc();
    let (code, content_type, body) = server.get("/metrics", "*/*").await;
    assert_eq!((code, content_type.as_str()), (200, "application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(body.contains("apples_total 1\n"), "{body}");
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
async fn informers_are_shown_in_a_table_with_their_users() {
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
async fn webhooks_are_a_table_with_their_rules_and_what_is_wrong() {
    let server = Server::start(Vec::new()).await;
    let (at, message) = (Timestamp::UNIX_EPOCH, "32 calls of the plugin run,\nand 256 wait".to_owned());
    let images = WebhookRow {
        plugin: "police".to_owned(),
        webhook: "images".to_owned(),
        of_type: "validating",
        rules: vec!["CREATE,UPDATE v1 pods".to_owned()],
        on_failure: "Fail".to_owned(),
        timeout_seconds: 10,
        in_force: true,
        certificate_expires: Some("2027-02-28T00:00:00Z".to_owned()),
        calls: 15,
        denied: 4,
        failed: 2,
        last_failure: Some(LastFailure { at, code: 429, message }),
        ..WebhookRow::default()
    };
    *server.rows.2.lock() = vec![
        images,
        WebhookRow {
            plugin: "lamps".to_owned(),
            webhook: "convert".to_owned(),
            of_type: "conversion",
            rules: vec!["lamps.example.com".to_owned()],
            on_failure: "Fail".to_owned(),
            timeout_seconds: 30,
            remark: Some("the host has no certificate yet".to_owned()),
            ..WebhookRow::default()
        },
    ];
    let (code, body) = server.text("/debug/webhooks").await;
    assert_eq!(code, 200);
    insta::assert_snapshot!(body, @r"
    PLUGIN  WEBHOOK  TYPE        IN FORCE  ON FAILURE  TIMEOUT  CALLS  DENIED  FAILED  CERTIFICATE UNTIL
    police  images   validating  yes       Fail        10s      15     4       2       2027-02-28T00:00:00Z
        CREATE,UPDATE v1 pods
        failed last at 1970-01-01T00:00:00Z with 429: 32 calls of the plugin run, and 256 wait
    lamps   convert  conversion  no        Fail        30s      0      0       0       -
        lamps.example.com
        the host has no certificate yet
    ");
    server.rows.2.lock().remove(0);
    let json = r#"[{"plugin":"lamps","webhook":"convert","type":"conversion","rules":["lamps.example.com"],"on_failure":"Fail","timeout_seconds":30,"in_force":false,"remark":"the host has no certificate yet","certificate_expires":null,"calls":0,"denied":0,"failed":0,"last_failure":null}]"#;
    let expected = (200, "application/json".to_owned(), json.to_owned());
    assert_eq!(server.get("/debug/webhooks?format=json", "*/*").await, expected);
}

fn plugin(name: &str) -> PluginRow {
    PluginRow {
        plugin: name.to_owned(),
        state: "active".to_owned(),
        serving: Some(ServingRow {
            version: "1.2.0".to_owned(),
            digest: "0123456789ab".to_owned(),
            since: "2026-01-02T03:04:05Z".to_owned(),
            instances: "fresh",
            code: Some("optimized"),
        }),
        cpu_seconds: 1.5,
        guest_seconds: 1.25,
        cpu_weight: 100,
        ..PluginRow::default()
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn backlog() -> BacklogRow {
    let last_failure = HookFailure {
        at: at("2026-01-02T03:50:00Z"),
        objects: "Pod default/p and 3 more".to_owned(),
        message: "not today".to_owned(),
    };
    let figures = BacklogFigures { objects: 4, delayed: 3, merged: 2, dropped: 1 };
    BacklogRow { figures, last_failure: Some(last_failure) }
}

fn failing(name: &str) -> FailingKey {
    let (key, lasts) = (Key::new(Some("default"), name), Duration::from_millis(61_250));
    FailingKey { key, lasts, failures: 14, error: "no apples\nleft".to_owned() }
}

/// One of which much is wrong.
fn sick() -> PluginRow {
    PluginRow {
        quarantine: Some(Quarantined {
            left: Duration::from_millis(3_500),
            times: 3,
            why: "plugin trapped: unreachable".to_owned(),
        }),
        load_failure: Some(Failure {
            at: at("2026-01-02T04:00:00Z"),
            stage: Stage::Describe,
            digest: Digest::of(b"apples"),
            message: "cannot call describe:\nplugin overflowed its stack".to_owned(),
            backtrace: vec!["0: apples!deep".to_owned()],
        }),
        waiting: Some("v1 Secret: listing".to_owned()),
        warnings: vec!["asks for and is not granted: delete v1 Pod".to_owned()],
        cpu_milli: Some(500),
        waiting_tasks: 2,
        turns: 40,
        turn_wait_seconds: 0.25,
        turns_held: 3,
        instances: InstanceFigures {
            alive: 3,
            kept: 2,
            made: 7,
            reused: 40,
            mapped: 5,
            memory: 1280 << 10,
            peak: 640 << 10,
            ..InstanceFigures::default()
        },
        limits: Some(Limits {
            memory: 64 << 20,
            total_memory: 512 << 20,
            deadline: None,
            host_calls: 100,
            host_bytes: 1 << 30,
            reuse: false,
        }),
        host_calls: [("cache.get", 12), ("client.get", 0), ("log.write", 3)].into(),
        log_dropped: 17,
        traps: [("deadline", 2), ("trap", 30)].into(),
        observer: Some(BacklogRow { figures: BacklogFigures { objects: 6, ..backlog().figures }, ..backlog() }),
        failed_call: Some(CallFailure {
            at: at("2026-01-02T03:59:59Z"),
            call: "reconcile of default/a (apples)".to_owned(),
            kind: "trap",
            message: "plugin trapped: unreachable; it said: panicked at src/lib.rs".to_owned(),
            backtrace: vec!["0: apples!eat".to_owned(), "1: apples!reconcile".to_owned()],
        }),
        controllers: vec![ControllerRow {
            controller: "apples".to_owned(),
            kind: "stable.example.com/v1 MyApple".to_owned(),
            waits_for: vec!["v1 Secret: listing".to_owned()],
            ready: 7,
            delayed: 2,
            processing: 1,
            workers: 4,
            reconciles: [("success", 10), ("error", 3)].into(),
            retries: 3,
            timeout_ms: Some(10_000),
            reconciles_per_second: Some(5),
            backoff_base_ms: 5,
            backoff_cap_ms: 60_000,
            failing: ["a", "b", "c", "d"].map(failing).into(),
            keys_failing: 9,
            given_up: vec![GivenUp {
                key: Key::new(Some("default"), "z"),
                at: at("2026-01-02T03:58:00Z"),
                error: "no such variety".to_owned(),
            }],
            gone: GoneFigures { objects: 3, bytes: 12 << 10, dropped: 5 },
            unmapped: BacklogRow { last_failure: None, ..backlog() },
            storms: vec![StormRow {
                key: "default/a".to_owned(),
                seconds: 12.25,
                reconciles: 72,
                wakes: 400,
                cause: Some("changes of its child v1 ConfigMap default/a-0".to_owned()),
                cause_wakes: 120,
                cause_of: 128,
            }],
            breakers_open: 3,
            ..ControllerRow::default()
        }],
        ..plugin("apples")
    }
}

#[tokio::test]
async fn plugins_are_a_table_with_what_is_wrong_below_each() {
    let server = Server::start(Vec::new()).await;
    let tried = Quarantined { left: Duration::ZERO, times: 1, why: "plugin overflowed its stack".to_owned() };
    let pears = PluginRow { quarantine: Some(tried), ..plugin("pears") };
    let quinces = PluginRow { state: "failed".to_owned(), serving: None, ..plugin("quinces") };
    *server.rows.1.lock() = vec![sick(), pears, quinces];
    let (code, body) = server.text("/debug/plugins").await;
    assert_eq!(code, 200);
    insta::assert_snapshot!(body, @r"
    PLUGIN   STATE   VERSION  DIGEST        SERVING SINCE         CPU    WEIGHT  CAP   WAITING  INSTANCES  MEMORY
    apples   active  1.2.0    0123456789ab  2026-01-02T03:04:05Z  1.50s  100     500m  2        3          1280k
        quarantined (delay 3 in a row): no key is handed out for 3.5 s more: plugin trapped: unreachable
        revision f5903f51e341 failed to describe at 2026-01-02T04:00:00Z: cannot call describe: plugin overflowed its stack
            0: apples!deep
        waiting: v1 Secret: listing
        asks for and is not granted: delete v1 Pod
        failed calls: 2 deadline, 30 trap
        last failed call at 2026-01-02T03:59:59Z: reconcile of default/a (apples): trap: plugin trapped: unreachable; it said: panicked at src/lib.rs
            0: apples!eat
            1: apples!reconcile
        17 lines of its log and about its failures were dropped, as they were too many
        observer: 6 objects wait, 3 of them again after a failure; 2 changes were merged, 1 deletions dropped
            failed last at 2026-01-02T03:50:00Z over Pod default/p and 3 more: not today
        controller apples of stable.example.com/v1 MyApple: 7 ready, 2 delayed, 1 of 4 workers busy; reconciled: 3 error, 10 success; 3 retries
            waits for v1 Secret: listing
            default/a fails for 61.2 s, 14 times in a row: no apples left
            default/b fails for 61.2 s, 14 times in a row: no apples left
            default/c fails for 61.2 s, 14 times in a row: no apples left
            and 6 more keys fail
            default/z was given up at 2026-01-02T03:58:00Z, until something changes: no such variety
            gone: 3 objects still to be reconciled, 12 kB; 5 deletions given up
            mapper: 4 objects wait, 3 of them again after a failure; 2 changes were merged, 1 deletions dropped
            default/a is reconciled over and over: 72 times in 12.2 s, and was woken 400 times; 120 of the last 128 times by changes of its child v1 ConfigMap default/a-0
            and 2 more objects are reconciled over and over
    pears    active  1.2.0    0123456789ab  2026-01-02T03:04:05Z  1.50s  100     -     0        0          0k
        quarantined (delay 1 in a row): it is being tried: plugin overflowed its stack
    quinces  failed  -        -             -                     1.50s  100     -     0        0          0k
    ");
}

#[tokio::test]
async fn one_plugin_is_shown_with_all_that_is_known_of_it() {
    let server = Server::start(Vec::new()).await;
    *server.rows.1.lock() = vec![sick(), plugin("pears")];
    let (code, body) = server.text("/debug/plugins?plugin=apples").await;
    assert_eq!(code, 200);
    insta::assert_snapshot!(body, @r"
    PLUGIN  STATE   VERSION  DIGEST        SERVING SINCE         CPU    WEIGHT  CAP   WAITING  INSTANCES  MEMORY
    apples  active  1.2.0    0123456789ab  2026-01-02T03:04:05Z  1.50s  100     500m  2        3          1280k
        threads: 40 turns, waited 0.25 s for them; held one 3 times for more than 1 ms; calls ran for 1.25 s
        instances: 3, 2 of them kept for a next call; 7 were made, 40 calls were served by one that had served before, 5 had to map the code
        memory: 1280 kB in all instances; at most 640 kB in one so far
        asks for instances: fresh; code: optimized
        a call may take 64 MiB of memory, and 512 MiB with the plugin's others, 100 calls of the host and 1024 MiB from them, and always has a fresh instance
        calls of the host: 12 cache.get, 3 log.write
        quarantined (delay 3 in a row): no key is handed out for 3.5 s more: plugin trapped: unreachable
        revision f5903f51e341 failed to describe at 2026-01-02T04:00:00Z: cannot call describe: plugin overflowed its stack
            0: apples!deep
        waiting: v1 Secret: listing
        asks for and is not granted: delete v1 Pod
        failed calls: 2 deadline, 30 trap
        last failed call at 2026-01-02T03:59:59Z: reconcile of default/a (apples): trap: plugin trapped: unreachable; it said: panicked at src/lib.rs
            0: apples!eat
            1: apples!reconcile
        17 lines of its log and about its failures were dropped, as they were too many
        observer: 6 objects wait, 3 of them again after a failure; 2 changes were merged, 1 deletions dropped
            failed last at 2026-01-02T03:50:00Z over Pod default/p and 3 more: not today
        controller apples of stable.example.com/v1 MyApple: 7 ready, 2 delayed, 1 of 4 workers busy; reconciled: 3 error, 10 success; 3 retries
            a reconcile may take 10000 ms; 5 in a second; a key that fails waits 5 ms at first, and 60000 ms at most
            waits for v1 Secret: listing
            default/a fails for 61.2 s, 14 times in a row: no apples left
            default/b fails for 61.2 s, 14 times in a row: no apples left
            default/c fails for 61.2 s, 14 times in a row: no apples left
            default/d fails for 61.2 s, 14 times in a row: no apples left
            and 5 more keys fail
            default/z was given up at 2026-01-02T03:58:00Z, until something changes: no such variety
            gone: 3 objects still to be reconciled, 12 kB; 5 deletions given up
            mapper: 4 objects wait, 3 of them again after a failure; 2 changes were merged, 1 deletions dropped
            default/a is reconciled over and over: 72 times in 12.2 s, and was woken 400 times; 120 of the last 128 times by changes of its child v1 ConfigMap default/a-0
            and 2 more objects are reconciled over and over
    ");
    let (code, body) = server.text("/debug/plugins?plugin=pears").await;
    assert_eq!(code, 200);
    insta::assert_snapshot!(body, @r"
    PLUGIN  STATE   VERSION  DIGEST        SERVING SINCE         CPU    WEIGHT  CAP  WAITING  INSTANCES  MEMORY
    pears   active  1.2.0    0123456789ab  2026-01-02T03:04:05Z  1.50s  100     -    0        0          0k
        threads: 0 turns, waited 0.00 s for them; held one 0 times for more than 1 ms; calls ran for 1.25 s
        instances: 0, 0 of them kept for a next call; 0 were made, 0 calls were served by one that had served before, 0 had to map the code
        memory: 0 kB in all instances; at most 0 kB in one so far
        asks for instances: fresh; code: optimized
        calls of the host: none
    ");
    let (code, _, body) = server.get("/debug/plugins?plugin=pears&format=json", "*/*").await;
    assert_eq!(code, 200);
    assert_eq!(body, serde_json::to_string(&[plugin("pears")]).unwrap());
    let none = "there is no plugin of that name; these are: apples, pears\n";
    assert_eq!(server.text("/debug/plugins?plugin=plums").await, (404, none.to_owned()));
}

#[tokio::test]
async fn plugins_are_json_where_it_is_asked_for() {
    let server = Server::start(Vec::new()).await;
    *server.rows.1.lock() = vec![PluginRow { serving: None, ..plugin("apples") }];
    let json = r#"[{"plugin":"apples","state":"active","owner":null,"moving_to":null,"account":null,"serving":null,"load_failure":null,"waiting":null,"warnings":[],"cpu_seconds":1.5,"guest_seconds":1.25,"turns":0,"turn_wait_seconds":0.0,"turns_held":0,"cpu_weight":100,"cpu_milli":null,"waiting_tasks":0,"instances":{"alive":0,"kept":0,"made":0,"reused":0,"mapped":0,"memory_bytes":0,"peak_bytes":0},"limits":null,"host_calls":{},"log_dropped":0,"traps":{},"quarantine":null,"failed_call":null,"observer":null,"kinds_matched":null,"controllers":[]}]"#;
    let expected = (200, "application/json".to_owned(), json.to_owned());
    assert_eq!(server.get("/debug/plugins?format=json", "*/*").await, expected);
    assert_eq!(server.get("/debug/plugins", "application/json").await, expected);
}

#[test]
fn fields_of_a_plugins_row_have_these_names() {
    let row = serde_json::to_value(sick()).unwrap();
    let fields = |value: &serde_json::Value| {
        let mut fields: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        fields.sort_unstable();
        fields.join(" ")
    };
    let controller = &row["controllers"][0];
    assert_eq!(fields(&row["quarantine"]), "left_seconds times why");
    assert_eq!(fields(&row["load_failure"]), "at backtrace digest message stage");
    assert_eq!(fields(&row["limits"]), "host_bytes host_calls memory_bytes reuse total_memory_bytes");
    assert_eq!(fields(&row["failed_call"]), "at backtrace call kind message");
    assert_eq!(fields(&row["observer"]), "delayed dropped last_failure merged objects");
    assert_eq!(fields(&row["observer"]["last_failure"]), "at message objects");
    assert_eq!(
        fields(controller),
        "backoff_base_ms backoff_cap_ms breakers_open controller delayed failing given_up gone keys_asking keys_failing kind \
         processing ready reconciles reconciles_per_second retries storms timeout_ms unmapped waits_for watches_asked \
         watches_lacking workers"
    );
    assert_eq!(fields(&controller["failing"][0]), "error failures key seconds");
    assert_eq!(fields(&controller["given_up"][0]), "at error key");
    assert_eq!(fields(&controller["gone"]), "bytes dropped objects");
    assert_eq!(fields(&controller["storms"][0]), "cause cause_of cause_wakes key reconciles seconds wakes");
    let failing = serde_json::json!({"key": "default/a", "seconds": 61.25, "failures": 14, "error": "no apples\nleft"});
    assert_eq!(controller["failing"][0], failing);
    assert_eq!(controller["given_up"][0]["at"], "2026-01-02T03:58:00Z");
}

#[tokio::test]
async fn a_quarantine_is_ended_by_post_and_only_by_it() {
    let server = Server::start(Vec::new()).await;
    for (plugin, code, said) in [
        ("apples", 200, "plugin apples is released: its keys are handed out again\n"),
        ("pears", 200, "plugin pears is not quarantined: there is nothing to release\n"),
        ("plums", 404, "no plugin of that name is at work; these are: apples, pears\n"),
    ] {
        let path = format!("/debug/plugins/{plugin}/release");
        let (answered, _, body) = server.ask("POST", &path, "*/*").await;
        assert_eq!((answered, body.as_str()), (code, said));
        assert_eq!(server.text(&path).await.0, 405);
    }
}

#[tokio::test]
async fn a_web_page_of_another_site_changes_nothing() {
    let server = Server::start(Vec::new()).await;
    let post = async |headers: &str| {
        let request =
            format!("POST /debug/plugins/apples/release HTTP/1.1\r\n{headers}Content-Length: 0\r\nAccept: */*\r\n\r\n");
        let answer = server.send(request).await;
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    let address = server.address;
    for (headers, code) in [
        (format!("Host: {address}\r\n"), 200),
        ("Host: pilothouse.system.svc:8080\r\n".to_owned(), 200),
        (format!("Host: {address}\r\nOrigin: http://{address}\r\nSec-Fetch-Site: same-origin\r\n"), 200),
        (format!("Host: {address}\r\nOrigin: https://evil.example\r\n"), 403),
        (format!("Host: {address}\r\nSec-Fetch-Site: cross-site\r\n"), 403),
        ("Host: evil.example:8080\r\nOrigin: http://evil.example:8080\r\n".to_owned(), 403),
    ] {
        assert_eq!(post(&headers).await, code, "{headers}");
    }
}

#[tokio::test]
async fn the_index_links_to_what_there_is() {
    let server = Server::start(Vec::new()).await;
    let (code, content_type, body) = server.get("/", "text/html").await;
    assert_eq!((code, content_type.as_str()), (200, "text/html; charset=utf-8"));
    let links: Vec<_> = body.split("href=\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0)).collect();
    assert_eq!(
        links,
        [
            "/healthz",
            "/livez",
            "/readyz",
            "/readyz?verbose",
            "/readyz?verbose&amp;format=json",
            "/metrics",
            "/debug/informers",
            "/debug/informers?format=json",
            "/debug/plugins",
            "/debug/plugins?format=json",
            "/debug/webhooks",
            "/debug/webhooks?format=json",
        ]
    );
    for link in links {
        assert_eq!(server.text(link).await.0, 200, "{link}");
    }
    assert_eq!(server.text("/nothing").await.0, 404);
}

#[tokio::test]
async fn shutdown_ends_the_server_though_a_client_holds_half_a_request() {
    let mut server = Server::start(Vec::new()).await;
    let mut half = std::net::TcpStream::connect(server.address).unwrap();
    half.write_all(b"GET /healthz HTTP/1.1\r\n").unwrap();
    // Another request after it is answered: the server has taken the first one's connection.
    assert_eq!(server.text("/healthz").await.0, 200);
    server.stop.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(10), server.servers.one_ends());
    ended.await.expect("the server ends");
    drop(half);
}

#[tokio::test]
async fn a_request_with_a_body_is_refused_before_it_has_arrived() {
    let server = Server::start(Vec::new()).await;
    for head in [
        "POST /debug/plugins/apples/release HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let answer = server.send(head.to_owned()).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    }
}

/// What each route needs, in the words of RBAC: method, pattern, a path, verb, nonResourceURL, and whether the server
/// of probes has it.
const NEEDS: [(&str, &str, &str, &str, &str, bool); 10] = [
    ("GET", "/", "/", "get", "/", false),
    ("GET", "/healthz", "/healthz", "get", "/healthz", true),
    ("GET", "/livez", "/livez", "get", "/livez", true),
    ("GET", "/readyz", "/readyz?verbose", "get", "/debug/readyz", true),
    ("GET", "/readyz/plugins/{plugin}", "/readyz/plugins/apples", "get", "/debug/readyz/plugins/apples", false),
    ("GET", "/metrics", "/metrics", "get", "/metrics", false),
    ("GET", "/debug/informers", "/debug/informers", "get", "/debug/informers", false),
    ("GET", "/debug/plugins", "/debug/plugins?plugin=apples", "get", "/debug/plugins", false),
    (
        "POST",
        "/debug/plugins/{plugin}/release",
        "/debug/plugins/apples/release",
        "release",
        "/debug/plugins/apples/release",
        false,
    ),
    ("GET", "/debug/webhooks", "/debug/webhooks", "get", "/debug/webhooks", false),
];

/// The state of a host with the plugin `apples`.
fn state() -> State {
    let (board, rows) = (Arc::<Board>::default(), Arc::<Rows>::default());
    *board.1.lock() = vec![check("plugin apples", true, "")];
    *rows.1.lock() = vec![plugin("apples")];
    State { registry: Arc::default(), readiness: board, inspect: rows.clone(), control: rows }
}

/// Asks a router. Returns the status, and `WWW-Authenticate` if it is there.
async fn ask(router: &mut Router, method: &str, path: &str, token: Option<&str>) -> (u16, Option<String>) {
    let mut request = http::Request::builder().method(method).uri(path);
    if let Some(token) = token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let answer = router.call(request.body(Body::empty()).unwrap()).await.unwrap();
    let challenge = answer.headers().get("WWW-Authenticate").map(|value| value.to_str().unwrap().to_owned());
    (answer.status().as_u16(), challenge)
}

/// A route that is added to the table fails this test until it has a row in [`NEEDS`].
#[tokio::test]
async fn invariant_7_every_route_is_refused_without_a_token_and_without_the_right_and_allowed_with_it() {
    let table = ROUTES.iter().map(|route| (route.path, route.verb)).collect::<Vec<_>>();
    assert_eq!(table, NEEDS.map(|(_, pattern, _, verb, ..)| (pattern, verb)), "NEEDS has a row for each route");
    for (method, _, path, verb, url, _) in NEEDS {
        let others = NEEDS.iter().filter(|other| (other.3, other.4) != (verb, url));
        let others: Vec<_> = others.map(|(.., verb, url, _)| format!("other {verb} {url}")).collect();
        let right = format!("allowed {verb} {url}");
        let rights: Vec<&str> = others.iter().chain([&right]).map(String::as_str).collect();
        let api = Api::new(&["other", "allowed"], &rights);
        let mut router = router(state(), Some(&Arc::new(Guard::new(api.clone()).unwrap())));
        let challenge = Some(r#"Bearer realm="pilothouse""#.to_owned());
        assert_eq!(ask(&mut router, method, path, None).await, (401, challenge), "{method} {path}");
        let challenge = Some(r#"Bearer realm="pilothouse", error="invalid_token""#.to_owned());
        assert_eq!(ask(&mut router, method, path, Some("eve-token")).await, (401, challenge), "{method} {path}");
        // An account that has the right to all other routes is refused.
        assert_eq!(ask(&mut router, method, path, Some("other-token")).await, (403, None), "{method} {path}");
        assert_eq!(ask(&mut router, method, path, Some("allowed-token")).await, (200, None), "{method} {path}");
        *api.mode.lock() = Mode::Fails;
        assert_eq!(ask(&mut router, method, path, Some("new-token")).await, (503, None), "{method} {path}");
    }
}

#[tokio::test]
async fn every_verb_of_a_post_belongs_to_one_route() {
    let posts: Vec<_> = NEEDS.iter().filter(|(method, ..)| *method != "GET").map(|(_, _, _, verb, ..)| *verb).collect();
    let mut verbs: Vec<_> = posts.iter().filter(|verb| !["get", "post", "*"].contains(verb)).collect();
    verbs.sort_unstable();
    verbs.dedup();
    assert_eq!(verbs.len(), posts.len(), "{posts:?}");
}

#[tokio::test]
async fn invariant_7_paths_that_are_no_routes_are_refused_without_a_token_too() {
    let api = Api::new(&["ana"], &["ana get /debug/plugins/apples/release"]);
    let mut router = router(state(), Some(&Arc::new(Guard::new(api.clone()).unwrap())));
    for path in ["/none", "/debug", "//metrics", "/metrics/", "/%6detrics", "/healthz/../metrics"] {
        assert_eq!(ask(&mut router, "GET", path, None).await.0, 401, "{path}");
        assert_eq!(ask(&mut router, "GET", path, Some("ana-token")).await, (404, None), "{path}");
    }
    assert_eq!(api.asked.lock().len(), 1, "no right was asked for");
    // Another method of a route needs the route's verb.
    assert_eq!(ask(&mut router, "GET", "/debug/plugins/apples/release", Some("ana-token")).await, (403, None));
    assert_eq!(ask(&mut router, "DELETE", "/metrics", Some("ana-token")).await, (403, None));
    assert_eq!(ask(&mut router, "HEAD", "/metrics", Some("ana-token")).await, (403, None));
}

#[tokio::test]
async fn probes_are_plain_and_without_details() {
    let (board, rows) = (Arc::<Board>::default(), Arc::<Rows>::default());
    *board.0.lock() =
        vec![check("plugin directory", true, "a remark"), check("API server", false, "10.0.0.1: refused")];
    *board.1.lock() = vec![check("plugin apples", false, "cannot link")];
    let state = State { registry: Arc::default(), readiness: board.clone(), inspect: rows.clone(), control: rows };
    let mut router = probe_router(state);
    for (method, _, path, .., is_probe) in NEEDS {
        let (code, challenge) = ask(&mut router, method, path, None).await;
        assert_eq!((code != 404, challenge), (is_probe, None), "{method} {path}");
    }
    let mut text = async |path: &str| {
        let request = http::Request::get(path).header("Accept", "application/json").body(Body::empty()).unwrap();
        let answer = router.call(request).await.unwrap();
        let code = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 10_000).await.unwrap();
        (code, String::from_utf8_lossy(&body).into_owned())
    };
    let failed = (503, "[-]API server failed: reason withheld\nreadyz check failed\n".to_owned());
    for path in ["/readyz", "/readyz?verbose", "/readyz?verbose&format=json"] {
        assert_eq!(text(path).await, failed, "{path}");
    }
    board.0.lock().pop();
    for path in ["/readyz?verbose", "/healthz", "/livez"] {
        assert_eq!(text(path).await, (200, "ok\n".to_owned()), "{path}");
    }
}
