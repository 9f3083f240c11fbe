//! The sandbox's promises, each shown with a guest that breaks them if it can.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pilothouse_core::field::FieldPath;
use pilothouse_core::key::{Key, TypeMeta};
use pilothouse_core::manifest::{
    Controller, DEFAULT_RESYNC, Index, Manifest, MappedWatch, Mapping, Permission, Policy, Verb, Watch,
};
use pilothouse_core::object::Subresource;

use super::testing::{self as guest, Answer, Fake, Guest, apple, request};
use super::*;

mod ahead;
mod reuse;

async fn load(guest: &Guest) -> Revision {
    load_with(guest, Limits::default()).await.unwrap()
}

async fn load_with(guest: &Guest, limits: Limits) -> Result<Revision, DescribeError> {
    let linked = Engine::new().unwrap().compile(&guest.file()).unwrap().link().unwrap();
    linked.describe(PluginName::new("test").unwrap(), "{}".into(), limits).await
}

async fn call(guest: &Guest) -> Result<Result<Outcome, Failure>, CallError> {
    load(guest).await.reconcile(Arc::new(Fake::default()), request()).await
}

/// Milliseconds that a call of this has: few where it never returns. Others have enough on a machine that has other things to do.
fn patience(body: &str) -> u32 {
    if body == guest::LOOP { 100 } else { 60_000 }
}

/// Everything that a person is told about an error.
fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[tokio::test]
async fn describe_gives_the_manifest() {
    let (apples, maps) = (TypeMeta::new("stable.example.com/v1", "MyApple"), TypeMeta::new("v1", "ConfigMap"));
    let watch = |of: &TypeMeta| Watch::all(of.clone());
    let (secrets, pods) = (TypeMeta::new("v1", "Secret"), TypeMeta::new("v1", "Pod"));
    let permission = |of: &TypeMeta, subresource, verbs: &[Verb]| Permission {
        of: of.clone(),
        subresource,
        verbs: verbs.iter().copied().collect(),
        namespaces: Vec::new(),
        names: Vec::new(),
    };
    let all = [Verb::Read, Verb::Apply, Verb::Delete];
    let guest = Guest::new()
        .timeout_ms(1500)
        .maps("v1", "Secret", guest::Mapping::Index("secrets"))
        .maps("v1", "Secret", guest::Mapping::Plugin)
        .map(guest::MAPS)
        .reads("v1", "Pod")
        .observes("v1", "Pod")
        .observe(guest::TAKES)
        .index("secrets", ("stable.example.com/v1", "MyApple"), "spec.secretName");
    let mapped = |mapping| MappedWatch { watch: watch(&secrets), mapping };
    let revision = load(&guest).await;
    assert_eq!(
        **revision.manifest(),
        Manifest {
            version: "1.0.0".to_owned(),
            description: "A plugin for tests.".to_owned(),
            controllers: vec![Controller {
                name: "apples".to_owned(),
                for_: watch(&apples),
                owns: vec![watch(&maps)],
                watches: vec![mapped(Mapping::Index("secrets".to_owned())), mapped(Mapping::Plugin)],
                reads: vec![watch(&pods)],
                max_concurrency: 1,
                resync: Some(DEFAULT_RESYNC),
                timeout: Duration::from_millis(1500),
            }],
            indexes: vec![Index {
                name: "secrets".to_owned(),
                of: apples.clone(),
                path: FieldPath::parse("spec.secretName").unwrap(),
            }],
            observes: vec![watch(&pods)],
            permissions: vec![
                permission(&apples, None, &all),
                permission(&maps, None, &all),
                permission(&secrets, None, &all),
                permission(&secrets, None, &all),
                permission(&pods, None, &all),
                permission(&pods, None, &all),
                permission(&apples, Some(Subresource::Status), &[Verb::Apply]),
            ],
            crds: Vec::new(),
            config_schema: None,
            instances: Policy::Fresh,
        }
    );
    assert_eq!(revision.deadline("apples"), Some(Duration::from_millis(1500)));
    let short = Limits { deadline: Some(Duration::from_millis(20)), ..Limits::default() };
    assert_eq!(revision.with_limits(short).deadline("apples"), Some(Duration::from_millis(20)));
    let long = Limits { deadline: Some(Duration::from_secs(3600)), ..Limits::default() };
    assert_eq!(revision.with_limits(long).deadline("apples"), Some(Duration::from_millis(1500)));
    assert_eq!(revision.deadline("pears"), None);
}

