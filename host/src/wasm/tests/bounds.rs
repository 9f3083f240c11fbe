//! The limits of one call, and the end of a call that exceeds them or is dropped.

use super::*;
use crate::testing::soon;

#[tokio::test]
async fn busy_loop_is_stopped_by_its_deadline_while_another_call_on_the_same_thread_goes_on() {
    let busy = async |deadline| {
        let busy = load(&Guest::new().timeout_ms(deadline).reconcile(guest::LOOP)).await;
        let error = busy.reconcile(Arc::new(Fake::default()), request()).await;
        assert!(busy.linked().engine.instances()[0].1.computed > Duration::ZERO);
        error
    };
    let good = load(&Guest::new()).await;
    // Without yielding, this one would end before the other starts.
    let endless = tokio::spawn(busy(60_000));
    for _ in 0..10 {
        good.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
        // Timers run too: guests do not share the thread only among themselves.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!endless.is_finished());
    endless.abort();
    let error = busy(300).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        ("deadline", "plugin was stopped at its deadline of 300 ms")
    );
    assert!(error.backtrace()[0].contains("reconcile"), "{:?}", error.backtrace());
}

#[tokio::test(start_paused = true)]
async fn guest_that_waits_for_the_api_server_is_stopped_by_its_deadline() {
    let guest = Guest::new().timeout_ms(2000).reconcile(guest::CLIENT_GET);
    let revision = load(&guest).await;
    let silent = Arc::new(Fake { silent: true, ..Fake::default() });
    let began = tokio::time::Instant::now();
    let error = revision.reconcile(silent.clone(), request()).await.unwrap_err();
    assert_eq!(error.kind(), "deadline");
    assert!((Duration::from_secs(2)..Duration::from_millis(2100)).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(silent.requests.load(Ordering::Relaxed), 1);
    // The paused clock does not advance while the guest computes.
    assert_eq!(revision.linked().engine.instances()[0].1.computed, Duration::ZERO);
}

/// The only thread is blocked for longer than the budget, again and again, while the call computes.
#[tokio::test]
async fn call_may_wait_for_its_turns_as_long_as_it_must() {
    let slow = load(&Guest::new().timeout_ms(2000).reconcile(&format!("{} {}", guest::SLOWLY, guest::ANSWER))).await;
    let others = tokio::spawn(async {
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(500));
            tokio::task::yield_now().await;
        }
    });
    slow.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
    others.await.unwrap();
}

#[tokio::test]
async fn dropped_call_is_over() {
    let revision = load(&Guest::new().timeout_ms(60_000).reconcile(guest::LOOP)).await;
    let imports = Arc::new(Fake::default());
    let call = revision.reconcile(imports.clone(), request());
    tokio::time::timeout(Duration::from_millis(20), call).await.unwrap_err();
    assert_eq!(Arc::strong_count(&imports), 1);
}

#[tokio::test]
async fn epoch_stands_still_while_all_calls_wait() {
    let revision = load(&Guest::new().reconcile(guest::GROWS_AND_ASKS)).await;
    let imports = Fake { silent: true, ..Fake::default() };
    let mut waits = Box::pin(revision.reconcile(Arc::new(imports), request()));
    let engine = &revision.linked().engine;
    let rests = async {
        while !engine.is_at_rest() || engine.instances()[0].1.memory <= 1 << 20 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _answered = &mut waits => panic!("nobody answers"),
        () = soon("the epoch stands still", rests) => {}
    }
}

#[tokio::test]
async fn dropped_description_is_over() {
    let guest = Guest::new().describe(guest::LOOP);
    let linked = Engine::new().unwrap().compile(&guest.file()).unwrap().link().await.unwrap();
    let name = PluginName::new("test").unwrap();
    let mut describing = Box::pin(linked.describe(name, "{}".into(), Limits::default()));
    // It yields when the epoch advances.
    assert!(futures::poll!(&mut describing).is_pending());
    let instances = linked.engine.instances();
    assert_eq!((instances.len(), instances[0].1.alive), (1, 1));
    drop(describing);
    assert_eq!(linked.engine.instances(), []);
}

