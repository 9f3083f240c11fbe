//! WASI: what a component of a stock toolchain gets, and what is refused.

use testing::wasi::prints;

use super::*;

const ANSWER: &str = "(i32.const {answer})";

/// Traps unless the condition holds.
fn ensure(condition: &str) -> String {
    format!("(if (i32.eqz {condition}) (then unreachable))")
}

/// Calls a guest at this time in milliseconds. Returns its imports and the answer.
async fn at(time: u64, body: &str) -> (Arc<Fake>, Result<Result<Outcome, Failure>, CallError>) {
    let imports = Arc::new(Fake { time: time.into(), ..Fake::default() });
    let revision = load(&Guest::new().reconcile(&format!("{body} {ANSWER}"))).await;
    let answer = revision.reconcile(imports.clone(), request()).await;
    (imports, answer)
}

fn line(level: Level, message: &str) -> LogLine {
    LogLine { level, message: message.to_owned(), fields: Vec::new() }
}

#[tokio::test]
async fn output_becomes_lines_and_the_rest_is_written_at_the_end_of_the_call() {
    let body = [
        prints("stdout", "one\r\ntw"),
        prints("stderr", "careful\n"),
        prints("stdout", "o\n\n \nthr"),
        prints("stderr", "ve\u{1b}ry"),
    ];
    let (imports, answer) = at(0, &body.concat()).await;
    answer.unwrap().unwrap();
    let lines = [
        line(Level::Info, "one"),
        line(Level::Warn, "careful"),
        line(Level::Info, "two"),
        line(Level::Info, "thr"),
        line(Level::Warn, "ve\u{1b}ry"),
    ];
    assert_eq!(*imports.lines.lock(), lines);
    assert!(imports.calls.lock().contains(&Import::Wasi(WasiCall::Io)));
}

#[tokio::test]
async fn trap_writes_the_rest_and_quotes_stderr() {
    let body = [prints("stderr", "Traceback:\n  line 7\nValueError: no apples"), "unreachable".to_owned()];
    let (imports, answer) = at(0, &body.concat()).await;
    assert_eq!(
        answer.unwrap_err().to_string(),
        "plugin trapped: wasm `unreachable` instruction executed; it said: Traceback: | line 7 | ValueError: no apples"
    );
    assert_eq!(imports.lines.lock().last(), Some(&line(Level::Warn, "ValueError: no apples")));
}

#[tokio::test]
async fn flood_of_output_has_the_bounds_of_the_log() {
    let body = format!(
        "(local $n i32) {} (loop $more (call $wasi:io/streams..method.output-stream.write (local.get 16) \
         (i32.const 0) (i32.const 65536) (i32.const 512)) \
         (br_if $more (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 300))))",
        // 64 KiB of lines with one letter.
        "(local.set $n (i32.const 65534)) (loop $fill (i32.store16 (local.get $n) (i32.const 0x0a78)) \
         (br_if $fill (i32.gt_u (local.tee $n (i32.sub (local.get $n) (i32.const 2))) (i32.const 8000)))) \
         (local.set $n (i32.const 0))"
    );
    let body = body.replace("(local.get 16)", "(call $wasi:cli/stdout.get-stdout)");
    let (imports, answer) = at(0, &body).await;
    answer.unwrap().unwrap();
    let lines = imports.lines.lock();
    assert_eq!(lines.len(), 257);
    assert_eq!(lines[256].message, "plugin logged too many lines in one call");
}

#[tokio::test]
async fn clocks_show_the_time_of_the_call_and_sleeping_moves_them_at_once() {
    let wall = "(call $wasi:clocks/wall-clock.now (i32.const 512))";
    let shows = |seconds: u64, nanos: u32| {
        let seconds = format!("(i64.eq (i64.load (i32.const 512)) (i64.const {seconds}))");
        let nanos = format!("(i32.eq (i32.load (i32.const 520)) (i32.const {nanos}))");
        format!("{wall} {} {}", ensure(&seconds), ensure(&nanos))
    };
    let sleeps = "(local $before i64) (local $timer i32) \
        (local.set $before (call $wasi:clocks/monotonic-clock.now)) \
        (local.set $timer (call $wasi:clocks/monotonic-clock.subscribe-duration (i64.const 3600000000000)))";
    let body = [
        sleeps.to_owned(),
        shows(1_700_000_000, 123_000_000),
        ensure("(i32.eqz (call $wasi:io/poll..method.pollable.ready (local.get $timer)))"),
        "(call $wasi:io/poll..method.pollable.block (local.get $timer))".to_owned(),
        ensure("(call $wasi:io/poll..method.pollable.ready (local.get $timer))"),
        "(call $wasi:io/poll..resource-drop.pollable (local.get $timer))".to_owned(),
        shows(1_700_003_600, 123_000_000),
        ensure(
            "(i64.eq (call $wasi:clocks/monotonic-clock.now) (i64.add (local.get $before) (i64.const 3600000000000)))",
        ),
    ];
    at(1_700_000_000_123, &body.concat()).await.1.unwrap().unwrap();
}

