//! Reused instances: what persists, what does not, and when they are dropped.

use std::collections::BTreeMap;

use tokio::time::advance;

use super::*;

/// Creates a revision of a plugin under this name.
async fn named(engine: &Engine, name: &str, guest: &Guest, limits: Limits) -> Revision {
    let linked = engine.compile(&guest.file()).unwrap().link().await.unwrap();
    linked.describe(PluginName::new(name).unwrap(), "{}".into(), limits).await.unwrap()
}

async fn reused(engine: &Engine, body: &str) -> Revision {
    named(engine, "test", &Guest::new().reuse().reconcile(body), Limits::default()).await
}

/// Calls the plugin. Returns the kind of error, or `ok`.
async fn called(revision: &Revision) -> &'static str {
    called_with(revision, &Arc::new(Fake::default())).await
}

async fn called_with(revision: &Revision, imports: &Arc<Fake>) -> &'static str {
    match revision.reconcile(imports.clone(), request()).await {
        Ok(answer) => {
            answer.unwrap();
            "ok"
        }
        Err(error) => error.kind(),
    }
}

fn figures(engine: &Engine, name: &str) -> InstanceFigures {
    let all: BTreeMap<_, _> = engine.instances().into_iter().collect();
    all[&PluginName::new(name).unwrap()]
}

#[tokio::test]
async fn state_is_seen_again_with_reuse_and_never_in_a_fresh_instance() {
    let engine = Engine::new().unwrap();
    let fresh = named(&engine, "fresh", &Guest::new().reconcile(guest::REMEMBERS), Limits::default()).await;
    let reused = reused(&engine, guest::REMEMBERS).await;
    for _ in 0..3 {
        assert_eq!(called(&fresh).await, "ok");
    }
    // It traps because of its own mark, so the third call has a new instance.
    assert_eq!([called(&reused).await, called(&reused).await, called(&reused).await], ["ok", "trap", "ok"]);
    // The first call maps code only if the machine gives this engine a pool, beside those of other tests.
    let of =
        |name| InstanceFigures { computed: Duration::ZERO, memory: 0, peak: 0, mapped: 0, ..figures(&engine, name) };
    // Including the one of `describe`.
    assert_eq!(of("fresh"), InstanceFigures { made: 4, ..InstanceFigures::default() });
    assert_eq!(of("test"), InstanceFigures { alive: 1, kept: 1, made: 3, reused: 1, ..InstanceFigures::default() });
}

#[tokio::test]
async fn all_exports_share_an_instance() {
    let engine = Engine::new().unwrap();
    let guest = Guest::new()
        .reuse()
        .reconcile(&guest::at_first("", ""))
        .map(&format!("{} {}", guest::FINDS_NOTHING, guest::MAPS))
        .observe(&format!("{} {}", guest::FINDS_NOTHING, guest::TAKES));
    let revision = named(&engine, "test", &guest, Limits::default()).await;
    let imports = || Arc::new(Fake::default());
    revision.map(imports(), "apples", &[news()]).await.unwrap().unwrap();
    revision.observe(imports(), &[news()]).await.unwrap().unwrap();
    assert_eq!(called(&revision).await, "ok");
    assert_eq!(figures(&engine, "test").made, 2);
    assert_eq!(revision.map(imports(), "apples", &[news()]).await.unwrap_err().kind(), "trap");
    assert_eq!(called(&revision).await, "ok");
    assert_eq!(revision.observe(imports(), &[news()]).await.unwrap_err().kind(), "trap");
    assert_eq!(figures(&engine, "test").made, 3);
}