#[tokio::test]
async fn module_and_component_of_one_plugin_are_alike() {
    let engine = Engine::new().unwrap();
    let guest = Guest::new().reconcile(guest::LOG_AND_TRAP);
    for file in [guest.file(), guest.component()] {
        let linked = engine.compile(&file).unwrap().link().unwrap();
        assert_eq!(linked.digest(), Digest::of(&file));
        assert_eq!(linked.size(), file.len());
        // What it does not use it does not import.
        assert_eq!(linked.imports(), ["pilothouse:plugin/types@0.1.0", "pilothouse:plugin/log@0.1.0"]);
    }
}

#[tokio::test]
async fn outcome_comes_out_as_the_guest_gave_it() {
    let guest = Guest::new().answer(Answer::Children {
        children: vec![("{\"a\":1}".to_owned(), false), ("{\"b\":2}".to_owned(), true)],
        status: Some("{\"available\":2}".to_owned()),
        requeue_after: Some(90_000),
    });
    let outcome = call(&guest).await.unwrap().unwrap();
    let child = |object: &str, adopt| Child { object: object.to_owned(), adopt };
    assert_eq!(
        outcome,
        Outcome {
            children: Children::Desired(vec![child("{\"a\":1}", false), child("{\"b\":2}", true)]),
            status: Some("{\"available\":2}".to_owned()),
            requeue_after: Some(Duration::from_secs(90)),
        }
    );
    let unchanged = Outcome { children: Children::Unchanged, status: None, requeue_after: None };
    assert_eq!(call(&Guest::new()).await.unwrap(), Ok(unchanged));
}

#[tokio::test]
async fn failure_comes_out_as_the_guest_gave_it_with_its_message_bounded() {
    let failure = |message: String| Answer::Failure { message, terminal: true, status: Some("{}".to_owned()) };
    let given = call(&Guest::new().answer(failure("no such colour".to_owned()))).await.unwrap().unwrap_err();
    assert_eq!(given, Failure { message: "no such colour".to_owned(), terminal: true, status: Some("{}".to_owned()) });
    let given = call(&Guest::new().answer(failure("x".repeat(20_000)))).await.unwrap().unwrap_err();
    assert_eq!(given.message.len(), MAX_MESSAGE);
}

