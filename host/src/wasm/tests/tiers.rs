//! Code that was compiled fast, and then optimized.

use std::collections::BTreeMap;

use super::*;

async fn baseline(engine: &Engine, guest: &Guest) -> Revision {
    let linked = engine.compile_baseline(&guest.file()).unwrap().link().await.unwrap();
    linked.describe(PluginName::new("test").unwrap(), "{}".into(), Limits::default()).await.unwrap()
}

async fn called(revision: &Revision) -> Result<(), CallError> {
    revision.reconcile(Arc::new(Fake::default()), request()).await.map(|answer| drop(answer.unwrap()))
}

fn figures(engine: &Engine) -> InstanceFigures {
    let all: BTreeMap<_, _> = engine.instances().into_iter().collect();
    all[&PluginName::new("test").unwrap()]
}

#[tokio::test]
async fn bounds_hold_for_code_of_the_baseline_compiler() {
    for (body, kind) in [
        ("(i32.const {answer})", "ok"),
        (guest::LOOP, "deadline"),
        (guest::TRAP, "trap"),
        (guest::HOG, "memory"),
        (guest::TABULATE, "table"),
        (guest::RECURSE, "stack"),
    ] {
        let engine = Engine::new().unwrap();
        let revision = baseline(&engine, &Guest::new().timeout_ms(patience(body)).reconcile(body)).await;
        let ended = called(&revision).await;
        assert_eq!(ended.as_ref().map_or_else(CallError::kind, |()| "ok"), kind, "{ended:?}");
        if kind == "trap" {
            assert!(!ended.unwrap_err().backtrace().is_empty());
        }
    }
}

#[tokio::test]
async fn a_call_that_fits_the_optimized_stack_fits_the_baseline_stack() {
    let deep = |depth: u32| Guest::new().reconcile(&guest::recurses(depth));
    let goes = async |depth: u32, tier: Tier| {
        let engine = Engine::new().unwrap();
        let revision = baseline(&engine, &deep(depth)).await;
        if tier == Tier::Optimized {
            engine.optimize_now(&deep(depth).file());
        }
        called(&revision).await.is_ok()
    };
    let (mut goes_well, mut overflows) = (1_u32, 1 << 20);
    while overflows - goes_well > 1 {
        let between = goes_well.midpoint(overflows);
        if goes(between, Tier::Optimized).await { goes_well = between } else { overflows = between }
    }
    assert!(goes(goes_well, Tier::Baseline).await, "{goes_well} deep");
}

#[tokio::test]
async fn calls_go_on_as_code_is_optimized() {
    let engine = Engine::new().unwrap();
    let guest = Guest::new();
    let revision = baseline(&engine, &guest).await;
    called(&revision).await.unwrap();
    // Pre-warmed, and idle.
    revision.prepare().await;
    assert_eq!((engine.tier(revision.digest()), engine.figures().unoptimized), (Some(Tier::Baseline), 1));
    let made = figures(&engine).made;
    engine.optimize_now(&guest.file());
    assert_eq!((engine.tier(revision.digest()), engine.figures().unoptimized), (Some(Tier::Optimized), 0));
    called(&revision).await.unwrap();
    assert_eq!(
        (figures(&engine).made, figures(&engine).alive),
        (made + 1, 0),
        "what was made ahead is of the old code"
    );
    let Figures { baseline, optimized, loaded, .. } = engine.figures();
    assert_eq!((baseline.compiled, optimized.compiled, loaded), (1, 0, 1));
}

#[tokio::test]
async fn call_in_flight_ends_with_the_code_that_it_began_with() {
    let engine = Engine::new().unwrap();
    let guest = Guest::new().reuse().reconcile(guest::CLIENT_GET);
    let revision = baseline(&engine, &guest).await;
    let imports = Arc::new(Fake { late: true, ..Fake::default() });
    let mut call = std::pin::pin!(revision.reconcile(imports.clone(), request()));
    assert!(futures::poll!(call.as_mut()).is_pending());
    engine.optimize_now(&guest.file());
    call.await.unwrap().unwrap();
    assert_eq!(figures(&engine).kept, 0, "it does not serve again");
    // The epoch of the baseline engine advances too.
    let looping = baseline(&engine, &Guest::new().version("2").timeout_ms(100).reconcile(guest::LOOP)).await;
    let mut call = std::pin::pin!(called(&looping));
    assert!(futures::poll!(call.as_mut()).is_pending());
    engine.optimize_now(&Guest::new().version("2").timeout_ms(100).reconcile(guest::LOOP).file());
    assert_eq!(call.await.unwrap_err().kind(), "deadline");
}

#[tokio::test]
async fn kept_instance_of_old_code_does_not_serve_again_and_ends_with_the_idle() {
    let engine = Engine::new().unwrap();
    let guest = Guest::new().reuse().reconcile(guest::REMEMBERS);
    let revision = baseline(&engine, &guest).await;
    called(&revision).await.unwrap();
    assert_eq!(figures(&engine).kept, 1);
    engine.optimize_now(&guest.file());
    assert_eq!(called(&revision).await.map_err(|error| error.kind()), Ok(()), "it would trap over what it left");
    assert_eq!((figures(&engine).kept, figures(&engine).made), (1, 3));

    let idle = Guest::new().version("2").reuse();
    called(&baseline(&engine, &idle).await).await.unwrap();
    let revision = baseline(&engine, &idle).await;
    called(&revision).await.unwrap();
    let kept = figures(&engine).kept;
    engine.optimize_now(&idle.file());
    engine.drop_idle();
    assert_eq!(figures(&engine).kept, kept - 1);
}
