//! Code and memory of a call: mapped when it is called, in a slot of the pool if one is free.

use std::pin::pin;

use super::*;

/// Unmaps all code.
fn let_go(engine: &Engine) {
    engine.unmap_idle();
    assert_eq!(engine.figures().mapped, 1, "it was called of late");
    engine.unmap_idle();
    assert_eq!(engine.figures().mapped, 0);
}

#[tokio::test]
async fn idle_plugin_holds_no_code_and_wakes_at_the_next_call() {
    let engine = Engine::new().unwrap();
    let linked = engine.compile(&Guest::new().file()).unwrap().link().await.unwrap();
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
    let linked =
        engine.compile(&Guest::new().timeout_ms(100).reconcile(guest::LOOP).file()).unwrap().link().await.unwrap();
    let revision = linked.describe(PluginName::new("test").unwrap(), "{}".into(), Limits::default()).await.unwrap();
    let call = revision.reconcile(Arc::new(Fake::default()), request());
    let unmapped = async {
        while engine.instances()[0].1.alive == 0 {
            tokio::task::yield_now().await;
        }
        engine.unmap_idle();
        engine.unmap_idle();
        engine.figures().mapped
    };
    let (called, mapped) = tokio::join!(call, unmapped);
    assert_eq!((called.unwrap_err().kind(), mapped), ("deadline", 0));
}

/// The thread runs other tasks meanwhile.
#[tokio::test]
async fn calls_hold_neither_a_thread_nor_a_slot_while_their_code_is_mapped() {
    let revision = load(&Guest::new()).await;
    let engine = &revision.linked().engine;
    let free = engine.figures().slots;
    let_go(engine);
    let (let_it_be_mapped, mapped_now) = std::sync::mpsc::channel::<()>();
    let mut others = pin!(engine.aside().run(move || mapped_now.recv()));
    assert!(futures::poll!(&mut others).is_pending());
    let call = || revision.reconcile(Arc::new(Fake::default()), request());
    let mut first = Box::pin(call());
    assert!(futures::poll!(&mut first).is_pending());
    let mut calls = pin!(futures::future::join_all((0..100).map(|_| call())));
    assert!(futures::poll!(&mut calls).is_pending());
    assert_eq!(engine.figures().slots, free);
    // Dropping the call that maps the code does not affect the others.
    drop(first);
    let_it_be_mapped.send(()).unwrap();
    for answer in calls.await {
        answer.unwrap().unwrap();
    }
    assert_eq!(engine.instances()[0].1.mapped, 1);
}

#[tokio::test]
async fn more_calls_than_the_pool_has_slots_are_all_served() {
    let revision = load(&Guest::new().timeout_ms(60_000).reconcile(guest::CLIENT_GET)).await;
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

#[tokio::test]
async fn where_there_is_no_pool_instances_are_made_from_nothing() {
    let engine = Engine::without_pool();
    assert_eq!(engine.figures().slots, None);
    // Including the one of `describe`.
    for (guest, made) in [(Guest::new(), 4), (Guest::new().reuse(), 2)] {
        let linked = engine.compile(&guest.file()).unwrap().link().await.unwrap();
        let revision = linked.describe(PluginName::new("test").unwrap(), "{}".into(), Limits::default()).await.unwrap();
        for _ in 0..3 {
            revision.prepare().await;
            revision.reconcile(Arc::new(Fake::default()), request()).await.unwrap().unwrap();
        }
        assert_eq!(engine.instances()[0].1.made, made);
    }
}