#[tokio::test]
async fn instance_whose_call_failed_is_not_reused() {
    for (then, kind) in [
        (guest::TRAP, "trap"),
        (guest::LOOP, "deadline"),
        (guest::HOG, "memory"),
        (guest::TABULATE, "table"),
        ("(drop (call $deep (i32.const 0)))", "stack"),
        ("(loop $more (drop (call $now)) (br $more))", "host-calls"),
        ("(return (i32.const -8))", "answer"),
    ] {
        let engine = Engine::new().unwrap();
        let guest = Guest::new().reuse().reconcile(&guest::at_first("", then));
        // The deadline also covers the first call, which must succeed.
        let deadline = Some(Duration::from_secs(if kind == "deadline" { 1 } else { 60 }));
        let limits = Limits { memory: 4 << 20, host_calls: 10, deadline, ..Limits::default() };
        let revision = named(&engine, "test", &guest, limits).await;
        for expected in ["ok", kind, "ok", kind] {
            assert_eq!(called(&revision).await, expected, "{then}");
        }
        assert_eq!(figures(&engine, "test").alive, 0, "{then}");
    }
}

#[tokio::test]
async fn instance_whose_answer_is_refused_does_not_serve_again() {
    let engine = Engine::new().unwrap();
    let guest = Guest::new().reuse().pages(5).answer(Answer::Aliased { children: 10_001, bytes: 2 });
    let revision = named(&engine, "test", &guest, Limits::default()).await;
    assert_eq!(called(&revision).await, "answer");
    assert_eq!(figures(&engine, "test").alive, 0);
}

#[tokio::test]
async fn instance_of_a_dropped_call_does_not_serve_again() {
    let engine = Engine::new().unwrap();
    let revision = reused(&engine, guest::CLIENT_GET).await;
    let silent = Arc::new(Fake { silent: true, ..Fake::default() });
    tokio::select! {
        biased;
        _ = revision.reconcile(silent.clone(), request()) => panic!("nobody answers"),
        () = std::future::ready(()) => {}
    }
    assert_eq!((figures(&engine, "test").alive, Arc::strong_count(&silent)), (0, 1));
}

#[tokio::test]
async fn plugins_own_failure_costs_no_instance() {
    let engine = Engine::new().unwrap();
    let failure = Answer::Failure { message: "no".to_owned(), terminal: false, status: None };
    let revision = named(&engine, "test", &Guest::new().reuse().answer(failure), Limits::default()).await;
    for _ in 0..2 {
        revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap_err();
    }
    assert_eq!(figures(&engine, "test").made, 2);
}

#[tokio::test]
async fn instance_serves_a_thousand_calls() {
    let engine = Engine::new().unwrap();
    // Guest memory never shrinks.
    let guest = Guest::new().reuse().pages(64).reconcile(&guest::counts_to(1000));
    let revision = named(&engine, "test", &guest, Limits::default()).await;
    for _ in 0..1000 {
        assert_eq!(called(&revision).await, "ok");
    }
    assert_eq!((figures(&engine, "test").made, figures(&engine, "test").alive), (2, 0));
    assert_eq!(called(&revision).await, "ok");
    assert_eq!((figures(&engine, "test").made, figures(&engine, "test").alive), (3, 1));
}

#[tokio::test]
async fn instance_that_holds_more_than_half_of_its_limit_does_not_serve_again() {
    let limits = Limits { memory: 8 << 20, ..Limits::default() };
    // It starts with two pages of 64 kB.
    for (pages, then) in [(62, "trap"), (63, "ok")] {
        let engine = Engine::new().unwrap();
        let grow = format!("(drop (memory.grow (i32.const {pages})))");
        let guest = Guest::new().reuse().reconcile(&guest::at_first(&grow, guest::TRAP));
        let revision = named(&engine, "test", &guest, limits).await;
        assert_eq!([called(&revision).await, called(&revision).await], ["ok", then], "{pages}");
        assert_eq!(figures(&engine, "test").peak, (pages + 2) << 16);
    }
}

#[tokio::test]
async fn a_refused_growth_is_not_reported_for_a_later_call() {
    let engine = Engine::new().unwrap();
    let revision = reused(&engine, &guest::at_first("(drop (memory.grow (i32.const 60000)))", guest::TRAP)).await;
    assert_eq!([called(&revision).await, called(&revision).await], ["ok", "trap"]);
}