#[tokio::test]
async fn poll_sleeps_until_the_first_is_ready() {
    // The list lies at 600: two timers. The ready ones are listed at 512.
    let body = [
        "(i32.store (i32.const 600) (call $wasi:clocks/monotonic-clock.subscribe-duration (i64.const 5000)))",
        "(i32.store (i32.const 604) (call $wasi:clocks/monotonic-clock.subscribe-duration (i64.const 3000)))",
        "(call $wasi:io/poll.poll (i32.const 600) (i32.const 2) (i32.const 512))",
        &ensure("(i32.eq (i32.load (i32.const 516)) (i32.const 1))"),
        &ensure("(i32.eq (i32.load (i32.load (i32.const 512))) (i32.const 1))"),
        &ensure("(i64.eq (call $wasi:clocks/monotonic-clock.now) (i64.const 1000000003000))"),
    ];
    at(1_000_000, &body.concat()).await.1.unwrap().unwrap();
}

#[tokio::test]
async fn monotonic_clock_of_a_reused_instance_never_goes_back() {
    let body = format!(
        "{} (i64.store (i32.const 776) (call $wasi:clocks/monotonic-clock.now)) {ANSWER}",
        ensure("(i64.le_u (i64.load (i32.const 776)) (call $wasi:clocks/monotonic-clock.now))")
    );
    let revision = load(&Guest::new().reuse().reconcile(&body)).await;
    for time in [2000, 1000, 3000] {
        let imports = Arc::new(Fake { time: time.into(), ..Fake::default() });
        revision.reconcile(imports, request()).await.unwrap().unwrap();
    }
}

/// Calls what else there is. The numbers are those of [`Fake`].
fn everything() -> String {
    let streams = "$wasi:io/streams..method";
    let closed = ensure("(i32.and (i32.load8_u (i32.const 512)) (i32.load8_u (i32.const 516)))");
    let empty = ensure("(i32.eqz (i32.load (i32.const 516)))");
    let none = ensure("(i32.eqz (i32.load8_u (i32.const 512)))");
    let done = &none;
    [
        "(local $in i32) (local $out i32) (local $ready i32)".to_owned(),
        format!("(call $wasi:cli/environment.get-environment (i32.const 512)) {empty}"),
        format!("(call $wasi:cli/environment.get-arguments (i32.const 512)) {empty}"),
        format!("(call $wasi:cli/environment.initial-cwd (i32.const 512)) {none}"),
        format!("(call $wasi:cli/terminal-stdin.get-terminal-stdin (i32.const 512)) {none}"),
        format!("(call $wasi:cli/terminal-stdout.get-terminal-stdout (i32.const 512)) {none}"),
        format!("(call $wasi:cli/terminal-stderr.get-terminal-stderr (i32.const 512)) {none}"),
        format!("(call $wasi:filesystem/preopens.get-directories (i32.const 512)) {empty}"),
        "(local.set $in (call $wasi:cli/stdin.get-stdin))".to_owned(),
        format!("(call {streams}.input-stream.read (local.get $in) (i64.const 9) (i32.const 512)) {closed}"),
        format!("(call {streams}.input-stream.blocking-read (local.get $in) (i64.const 9) (i32.const 512)) {closed}"),
        "(local.set $out (call $wasi:cli/stdout.get-stdout))".to_owned(),
        format!("(call {streams}.output-stream.check-write (local.get $out) (i32.const 512)) {none}"),
        ensure("(i64.eq (i64.load (i32.const 520)) (i64.const 65536))"),
        format!("(call {streams}.output-stream.blocking-flush (local.get $out) (i32.const 512)) {done}"),
        format!("(local.set $ready (call {streams}.output-stream.subscribe (local.get $out)))"),
        ensure("(call $wasi:io/poll..method.pollable.ready (local.get $ready))"),
        "(call $wasi:io/poll..resource-drop.pollable (local.get $ready))".to_owned(),
        format!("(local.set $ready (call {streams}.input-stream.subscribe (local.get $in)))"),
        "(call $wasi:io/poll..method.pollable.block (local.get $ready))".to_owned(),
        "(call $wasi:io/poll..resource-drop.pollable (local.get $ready))".to_owned(),
        "(call $wasi:io/streams..resource-drop.input-stream (local.get $in))".to_owned(),
        "(call $wasi:io/streams..resource-drop.output-stream (local.get $out))".to_owned(),
        "(drop (call $wasi:clocks/monotonic-clock.resolution))".to_owned(),
        "(call $wasi:clocks/wall-clock.resolution (i32.const 512))".to_owned(),
        "(drop (call $wasi:clocks/monotonic-clock.subscribe-instant (i64.const 0)))".to_owned(),
        "(drop (call $wasi:random/insecure.get-insecure-random-u64))".to_owned(),
        "(call $wasi:random/insecure.get-insecure-random-bytes (i64.const 3) (i32.const 512))".to_owned(),
        "(call $wasi:random/insecure-seed.insecure-seed (i32.const 512))".to_owned(),
        "(drop (call $wasi:sockets/instance-network.instance-network))".to_owned(),
        "(call $wasi:sockets/tcp-create-socket.create-tcp-socket (i32.const 0) (i32.const 512))".to_owned(),
        // The error `access-denied`.
        ensure("(i32.and (i32.load8_u (i32.const 512)) (i32.load8_u (i32.const 516)))"),
    ]
    .concat()
}

