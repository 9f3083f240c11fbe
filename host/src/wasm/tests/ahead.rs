//! Fresh instances that are made ahead of their call.

use super::*;

async fn named(engine: &Engine, name: &str, guest: &Guest) -> Revision {
    let linked = engine.compile(&guest.file()).unwrap().link().unwrap();
    linked.describe(PluginName::new(name).unwrap(), "{}".into(), Limits::default()).await.unwrap()
}

async fn called(revision: &Revision) {
    revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
}

/// How many of the plugin's instances are alive, how many of these wait for a call, and how many were made in all.
fn figures(engine: &Engine) -> (usize, usize, u64) {
    let [(_, InstanceFigures { alive, kept, made, .. })] = *engine.instances() else { panic!("one plugin") };
    (alive, kept, made)
}

#[tokio::test]
async fn next_call_has_the_instance_that_was_made_ahead_and_finds_nothing_in_it() {
    let engine = Engine::new().unwrap();
    let revision = named(&engine, "test", &Guest::new().reconcile(guest::REMEMBERS)).await;
    // One described itself.
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
async fn call_of_an_instance_that_was_made_ahead_has_its_own_deadline_and_imports() {
    let engine = Engine::new().unwrap();
    let looping = named(&engine, "test", &Guest::new().timeout_ms(100).reconcile(guest::LOOP)).await;
    looping.prepare().await;
    let error = looping.reconcile(Arc::new(Fake::default()), request()).await.unwrap_err();
    assert!(matches!(error, CallError::Deadline { after, .. } if after == Duration::from_millis(100)), "{error}");
    let asking = named(&engine, "test", &Guest::new().reconcile(guest::CACHE_HAS)).await;
    asking.prepare().await;
    let imports = Arc::new(Fake { cached: Some(apple()), ..Fake::default() });
    asking.reconcile(imports.clone(), request()).await.unwrap().unwrap();
    assert_eq!(*imports.calls.lock(), [Import::CacheGet]);
}

#[tokio::test]
async fn instance_that_was_made_ahead_goes_with_its_code() {
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
async fn reused_instances_are_not_made_ahead() {
    let engine = Engine::new().unwrap();
    let revision = named(&engine, "test", &Guest::new().reuse()).await;
    revision.prepare().await;
    assert_eq!(figures(&engine), (0, 0, 1));
}

#[tokio::test]
async fn what_starts_slowly_is_not_made_ahead_and_serves_all_the_same() {
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
async fn what_has_much_memory_is_not_made_ahead() {
    for (pages, waits) in [(128, 1), (129, 0)] {
        let engine = Engine::new().unwrap();
        let revision = named(&engine, "test", &Guest::new().pages(pages)).await;
        revision.prepare().await;
        assert_eq!(figures(&engine), (waits, waits, 2));
        called(&revision).await;
    }
}

#[tokio::test]
async fn instances_that_are_made_ahead_are_bounded_for_all_plugins() {
    let engine = Engine::new().unwrap();
    let linked = engine.compile(&Guest::new().file()).unwrap().link().unwrap();
    let mut revisions = Vec::new();
    for number in 0..34 {
        let name = PluginName::new(&format!("test-{number:02}")).unwrap();
        let revision = linked.describe(name, "{}".into(), Limits::default()).await.unwrap();
        revision.prepare().await;
        revisions.push(revision);
    }
    let made: Vec<usize> = engine.instances().iter().map(|(_, of)| of.kept).collect();
    assert_eq!(made, [vec![1; 32], vec![0; 2]].concat());
    // A call makes room.
    called(&revisions[0]).await;
    revisions[33].prepare().await;
    assert_eq!(engine.instances()[33].1.kept, 1);
}