#[tokio::test]
async fn imports_of_a_call_are_let_go_of_at_its_end() {
    let engine = Engine::new().unwrap();
    let revision = reused(&engine, &format!("{} {}", guest::LOG, guest::ANSWER)).await;
    let (first, second) = (Arc::new(Fake::default()), Arc::new(Fake::default()));
    assert_eq!(called_with(&revision, &first).await, "ok");
    assert_eq!(Arc::strong_count(&first), 1);
    assert_eq!(called_with(&revision, &second).await, "ok");
    assert_eq!((first.lines.lock().len(), second.lines.lock().len()), (1, 1));
    assert_eq!(figures(&engine, "test").reused, 1);
}

#[tokio::test]
async fn host_calls_and_what_they_answer_are_counted_anew_for_each_call() {
    let engine = Engine::new().unwrap();
    let fit = guest::reads_that_fit(1 << 20);
    let limits = Limits { host_calls: fit, host_bytes: 1 << 20, ..Limits::default() };
    let guest = Guest::new().reuse().reconcile(&guest::reads_again(fit));
    let revision = named(&engine, "test", &guest, limits).await;
    let imports = Arc::new(Fake { cached: Some(apple()), ..Fake::default() });
    for _ in 0..3 {
        assert_eq!(called_with(&revision, &imports).await, "ok");
    }
    assert_eq!(figures(&engine, "test").reused, 2);
}

#[tokio::test]
async fn log_of_each_call_is_bounded_for_itself() {
    let engine = Engine::new().unwrap();
    let revision = reused(&engine, guest::LOG_300).await;
    for _ in 0..2 {
        let imports = Arc::new(Fake::default());
        assert_eq!(called_with(&revision, &imports).await, "ok");
        assert_eq!(imports.lines.lock().len(), LogLine::MAX_LINES as usize + 1);
    }
    assert_eq!(figures(&engine, "test").reused, 1);
}

#[tokio::test]
async fn output_of_an_earlier_call_is_not_quoted_for_a_later_one() {
    let engine = Engine::new().unwrap();
    let revision = reused(&engine, &guest::at_first(guest::LOG, guest::TRAP)).await;
    assert_eq!(called(&revision).await, "ok");
    let error = revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap_err();
    assert_eq!(error.to_string(), "plugin trapped: wasm `unreachable` instruction executed");
}

#[tokio::test]
async fn clock_goes_on_between_calls() {
    let engine = Engine::new().unwrap();
    let revision = reused(&engine, guest::CLOCK_STANDS).await;
    let imports = Arc::new(Fake { time: 5.into(), ..Fake::default() });
    for _ in 0..3 {
        assert_eq!(called_with(&revision, &imports).await, "ok");
    }
}

#[tokio::test]
async fn each_call_has_its_own_deadline() {
    let engine = Engine::new().unwrap();
    let guest = Guest::new().reuse().timeout_ms(50).reconcile(guest::LOOP).observe(guest::TAKES);
    let revision = named(&engine, "test", &guest, Limits::default()).await;
    revision.observe(Arc::new(Fake::default()), &[news()]).await.unwrap().unwrap();
    let error = revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap_err();
    assert_eq!(error.to_string(), "plugin was stopped at its deadline of 50 ms");
    assert_eq!(figures(&engine, "test").reused, 1);
}

#[tokio::test]
async fn no_instance_serves_another_revision_or_other_limits() {
    let engine = Engine::new().unwrap();
    let old = reused(&engine, guest::REMEMBERS).await;
    assert_eq!(called(&old).await, "ok");
    let limits = Limits { deadline: Some(Duration::from_secs(5)), ..Limits::default() };
    let limited = old.with_limits(limits);
    assert_eq!(called(&limited).await, "ok");
    let new = named(&engine, "test", &Guest::new().reuse().version("2").reconcile(guest::REMEMBERS), limits).await;
    assert_eq!(called(&new).await, "ok");
    assert_eq!(figures(&engine, "test").alive, 3);
    drop((old, limited));
    assert_eq!((figures(&engine, "test").alive, figures(&engine, "test").kept), (1, 1));
}

