//! The sandbox's guarantees. Each is tested with a guest that tries to break it.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use pilothouse_core::{
    backlog::News,
    field::FieldPath,
    key::{Key, TypeMeta},
    manifest::{Controller, DEFAULT_RESYNC, Index, Manifest, MappedWatch, Mapping, Permission, Policy, Verb, Watch},
    object::Subresource,
};

use super::{
    testing::{self as guest, Answer, Fake, Guest, apple, request},
    *,
};
use crate::name::PluginName;

mod ahead;
mod bounds;
mod files;
mod fixtures;
mod reuse;
mod slots;
#[cfg(target_arch = "x86_64")]
mod tiers;
mod wasi;

async fn load(guest: &Guest) -> Revision {
    load_with(guest, Limits::default()).await.unwrap()
}

async fn load_with(guest: &Guest, limits: Limits) -> Result<Revision, DescribeError> {
    let linked = Engine::new().unwrap().compile(&guest.file()).unwrap().link().await.unwrap();
    linked.describe(PluginName::new("test").unwrap(), "{}".into(), limits).await
}

async fn call(guest: &Guest) -> Result<Result<Outcome, Failure>, CallError> {
    load(guest).await.reconcile(Arc::new(Fake::default()), request()).await
}

/// Returns the deadline in milliseconds for a guest: short if it never returns, and long otherwise, for a busy machine.
fn patience(body: &str) -> u32 {
    if body == guest::LOOP { 100 } else { 60_000 }
}

/// Returns an error with all its causes.
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
                finalizer: None,
            }],
            indexes: vec![Index {
                name: "secrets".to_owned(),
                of: apples.clone(),
                path: FieldPath::parse("spec.secretName").unwrap(),
            }],
            observes: vec![watch(&pods)],
            patterns: Vec::new(),
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
            http: Vec::new(),
            webhooks: Vec::new(),
            metrics: Vec::new(),
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
async fn outcome_comes_out_as_the_guest_gave_it() {
    let guest = Guest::new().answer(Answer::Children {
        children: vec![("{\"a\":1}".to_owned(), false), ("{\"b\":2}".to_owned(), true)],
        status: Some("{\"available\":2}".to_owned()),
        requeue_after: Some(90_000),
    });
    let outcome = call(&guest).await.unwrap().unwrap();
    let child = |object: &str, adopt| Child { object: object.to_owned(), adopt, replace: false };
    assert_eq!(
        outcome,
        Outcome {
            children: Children::Desired(vec![child("{\"a\":1}", false), child("{\"b\":2}", true)]),
            status: Some("{\"available\":2}".to_owned()),
            requeue_after: Some(Duration::from_secs(90)),
            watches: None,
            events: Vec::new(),
        }
    );
    let unchanged =
        Outcome { children: Children::Unchanged, status: None, requeue_after: None, watches: None, events: Vec::new() };
    assert_eq!(call(&Guest::new()).await.unwrap(), Ok(unchanged));
}

#[tokio::test]
async fn failure_comes_out_as_the_guest_gave_it_with_its_message_bounded() {
    let failure = |message: String| Answer::Failure { message, terminal: true, status: Some("{}".to_owned()) };
    let given = call(&Guest::new().answer(failure("no such colour".to_owned()))).await.unwrap().unwrap_err();
    let expected = Failure {
        message: "no such colour".to_owned(),
        terminal: true,
        status: Some("{}".to_owned()),
        events: Vec::new(),
    };
    assert_eq!(given, expected);
    let given = call(&Guest::new().answer(failure("x".repeat(20_000)))).await.unwrap().unwrap_err();
    assert_eq!(given.message.len(), MAX_MESSAGE);
}

#[tokio::test]
async fn every_host_call_is_counted_log_and_clock_included() {
    for (body, calls) in [
        (guest::LOG_300, vec![Import::Log(LogCall::Write); 300]),
        (guest::CLOCK_MOVES, vec![Import::Clock(ClockCall::Now); 2]),
        (guest::DRAWS_300, vec![Import::Random(RandomCall::Bytes)]),
        (&guest::reads_again(3), vec![Import::Cache(CacheCall::Get); 3]),
    ] {
        let imports = Arc::new(Fake::default());
        load(&Guest::new().reconcile(body)).await.reconcile(imports.clone(), request()).await.unwrap().unwrap();
        assert_eq!(*imports.calls.lock(), calls);
    }
}

#[tokio::test]
async fn a_trap_has_its_backtrace_and_the_guests_last_words() {
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
    // An address outside the memory.
    let error = call(&Guest::new().reconcile("(i32.const -8)")).await.unwrap_err();
    assert_eq!(error.kind(), "answer", "{error}");
}