#[tokio::test]
async fn guest_that_takes_too_much_memory_costs_itself_one_call() {
    let guest = Guest::new().reconcile(guest::HOG);
    let limits = Limits { memory: 8 << 20, ..Limits::default() };
    let revision = load_with(&guest, limits).await.unwrap();
    for _ in 0..2 {
        let error = revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), ("memory", "plugin hit its memory limit of 8 MiB"));
        assert!(error.backtrace()[0].contains("reconcile"), "{:?}", error.backtrace());
    }
}

#[tokio::test]
async fn instances_of_one_plugin_share_a_memory_limit() {
    let limits = Limits { memory: 2 << 20, total_memory: 2 << 20, ..Limits::default() };
    let revision = load_with(&Guest::new().reconcile(guest::GROWS_AND_ASKS), limits).await.unwrap();
    let called = |silent| revision.reconcile(Arc::new(Fake { silent, ..Fake::default() }), request());
    let held = || revision.linked().engine.instances()[0].1.memory;
    assert_eq!(held(), 0);

    let mut waits = Box::pin(called(true));
    // It yields when the epoch advances, which may be before it has grown.
    while held() <= 1 << 20 {
        assert!(futures::poll!(&mut waits).is_pending());
    }
    let error = called(false).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        ("memory", "plugin's instances together hit their memory limit of 2 MiB")
    );
    drop(waits);
    assert_eq!(held(), 0);
    called(false).await.unwrap().unwrap();
}

#[tokio::test]
async fn guest_that_takes_too_large_a_table_costs_itself_one_call() {
    let revision = load(&Guest::new().reconcile(guest::TABULATE)).await;
    for _ in 0..2 {
        let error = revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            ("table", "plugin hit its limit of 100000 table elements")
        );
        assert!(error.backtrace()[0].contains("reconcile"), "{:?}", error.backtrace());
    }
}

#[tokio::test]
async fn host_calls_of_one_call_are_bounded() {
    let limits = Limits { host_calls: 50, ..Limits::default() };
    let called = |times| {
        let guest = Guest::new().reconcile(&guest::looks(times));
        async move { load_with(&guest, limits).await.unwrap().reconcile(Arc::new(Fake::default()), request()).await }
    };
    called(50).await.unwrap().unwrap();
    let error = called(51).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        ("host-calls", "plugin called the host more than 50 times in one call")
    );
    assert!(error.backtrace()[0].contains("reconcile"), "{:?}", error.backtrace());
}

#[tokio::test]
async fn bytes_exchanged_with_the_host_in_one_call_are_bounded() {
    let limits = Limits { host_bytes: 1 << 20, ..Limits::default() };
    let fit = guest::reads_that_fit(1 << 20);
    let called = |times| {
        let guest = Guest::new().reconcile(&guest::reads_again(times));
        let imports = Arc::new(Fake { cached: Some(apple()), ..Fake::default() });
        async move { load_with(&guest, limits).await.unwrap().reconcile(imports, request()).await }
    };
    called(fit).await.unwrap().unwrap();
    let error = called(fit + 1).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        ("host-calls", "plugin exchanged more than 1 MiB with the host in one call")
    );
}

#[tokio::test]
async fn a_guest_that_begins_with_too_much_memory_fails_with_that_reason() {
    let limits = Limits { memory: 8 << 20, ..Limits::default() };
    let error = load_with(&Guest::new().pages(129), limits).await.unwrap_err();
    assert_eq!(told(&error), "cannot call describe: plugin hit its memory limit of 8 MiB");
    load_with(&Guest::new().pages(128), limits).await.unwrap();
}

#[tokio::test]
async fn endless_recursion_overflows_the_guests_stack_and_no_other() {
    let error = call(&Guest::new().reconcile(guest::RECURSE)).await.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), ("stack", "plugin overflowed its stack"));
    assert!(error.backtrace().iter().all(|frame| frame.contains("deep")), "{:?}", error.backtrace());
    assert_eq!(error.backtrace().len(), 10);
}

#[tokio::test]
async fn endless_recursion_may_end_where_the_stack_in_memory_does() {
    let said = |pages| {
        let guest = Guest::new().pages(pages).reconcile(guest::RECURSE_IN_MEMORY);
        async move { call(&guest).await.unwrap_err().to_string() }
    };
    assert_eq!(
        said(10).await,
        "plugin trapped: out of bounds memory access, perhaps because recursion used up its stack in linear memory"
    );
    // In the first frame, the reason is another one.
    assert_eq!(said(9).await, "plugin trapped: out of bounds memory access");
}

