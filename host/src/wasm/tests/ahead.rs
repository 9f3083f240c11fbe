//! Pre-warmed instances.

use tokio::runtime;

use super::*;

async fn named(engine: &Engine, name: &str, guest: &Guest) -> Revision {
    let linked = engine.compile(&guest.file()).unwrap().link().await.unwrap();
    linked.describe(PluginName::new(name).unwrap(), "{}".into(), Limits::default()).await.unwrap()
}

async fn called(revision: &Revision) {
    revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
}

/// Returns the numbers of living, idle and created instances of the plugin.
fn figures(engine: &Engine) -> (usize, usize, u64) {
    let [(_, InstanceFigures { alive, kept, made, .. })] = *engine.instances() else { panic!("one plugin") };
    (alive, kept, made)
}

#[tokio::test]
async fn the_next_call_gets_the_pre_warmed_instance_without_state() {
    let engine = Engine::new().unwrap();
    let revision = named(&engine, "test", &Guest::new().reconcile(guest::REMEMBERS)).await;
    // `describe` had one.
    for made in 2..5 {
        revision.prepare().await;
        revision.prepare().await;
        assert_eq!(figures(&engine), (1, 1, made));
        called(&revision).await;
        assert_eq!(figures(&engine), (0, 0, made));
    }
    called(&revision).await;
    assert_eq!(figures(&engine), (0, 0, 5));
    assert_eq!(engine.instances()[0].1.reused, 0);
}

#[tokio::test]
async fn a_call_of_a_pre_warmed_instance_has_its_own_deadline_and_imports() {
    let engine = Engine::new().unwrap();
    let looping = named(&engine, "test", &Guest::new().timeout_ms(100).reconcile(guest::LOOP)).await;
    looping.prepare().await;
    let error = looping.reconcile(Arc::new(Fake::default()), request()).await.unwrap_err();
    assert!(matches!(error, CallError::Deadline { after, .. } if after == Duration::from_millis(100)), "{error}");
    let asking = named(&engine, "test", &Guest::new().reconcile(guest::CACHE_HAS)).await;
    asking.prepare().await;
    let imports = Arc::new(Fake { cached: Some(apple()), ..Fake::default() });
    asking.reconcile(imports.clone(), request()).await.unwrap().unwrap();
    assert_eq!(*imports.calls.lock(), [Import::Cache(CacheCall::Get)]);
}

#[tokio::test]
async fn a_pre_warmed_instance_ends_with_its_code() {
    let engine = Engine::new().unwrap();
    let revision = named(&engine, "test", &Guest::new()).await;
    revision.prepare().await;
    engine.unmap_idle();
    assert_eq!((figures(&engine), engine.figures().mapped), ((1, 1, 2), 1), "it was called of late");
    engine.unmap_idle();
    assert_eq!((figures(&engine), engine.figures().mapped), ((0, 0, 2), 0));
    revision.prepare().await;
    drop(revision);
    assert_eq!(engine.instances(), []);
}

#[tokio::test]
async fn reused_instances_are_not_pre_warmed() {
    let engine = Engine::new().unwrap();
    let revision = named(&engine, "test", &Guest::new().reuse()).await;
    revision.prepare().await;
    assert_eq!(figures(&engine), (0, 0, 1));
}

#[tokio::test]
async fn instances_that_start_slowly_are_not_pre_warmed_and_still_serve() {
    let engine = Engine::new().unwrap();
    let revision = named(&engine, "test", &Guest::new().start(guest::SLOWLY)).await;
    for _ in 0..2 {
        revision.prepare().await;
        assert_eq!(figures(&engine), (0, 0, 2), "it is tried once");
    }
    called(&revision).await;
    assert_eq!(figures(&engine), (0, 0, 3));
}

#[tokio::test]
async fn large_instances_are_not_pre_warmed() {
    for (pages, waits) in [(128, 1), (129, 0)] {
        let engine = Engine::new().unwrap();
        let revision = named(&engine, "test", &Guest::new().pages(pages)).await;
        revision.prepare().await;
        assert_eq!(figures(&engine), (waits, waits, 2));
        called(&revision).await;
    }
}

/// Returns the number of idle instances of each plugin.
fn waiting(engine: &Engine) -> Vec<usize> {
    engine.instances().iter().map(|(_, of)| of.kept).collect()
}

/// Creates revisions of one plugin under many names, and pre-warms an instance of each.
async fn prepared(engine: &Engine, guest: &Guest, plugins: usize) -> Vec<Revision> {
    let linked = engine.compile(&guest.file()).unwrap().link().await.unwrap();
    let mut revisions = Vec::new();
    for number in 0..plugins {
        let name = PluginName::new(&format!("test-{number:02}")).unwrap();
        let revision = linked.describe(name, "{}".into(), Limits::default()).await.unwrap();
        revision.prepare().await;
        revisions.push(revision);
    }
    revisions
}

#[tokio::test]
async fn pre_warmed_instances_are_bounded_over_all_plugins() {
    let engine = Engine::new().unwrap();
    let _revisions = prepared(&engine, &Guest::new(), 34).await;
    assert_eq!(waiting(&engine), [vec![1; 32], vec![0; 2]].concat());
}

#[tokio::test]
async fn call_that_has_begun_makes_room_for_another_instance_ahead() {
    let engine = Engine::new().unwrap();
    let revisions = prepared(&engine, &Guest::new().reconcile(guest::CLIENT_GET), 33).await;
    let imports = Arc::new(Fake { silent: true, ..Fake::default() });
    let meanwhile = async {
        while imports.requests.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        revisions[32].prepare().await;
        waiting(&engine)
    };
    tokio::select! {
        called = revisions[0].reconcile(imports.clone(), request()) => panic!("nobody answers: {called:?}"),
        waiting = meanwhile => assert_eq!((waiting[0], waiting[32]), (0, 1)),
    }
}

#[test]
fn instance_over_which_the_host_failed_costs_no_call_and_no_room() {
    let with_time = runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let without = runtime::Builder::new_current_thread().build().unwrap();
    let engine = Engine::new().unwrap();
    let slow = with_time.block_on(named(&engine, "test", &Guest::new().start(guest::SLOWLY)));
    // The guest yields as it starts. Waiting for it needs a timer, which this runtime does not have.
    without.block_on(slow.prepare());
    assert_eq!(figures(&engine), (0, 0, 2));
    without.block_on(slow.prepare());
    assert_eq!(figures(&engine), (0, 0, 2), "it is tried once");
    with_time.block_on(called(&slow));
    assert_eq!(figures(&engine), (0, 0, 3));
    for _ in 0..32 {
        without.block_on(slow.with_limits(slow.limits()).prepare());
    }
    let quick = with_time.block_on(named(&engine, "quick", &Guest::new()));
    with_time.block_on(quick.prepare());
    assert_eq!(waiting(&engine), [1, 0]);
}