const DRAWN: &str = "(i64.eq (call $wasi:random/random.get-random-u64) (i64.const 0x0706050403020100))";

#[tokio::test]
async fn every_function_answers_in_a_call() {
    at(0, &format!("{} {}", everything(), ensure(DRAWN))).await.1.unwrap().unwrap();
}

#[tokio::test]
async fn describe_gets_a_fixed_time_and_fixed_numbers() {
    let manifest = "(i32.const {manifest})";
    let time = "(call $wasi:clocks/wall-clock.now (i32.const 512))";
    let fixed = [
        ensure("(i64.eq (i64.load (i32.const 512)) (i64.const 946684800))"),
        // The first numbers of SplitMix64 from 0.
        ensure("(i64.eq (call $wasi:random/random.get-random-u64) (i64.const 0xe220a8397b1dcdaf))"),
        ensure("(i64.eq (call $wasi:random/random.get-random-u64) (i64.const 0x6e789e6aa1b965f4))"),
    ];
    let body = format!("{} {time} {} {} {manifest}", everything(), fixed[0], prints("stdout", "hello"));
    load(&Guest::new().describe(&body)).await;
    load(&Guest::new().describe(&format!("{}{}{manifest}", fixed[1], fixed[2]))).await;
}

#[tokio::test]
async fn call_that_cannot_be_served_traps_and_names_the_function() {
    for (body, why) in [
        ("(call $wasi:cli/exit.exit (i32.const 1))", "wasi:cli/exit was called with a failure"),
        ("(call $wasi:cli/exit.exit-with-code (i32.const 3))", "wasi:cli/exit was called with status 3"),
        (
            "(drop (call $wasi:http/types..constructor.fields))",
            "the host refuses wasi:http/types.fields: a plugin has no files, sockets and HTTP of WASI",
        ),
        (
            "(call $wasi:http/types.read (call $wasi:cli/stdin.get-stdin))",
            "the host refuses wasi:http/types.read: a plugin has no files, sockets and HTTP of WASI",
        ),
        (
            "(call $wasi:random/random.get-random-bytes (i64.const 65537) (i32.const 512))",
            "wasi:random gives at most 65536 bytes at once, and was asked for 65537",
        ),
        (
            "(loop $more (drop (call $wasi:cli/stdin.get-stdin)) (br $more))",
            "an instance may hold 1024 handles of streams and pollables of WASI",
        ),
        (
            "(loop $more (drop (call $wasi:clocks/monotonic-clock.subscribe-instant (i64.const 0))) (br $more))",
            "an instance may hold 1024 handles of streams and pollables of WASI",
        ),
        (
            "(call $wasi:io/poll.poll (i32.const 600) (i32.const 0) (i32.const 512))",
            "wasi:io/poll was called without a pollable",
        ),
    ] {
        let error = at(0, body).await.1.unwrap_err();
        assert_eq!(error.to_string(), format!("plugin trapped: {why}"));
    }
}

#[tokio::test]
async fn component_that_imports_what_is_not_known_is_refused_by_name() {
    let engine = Engine::new().unwrap();
    for name in
        ["wasi:keyvalue/store@0.2.0", "wasi:cli/environment@0.3.0", "wasi:cli/run@0.2.0", "wasi:clocks/timezone@0.2.0"]
    {
        let component = wat::parse_str(format!(r#"(component (import "{name}" (instance)))"#)).unwrap();
        let error = engine.compile(&component).unwrap().link().await.unwrap_err();
        let said = error.to_string();
        assert!(said.starts_with(&format!("the component imports what this host does not offer: {name}; ")), "{said}");
    }
}

#[tokio::test]
async fn an_instance_of_a_runtime_is_not_pre_warmed() {
    let engine = Engine::new().unwrap();
    let linked =
        engine.compile(&Guest::new().reconcile(&format!("{} {ANSWER}", prints("stdout", "x"))).file()).unwrap();
    let linked = linked.link().await.unwrap();
    let revision = linked.describe(PluginName::new("test").unwrap(), "{}".into(), Limits::default()).await.unwrap();
    revision.prepare().await;
    let (_, figures) = engine.instances().into_iter().next().unwrap();
    assert_eq!(figures.kept, 0);
}