#[tokio::test]
async fn many_children_in_the_same_place_do_not_multiply_in_the_host() {
    // 2000 × 64 kB are 128 MB in the host, from five pages of guest memory.
    let error =
        call(&Guest::new().answer(Answer::Aliased { children: 2000, bytes: 65_536 }).pages(5)).await.unwrap_err();
    assert_eq!(error.to_string(), "plugin gave an unusable answer: handed more than 32 MiB to the host at once");
    let error = call(&Guest::new().answer(Answer::Aliased { children: 10_001, bytes: 2 }).pages(5)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "plugin gave an unusable answer: 10001 children are more than the 10000 that an outcome may hold"
    );
}

#[tokio::test]
async fn memories_of_a_component_are_bounded_though_they_are_empty() {
    load(&Guest::new().memories(8)).await.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
    let DescribeError::Call(error) = load_with(&Guest::new().memories(9), Limits::default()).await.unwrap_err() else {
        panic!("it is not called");
    };
    assert_eq!(error.kind(), "instantiate");
    assert!(error.to_string().contains("memory count too high at 9"), "{error}");
}

#[tokio::test]
async fn memory_for_globals_counts_as_the_plugins() {
    let limits = Limits { memory: 2 << 20, total_memory: 6 << 20, ..Limits::default() };
    let revision = load_with(&Guest::new().reconcile(guest::GROWS_AND_ASKS).globals(40_000), limits).await.unwrap();
    let held = || revision.linked().engine.instances()[0].1.memory;
    assert_eq!(held(), 0);
    let called = || revision.reconcile(Arc::new(Fake { silent: true, ..Fake::default() }), request());
    let mut first = Box::pin(called());
    // Its code is mapped first.
    while held() == 0 {
        assert!(futures::poll!(&mut first).is_pending());
        tokio::task::yield_now().await;
    }
    // Its globals count as well as its memory.
    assert!(held() > 40_000 * 64, "{}", held());
    // There is no room for another instance.
    let error = called().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        ("memory", "plugin's instances together hit their memory limit of 6 MiB")
    );
    drop(first);
    assert_eq!(held(), 0);
}

#[tokio::test]
async fn an_outcome_counts_as_the_plugins_memory_while_it_is_held() {
    let limits = Limits { memory: 2 << 20, total_memory: 2 << 20, ..Limits::default() };
    let revision = load_with(&Guest::new(), limits).await.unwrap();
    let status = Some(" ".repeat(1 << 20));
    let outcome = || {
        Ok(Outcome {
            children: Children::Unchanged,
            status: status.clone(),
            requeue_after: None,
            watches: None,
            events: Vec::new(),
        })
    };
    let held = || revision.linked().engine.instances()[0].1.memory;
    let before = held();
    let kept = [outcome(), outcome()].map(|outcome| revision.charge(&outcome).unwrap());
    assert_eq!(held() - before, 2 << 20);
    let failure = Failure { message: String::new(), terminal: false, status: status.clone(), events: Vec::new() };
    let error = revision.charge(&Err(failure)).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        ("memory", "plugin's instances together hit their memory limit of 2 MiB")
    );
    // Nor is there for this one.
    assert_eq!(revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap_err().kind(), "memory");
    drop(kept);
    assert_eq!(held(), before);
    revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
}

#[tokio::test]
async fn bytes_handed_to_the_host_at_once_are_bounded() {
    let error = call(&Guest::new().pages(520).reconcile(guest::LOG_32_MIB)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        ("host-calls", "plugin handed more than 32 MiB to the host at once")
    );
    assert!(error.backtrace().iter().any(|frame| frame.contains("reconcile")), "{:?}", error.backtrace());
}

#[tokio::test]
async fn log_of_one_call_is_bounded() {
    let revision = load(&Guest::new().reconcile(guest::LOG_300)).await;
    let imports = Arc::new(Fake::default());
    revision.reconcile(imports.clone(), request()).await.unwrap().unwrap();
    let lines = imports.lines.lock();
    assert_eq!(lines.len(), LogLine::MAX_LINES as usize + 1);
    let last = LogLine {
        level: Level::Warn,
        message: "plugin logged too many lines in one call".to_owned(),
        fields: vec![("dropped".to_owned(), "44".to_owned())],
    };
    assert_eq!(lines.last(), Some(&last));
}