#[tokio::test]
async fn administrator_can_forbid_reuse() {
    let engine = Engine::new().unwrap();
    let limits = Limits { reuse: false, ..Limits::default() };
    let revision = named(&engine, "test", &Guest::new().reuse().reconcile(guest::REMEMBERS), limits).await;
    assert_eq!([called(&revision).await, called(&revision).await], ["ok", "ok"]);
    assert_eq!(figures(&engine, "test").alive, 0);
    let allowed = revision.with_limits(Limits::default());
    assert_eq!([called(&allowed).await, called(&allowed).await], ["ok", "trap"]);
}

#[tokio::test(start_paused = true)]
async fn idle_instance_ends_after_a_minute() {
    let engine = Engine::new().unwrap();
    let revision = reused(&engine, &guest::at_first("", "")).await;
    let alive = || figures(&engine, "test").alive;
    for _ in 0..2 {
        assert_eq!(called(&revision).await, "ok");
        advance(Duration::from_secs(59)).await;
        engine.drop_idle();
        assert_eq!(alive(), 1);
    }
    assert_eq!(figures(&engine, "test").reused, 1);
    advance(Duration::from_secs(1)).await;
    engine.drop_idle();
    assert_eq!(alive(), 0);
}

#[tokio::test(start_paused = true)]
async fn idle_instance_does_not_serve_after_a_minute_though_nobody_has_ended_it() {
    let engine = Engine::new().unwrap();
    let revision = reused(&engine, guest::REMEMBERS).await;
    assert_eq!(called(&revision).await, "ok");
    advance(Duration::from_secs(60)).await;
    assert_eq!(called(&revision).await, "ok");
    assert_eq!((figures(&engine, "test").alive, figures(&engine, "test").reused), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn idle_plugin_holds_neither_instances_nor_code() {
    let engine = Engine::new().unwrap();
    let revision = reused(&engine, &guest::at_first("", "")).await;
    assert_eq!(called(&revision).await, "ok");
    engine.unmap_idle();
    // A call of a reused instance keeps its code mapped.
    assert_eq!(called(&revision).await, "ok");
    engine.unmap_idle();
    assert_eq!((engine.figures().mapped, figures(&engine, "test").reused), (1, 1));
    advance(Duration::from_secs(60)).await;
    engine.drop_idle();
    engine.unmap_idle();
    assert_eq!((engine.figures().mapped, figures(&engine, "test").alive), (0, 0));
    assert_eq!(called(&revision).await, "ok");
}

#[tokio::test]
async fn kept_instances_are_bounded_for_each_plugin_and_for_all() {
    let engine = Engine::new().unwrap();
    let guest = Guest::new().reuse().reconcile(guest::CLIENT_GET);
    let imports = Arc::new(Fake { late: true, ..Fake::default() });
    let mut revisions = Vec::new();
    for number in 0..10 {
        let revision = named(&engine, &format!("test-{number}"), &guest, Limits::default()).await;
        let calls = futures::future::join_all((0..20).map(|_| called_with(&revision, &imports))).await;
        assert_eq!(calls, ["ok"; 20]);
        revisions.push(revision);
    }
    let kept: Vec<_> = engine.instances().iter().map(|(_, of)| (of.kept, of.alive)).collect();
    assert_eq!(kept, [vec![(16, 16); 8], vec![(0, 0); 2]].concat());
    // Without a permit, calls are served by fresh instances.
    assert_eq!(called_with(revisions.last().unwrap(), &imports).await, "ok");
    revisions.remove(0);
    assert_eq!(called_with(revisions.last().unwrap(), &imports).await, "ok");
    assert_eq!(figures(&engine, "test-9").kept, 1);
}