#[tokio::test]
async fn busy_loop_is_stopped_by_its_deadline_while_another_call_on_the_same_thread_goes_on() {
    let busy = async |deadline| {
        let busy = load(&Guest::new().timeout_ms(deadline).reconcile(guest::LOOP)).await;
        busy.reconcile(Arc::new(Fake::default()), request()).await
    };
    let good = load(&Guest::new()).await;
    // One that gives way only at its end would be over after the first.
    let endless = tokio::spawn(busy(60_000));
    for _ in 0..10 {
        good.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
        // A timer fires too: it is not only the guests that share the thread.
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
async fn guest_that_takes_too_much_memory_costs_itself_one_call() {
    let guest = Guest::new().reconcile(guest::HOG);
    let limits = Limits { memory: 8 << 20, ..Limits::default() };
    let revision = load_with(&guest, limits).await.unwrap();
    for _ in 0..2 {
        let error = revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), ("memory", "plugin hit its memory limit of 8 MiB"));
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
    assert!(futures::poll!(&mut waits).is_pending());
    assert!(held() > 1 << 20);
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
async fn each_host_call_is_told_log_and_clock_too() {
    for (body, calls) in [
        (guest::LOG_300, vec![Import::LogWrite; 300]),
        (guest::CLOCK_MOVES, vec![Import::ClockNow; 2]),
        (&guest::reads_again(3), vec![Import::CacheGet; 3]),
    ] {
        let imports = Arc::new(Fake::default());
        load(&Guest::new().reconcile(body)).await.reconcile(imports.clone(), request()).await.unwrap().unwrap();
        assert_eq!(*imports.calls.lock(), calls);
    }
}

#[tokio::test]
async fn what_is_exchanged_with_the_host_in_one_call_is_bounded() {
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
async fn guest_that_begins_with_too_much_memory_is_told_so() {
    let limits = Limits { memory: 8 << 20, ..Limits::default() };
    let error = load_with(&Guest::new().pages(129), limits).await.unwrap_err();
    assert_eq!(told(&error), "cannot call describe: plugin hit its memory limit of 8 MiB");
    load_with(&Guest::new().pages(128), limits).await.unwrap();
}

#[tokio::test]
async fn endless_recursion_overflows_the_guests_stack_and_no_other() {
    let error = call(&Guest::new().reconcile(guest::RECURSE)).await.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), ("stack", "plugin overflowed its stack"));
    assert!(error.backtrace()[0].contains("deep"), "{:?}", error.backtrace());
}

#[tokio::test]
async fn endless_recursion_may_end_where_the_stack_in_memory_does() {
    let said = |pages| {
        let guest = Guest::new().pages(pages).reconcile(guest::RECURSE_IN_MEMORY);
        async move { call(&guest).await.unwrap_err().to_string() }
    };
    assert_eq!(
        said(10).await,
        "plugin trapped: out of bounds memory access, perhaps as the stack in its memory is used up: it calls itself"
    );
    // At once: that is another mistake.
    assert_eq!(said(9).await, "plugin trapped: out of bounds memory access");
}

#[tokio::test]
async fn trap_tells_where_it_was_and_what_the_guest_said() {
    let error = call(&Guest::new().reconcile(guest::TRAP)).await.unwrap_err();
    assert_eq!(error.kind(), "trap");
    assert_eq!(error.to_string(), "plugin trapped: wasm `unreachable` instruction executed");
    assert!(error.backtrace()[0].contains("reconcile"), "{:?}", error.backtrace());

    let revision = load(&Guest::new().reconcile(guest::LOG_AND_TRAP)).await;
    let imports = Arc::new(Fake::default());
    let error = revision.reconcile(imports.clone(), request()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("plugin trapped: wasm `unreachable` instruction executed; it said: {}", guest::SAID)
    );
    let line = LogLine { level: Level::Error, message: guest::SAID.to_owned(), fields: Vec::new() };
    assert_eq!(*imports.lines.lock(), [line]);
}

#[tokio::test]
async fn answer_that_is_not_of_the_contract_is_refused() {
    let error = call(&Guest::new().answer(Answer::Nonsense)).await.unwrap_err();
    assert_eq!(error.kind(), "answer", "{error}");
    // Outside the memory.
    let error = call(&Guest::new().reconcile("(i32.const -8)")).await.unwrap_err();
    assert_eq!(error.kind(), "answer", "{error}");
}

#[tokio::test]
async fn text_that_cannot_be_read_is_told_from_traps_and_other_answers() {
    // An import's argument: where it was called is known.
    let error = call(&Guest::new().reconcile(guest::LOG_GARBLED)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        ("decode", "plugin handed over what cannot be read: invalid utf-8 sequence of 1 bytes from index 0")
    );
    // The innermost frame is that of what calls the import.
    assert!(error.backtrace().iter().any(|frame| frame.contains("reconcile")), "{:?}", error.backtrace());

    let child =
        |text: &str| Answer::Children { children: vec![(text.to_owned(), false)], status: None, requeue_after: None };
    for (guest, why) in [
        (
            Guest::new().answer(Answer::Garbled).reconcile(&guest::garbles()),
            "invalid utf-8 sequence of 1 bytes from index 0",
        ),
        (Guest::new().answer(child("[]")), "child 0 is no JSON object: the text is not an object at byte 0"),
    ] {
        let error = call(&guest).await.unwrap_err();
        let told = format!("plugin handed over what cannot be read: {why}");
        assert_eq!((error.kind(), error.to_string(), error.backtrace()), ("decode", told, &[][..]));
    }
}

#[tokio::test]
async fn many_children_in_the_same_place_do_not_multiply_in_the_host() {
    // 2000 × 64 kB are 128 MB in the host, out of five pages of the guest's memory.
    let error =
        call(&Guest::new().answer(Answer::Aliased { children: 2000, bytes: 65_536 }).pages(5)).await.unwrap_err();
    assert_eq!(error.kind(), "answer", "{error}");
    let error = call(&Guest::new().answer(Answer::Aliased { children: 10_001, bytes: 2 }).pages(5)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "plugin gave an unusable answer: 10001 children are more than the 10000 that an outcome may hold"
    );
}

/// A new object, as `map` and `observe` see it.
fn news() -> News {
    let apple = apple();
    News { of: apple.type_meta().clone(), old: None, new: Some(apple), merged: 1, missed: false }
}

#[tokio::test]
async fn manifest_that_needs_an_export_is_refused_without_it() {
    let guest = Guest::new().maps("v1", "Secret", guest::Mapping::Plugin).observes("v1", "Pod");
    let told = |guest: Guest| async move { load_with(&guest, Limits::default()).await.map_err(|error| told(&error)) };
    let mapper = "controllers[0].watches[0].mapping: asks the plugin, and the component does not export \
                  pilothouse:plugin/mapper@0.1.0: export it, or choose another mapping";
    let observer = "observes: is for the plugin's observer, and the component does not export \
                    pilothouse:plugin/observer@0.1.0: export it, or observe nothing";
    let cannot = "the plugin's manifest cannot be used";
    assert_eq!(told(guest.clone()).await.unwrap_err(), format!("{cannot}\n  {mapper}\n  {observer}"));
    assert_eq!(told(guest.clone().observe(guest::TAKES)).await.unwrap_err(), format!("{cannot}: {mapper}"));
    assert_eq!(told(guest.clone().map(guest::MAPS)).await.unwrap_err(), format!("{cannot}: {observer}"));
    let revision = told(guest.map(guest::MAPS).observe(guest::TAKES)).await.unwrap();
    let exports = ["controller", "mapper", "observer"].map(|name| format!("pilothouse:plugin/{name}@0.1.0"));
    assert_eq!(revision.linked().exports(), exports);
}

#[tokio::test]
async fn mapper_gives_keys_or_says_why_not() {
    let called = |body: &str| {
        let guest = Guest::new().timeout_ms(patience(body)).map(body);
        async move { load(&guest).await.map(Arc::new(Fake::default()), "apples", &[news(), news()]).await }
    };
    assert_eq!(called(guest::MAPS).await.unwrap(), Ok(vec![Key::new(Some("default"), "mapped")]));
    assert_eq!(called(guest::MISTAKEN).await.unwrap(), Err(guest::MISTAKE.to_owned()));
    assert_eq!(called(guest::TRAP).await.unwrap_err().kind(), "trap");
    assert_eq!(called(guest::LOOP).await.unwrap_err().kind(), "deadline");
    let revision = load(&Guest::new()).await;
    let error = revision.map(Arc::new(Fake::default()), "apples", &[news()]).await.unwrap_err();
    assert_eq!(error.to_string(), "plugin does not export mapper");
}

#[tokio::test]
async fn observer_takes_changes_or_says_why_not() {
    let called = |body: &str| {
        let guest = Guest::new().observe(body);
        let limits = Limits { deadline: Some(Duration::from_millis(patience(body).into())), ..Limits::default() };
        async move { load(&guest).await.with_limits(limits).observe(Arc::new(Fake::default()), &[news()]).await }
    };
    assert_eq!(called(guest::TAKES).await.unwrap(), Ok(()));
    assert_eq!(called(guest::MISTAKEN).await.unwrap(), Err(guest::MISTAKE.to_owned()));
    assert_eq!(called(guest::RECURSE).await.unwrap_err().kind(), "stack");
    assert_eq!(called(guest::LOOP).await.unwrap_err().kind(), "deadline");
}

#[tokio::test]
async fn unknown_controller_is_said() {
    let revision = load(&Guest::new()).await;
    let request = Request { controller: "pears".into(), ..request() };
    let error = revision.reconcile(Arc::new(Fake::default()), request).await.unwrap_err();
    assert_eq!(error.to_string(), "plugin has no controller \"pears\"");
}

#[tokio::test]
async fn clock_stands_still_during_a_call() {
    let guest = Guest::new().reconcile(guest::CLOCK_MOVES);
    let revision = load(&guest).await;
    let imports = Arc::new(Fake::default());
    for call in 1..=2 {
        revision.reconcile(imports.clone(), request()).await.unwrap().unwrap();
        assert_eq!(imports.time.load(Ordering::Relaxed), call);
    }
}

#[tokio::test]
async fn guest_reads_the_cache() {
    let revision = load(&Guest::new().reconcile(guest::CACHE_HAS)).await;
    let full = Arc::new(Fake { cached: Some(apple()), ..Fake::default() });
    revision.reconcile(full, request()).await.unwrap().unwrap();
    let error = revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap_err();
    assert_eq!(error.kind(), "trap");
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

#[tokio::test]
async fn describe_that_loops_traps_or_calls_imports_is_refused() {
    for (body, said) in [
        (guest::LOOP, "cannot call describe: plugin was stopped at its deadline of 100 ms".to_owned()),
        (guest::TRAP, "cannot call describe: plugin trapped: wasm `unreachable` instruction executed".to_owned()),
        (guest::RECURSE, "cannot call describe: plugin overflowed its stack".to_owned()),
        (
            guest::CLIENT_GET,
            "cannot call describe: plugin called client.get from describe, where no import may be called".to_owned(),
        ),
        (
            guest::CACHE_HAS,
            "cannot call describe: plugin called cache.get from describe, where no import may be called".to_owned(),
        ),
        (
            guest::CLOCK_MOVES,
            "cannot call describe: plugin called clock.now from describe, where no import may be called".to_owned(),
        ),
        (
            guest::LOG_AND_TRAP,
            format!(
                "cannot call describe: plugin called log.write from describe, where no import may be called; it said: {}",
                guest::SAID
            ),
        ),
    ] {
        let limits = Limits { deadline: Some(Duration::from_millis(patience(body).into())), ..Limits::default() };
        let error = load_with(&Guest::new().describe(body), limits).await.unwrap_err();
        assert_eq!(told(&error), said);
    }
}

#[tokio::test]
async fn plugin_may_refuse_its_configuration() {
    let linked = Engine::new().unwrap().compile(&Guest::new().describe(guest::PICKY).file()).unwrap().link().unwrap();
    let described = |config: &str| linked.describe(PluginName::new("test").unwrap(), config.into(), Limits::default());
    assert_eq!(&**described("{}").await.unwrap().config(), "{}");
    let error = described("{\"colour\":7}").await.unwrap_err();
    assert_eq!(told(&error), "the plugin refuses its configuration: colour: not a colour");
}

#[tokio::test]
async fn manifest_with_a_bad_name_is_refused() {
    let error = load_with(&Guest::new().controller("My Apples"), Limits::default()).await.unwrap_err();
    assert!(matches!(&error, DescribeError::Manifest(invalid) if invalid.problems.len() == 1), "{error}");
}

#[test]
fn file_that_is_no_plugin_is_refused_with_what_it_is() {
    let engine = Engine::new().unwrap();
    let said = |file: &[u8]| match engine.compile(file).and_then(|compiled| compiled.link()) {
        Ok(_) => panic!("took {}", file.escape_ascii()),
        Err(error) => error.to_string(),
    };
    let component = |text: &str| said(&wat::parse_str(text).unwrap());
    let unlike = "the component does not fit the contract pilothouse:plugin@0.1.0: ";
    let lacking = "the component does not export pilothouse:plugin/controller@0.1.0: ";
    assert_eq!(said(b""), "the file is empty");
    assert_eq!(said(b"hello"), "the file is not WebAssembly: it begins with \"hello\"");
    for damaged in
        [&Guest::new().file()[..300], &Guest::new().component()[..300], b"\0asm\x01\0\0\0\xff\xff\xff\xff\xff"]
    {
        let said = said(damaged);
        assert!(said.starts_with("cannot compile: "), "{said}");
    }
    assert_eq!(
        said(&Guest::new().module()),
        "the file is a plain core module without component metadata: build it against `wit/` with wit-bindgen, or make it a \
         component with `wasm-tools component new`"
    );
    assert_eq!(component("(component)"), format!("{lacking}it exports nothing"));
    assert_eq!(
        component(r#"(component (instance $i) (export "wasi:cli/run@0.2.0" (instance $i)))"#),
        format!("{lacking}it exports wasi:cli/run@0.2.0")
    );
    assert_eq!(
        component(r#"(component (instance $i) (export "pilothouse:plugin/controller@0.2.0" (instance $i)))"#),
        format!(
            "{lacking}it was built for another version of the contract, and exports pilothouse:plugin/controller@0.2.0"
        )
    );
    assert_eq!(
        component(
            r#"(component
                (import "wasi:cli/environment@0.2.0" (instance))
                (import "pilothouse:plugin/events@0.1.0" (instance)))"#
        ),
        "the component imports what this host does not offer: wasi:cli/environment@0.2.0, pilothouse:plugin/events@0.1.0; a \
         plugin may import cache, client, clock, log, types of pilothouse:plugin@0.1.0 and nothing else"
    );
    // The rest of these two is the engine's.
    let empty = component(r#"(component (instance $i) (export "pilothouse:plugin/controller@0.1.0" (instance $i)))"#);
    assert!(empty.starts_with(unlike) && empty.contains("`describe`"), "{empty}");
    let clock = component(
        r#"(component
            (import "pilothouse:plugin/clock@0.1.0" (instance (export "now" (func (result string)))))
            (instance $i) (export "pilothouse:plugin/controller@0.1.0" (instance $i)))"#,
    );
    assert!(clock.starts_with(unlike) && clock.contains("`now` has the wrong type"), "{clock}");
}

#[test]
fn no_prefix_of_a_plugin_is_taken_and_none_panics() {
    let engine = Engine::new().unwrap();
    for file in [Guest::new().file(), Guest::new().component()] {
        for end in (0..file.len()).step_by(97) {
            let taken = engine.compile(&file[..end]).and_then(|compiled| compiled.link());
            assert!(taken.is_err(), "{end} of {} bytes", file.len());
        }
    }
}

#[test]
fn no_single_damaged_byte_panics() {
    let engine = Engine::new().unwrap();
    for file in [Guest::new().file(), Guest::new().component()] {
        for at in (0..file.len()).step_by(61) {
            let mut damaged = file.clone();
            damaged[at] ^= 0x55;
            // Some damage is not seen, in a name for one; what is seen is an error.
            let _ = engine.compile(&damaged).and_then(|compiled| compiled.link());
        }
    }
}

#[test]
fn call_can_move_between_threads() {
    fn send<T: Send>(_: &T) {}
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let revision = runtime.block_on(load(&Guest::new()));
    send(&revision.reconcile(Arc::new(Fake::default()), request()));
    send(&revision.linked().describe(revision.plugin().clone(), "{}".into(), Limits::default()));
}

/// Nobody calls it any more.
fn let_go(engine: &Engine) {
    engine.unmap_idle();
    assert_eq!(engine.figures().mapped, 1, "it was called of late");
    engine.unmap_idle();
    assert_eq!(engine.figures().mapped, 0);
}

#[tokio::test]
async fn idle_plugin_holds_no_code_and_wakes_at_the_next_call() {
    let engine = Engine::new().unwrap();
    let linked = engine.compile(&Guest::new().file()).unwrap().link().unwrap();
    let revision = linked.describe(PluginName::new("test").unwrap(), "{}".into(), Limits::default()).await.unwrap();
    for woken in 1..3 {
        let_go(&engine);
        for _ in 0..2 {
            revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
            assert_eq!(engine.figures().mapped, 1);
        }
        assert_eq!(engine.instances()[0].1.mapped, woken);
    }
    let_go(&engine);
}

#[tokio::test]
async fn call_in_flight_keeps_its_code() {
    let engine = Engine::new().unwrap();
    let linked = engine.compile(&Guest::new().timeout_ms(100).reconcile(guest::LOOP).file()).unwrap().link().unwrap();
    let revision = linked.describe(PluginName::new("test").unwrap(), "{}".into(), Limits::default()).await.unwrap();
    let call = revision.reconcile(Arc::new(Fake::default()), request());
    let unmapped = async {
        engine.unmap_idle();
        engine.unmap_idle();
        engine.figures().mapped
    };
    let (called, mapped) = tokio::join!(call, unmapped);
    assert_eq!((called.unwrap_err().kind(), mapped), ("deadline", 0));
}

#[tokio::test]
async fn same_file_is_loaded_once_under_however_many_names() {
    let engine = Engine::new().unwrap();
    let file = PluginFile::new(Guest::new().file());
    let (one, two) = tokio::join!(engine.load(file.clone()), engine.load(file.clone()));
    let (one, two) = (one.unwrap().link().unwrap(), two.unwrap().link().unwrap());
    let Figures { compiled, loaded, mapped, .. } = engine.figures();
    assert_eq!((compiled, loaded, mapped), (1, 1, 1));
    drop((one, two));
    assert_eq!(engine.figures().loaded, 0);
}

#[tokio::test]
async fn more_calls_than_the_pool_has_slots_are_all_served() {
    let revision = load(&Guest::new().reconcile(guest::CLIENT_GET)).await;
    let imports = Arc::new(Fake { silent: true, ..Fake::default() });
    let calls = futures::future::join_all((0..300).map(|_| revision.reconcile(imports.clone(), request())));
    // Each waits for the API server, with its instance.
    let all_wait = async {
        while imports.requests.load(Ordering::Relaxed) < 300 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        called = calls => panic!("{called:?}"),
        () = all_wait => {}
    }
    revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
}

#[tokio::test]
async fn component_that_fits_no_slot_runs_without_one() {
    // More memories than a slot has.
    let revision = load(&Guest::new().memories(4)).await;
    revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
}

#[tokio::test]
async fn memory_of_a_slot_is_clean_for_the_next_call() {
    let revision = load(&Guest::new().reconcile(guest::REMEMBERS)).await;
    for _ in 0..3 {
        revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
    }
}