#[tokio::test]
async fn unreadable_text_is_reported_apart_from_traps_and_other_answers() {
    // An argument of an import: the place of the call is known.
    let error = call(&Guest::new().reconcile(guest::LOG_GARBLED)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        ("decode", "plugin passed text that is not valid: invalid utf-8 sequence of 1 bytes from index 0")
    );
    // The innermost frame is the one that calls the import.
    assert!(error.backtrace().iter().any(|frame| frame.contains("reconcile")), "{:?}", error.backtrace());

    let child =
        |text: &str| Answer::Children { children: vec![(text.to_owned(), false)], status: None, requeue_after: None };
    for (guest, why) in [
        (
            Guest::new().answer(Answer::Garbled).reconcile(&guest::garbles()),
            "invalid utf-8 sequence of 1 bytes from index 0",
        ),
        (Guest::new().answer(child("[]")), "child 0 is not a JSON object: the text is not an object at byte 0"),
    ] {
        let error = call(&guest).await.unwrap_err();
        let told = format!("plugin passed text that is not valid: {why}");
        assert_eq!((error.kind(), error.to_string(), error.backtrace()), ("decode", told, &[][..]));
    }
}

/// Creates a new object, as `map` and `observe` see it.
fn news() -> News {
    let apple = apple();
    News { of: apple.type_meta().clone(), old: None, new: Some(apple), merged: 1, missed: false, initial: false }
}

#[tokio::test]
async fn manifest_that_needs_an_export_is_refused_without_it() {
    let guest = Guest::new().maps("v1", "Secret", guest::Mapping::Plugin).observes("v1", "Pod");
    let told = |guest: Guest| async move { load_with(&guest, Limits::default()).await.map_err(|error| told(&error)) };
    let mapper = "controllers[0].watches[0].mapping: needs pilothouse:plugin/mapper@0.1.0, which the component does not export: \
                  export it, or choose another mapping";
    let observer = "observes: needs pilothouse:plugin/observer@0.1.0, which the component does not export: \
                    export it, or observe nothing";
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
async fn an_unknown_controller_is_reported() {
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
async fn guest_that_draws_too_many_random_bytes_at_once_traps() {
    call(&Guest::new().reconcile(&guest::draws(65_536))).await.unwrap().unwrap();
    let error = call(&Guest::new().reconcile(&guest::draws(65_537))).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "plugin trapped: random.bytes gives at most 65536 bytes at once, and was asked for 65537"
    );
    assert!(!error.backtrace().is_empty(), "{error:?}");
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
async fn describe_that_loops_traps_or_calls_imports_is_refused() {
    for (body, said) in [
        (guest::LOOP, "cannot call describe: plugin was stopped at its deadline of 100 ms".to_owned()),
        (guest::TRAP, "cannot call describe: plugin trapped: wasm `unreachable` instruction executed".to_owned()),
        (guest::RECURSE, "cannot call describe: plugin overflowed its stack".to_owned()),
        (
            guest::CLIENT_GET,
            "cannot call describe: plugin called client.get from describe, where only `host` may be called".to_owned(),
        ),
        (
            guest::CACHE_HAS,
            "cannot call describe: plugin called cache.get from describe, where only `host` may be called".to_owned(),
        ),
        (
            guest::CLOCK_MOVES,
            "cannot call describe: plugin called clock.now from describe, where only `host` may be called".to_owned(),
        ),
        (
            guest::DRAWS_300,
            "cannot call describe: plugin called random.bytes from describe, where only `host` may be called"
                .to_owned(),
        ),
        (
            guest::LOG_AND_TRAP,
            format!(
                "cannot call describe: plugin called log.write from describe, where only `host` may be called; it said: {}",
                guest::SAID
            ),
        ),
    ] {
        let limits = Limits { deadline: Some(Duration::from_millis(patience(body).into())), ..Limits::default() };
        let error = load_with(&Guest::new().describe(body), limits).await.unwrap_err();
        assert_eq!(told(&error), said);
        assert!(!error.backtrace().is_empty(), "{error:?}");
    }
}

#[tokio::test]
async fn plugin_may_refuse_its_configuration() {
    let linked =
        Engine::new().unwrap().compile(&Guest::new().describe(guest::PICKY).file()).unwrap().link().await.unwrap();
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
fn call_can_move_between_threads() {
    fn send<T: Send>(_: &T) {}
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let revision = runtime.block_on(load(&Guest::new()));
    send(&revision.reconcile(Arc::new(Fake::default()), request()));
    send(&revision.linked().describe(revision.plugin().clone(), "{}".into(), Limits::default()));
}
