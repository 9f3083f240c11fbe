//! What waits until this process may act: reconciles, `map`, `observe` and CustomResourceDefinitions. Writes and Events
//! are the writer's.

use super::*;

/// Lets everything else go on for as long as it can.
async fn others_have_their_turns() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn no_key_is_reconciled_while_this_process_may_not_act() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let acting = scene.dispatch.parts.acting.host().clone();
    acting.set(false);
    scene.activate(&Guest::new()).await;
    let controller = scene.controller();
    let waits = |count| {
        let controller = controller.clone();
        async move {
            comes_true("keys wait for workers", || {
                controller.wakes().staff.is_ready() && controller.ledger().queue().lock().len() == count
            })
            .await;
            others_have_their_turns().await;
            assert_eq!((controller.ledger().queue().lock().len(), controller.active_workers()), (count, 0));
        }
    };
    scene.api.create(apple("a")).await;
    waits(1).await;
    assert!(scene.ended.try_recv().is_err());
    acting.set(true);
    assert_eq!(scene.next().await, ReconcileResult::Success);
    // The worker sleeps when it is turned off, and wakes for nothing.
    acting.set(false);
    for name in ["b", "c"] {
        scene.api.create(apple(name)).await;
    }
    waits(2).await;
    assert!(scene.ended.try_recv().is_err());
    acting.set(true);
    assert_eq!([scene.next().await, scene.next().await], [ReconcileResult::Success; 2]);
}

#[tokio::test]
async fn workers_that_wait_until_this_process_may_act_end_with_their_controller() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.dispatch.parts.acting.host().set(false);
    scene.activate(&Guest::new()).await;
    let controller = scene.controller();
    comes_true("they may work", || controller.wakes().staff.is_ready()).await;
    soon("it ends", scene.dispatch.deactivate(controller.plugin())).await;
    assert_eq!(controller.tasks(), 0);
}

#[tokio::test]
async fn neither_map_nor_observe_is_called_while_this_process_may_not_act() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    let acting = scene.dispatch.parts.acting.host().clone();
    acting.set(false);
    let guest = Guest::new().owns_nothing().maps("v1", "ConfigMap", Mapping::Plugin).map(MAPS);
    scene.activate(&guest.observes("v1", "ConfigMap").observe(TAKES)).await;
    scene.api.create(config_map("a")).await;
    let (controller, observing) = (scene.controller(), scene.dispatch.observing());
    let waiting = || controller.waking().unmapped().objects.min(observing[0].figures().objects);
    comes_true("changes wait for both", || waiting() > 0).await;
    others_have_their_turns().await;
    assert!(!scene.seen.log.lock().iter().any(|seen| seen.ends_with("done")));
    acting.set(true);
    scene.saw("map done", 1).await;
    scene.saw("observe done", 1).await;
}

#[tokio::test]
async fn a_plugin_caches_what_it_needs_before_this_process_may_install_its_definitions() {
    let scene = Scene::new().await;
    scene.api.create(config_map("a")).await;
    let acting = scene.dispatch.parts.acting.host().clone();
    acting.set(false);
    let definition = crate::testing::apples("Namespaced", &[("v1", true)]).to_string();
    let candidate = scene.candidate(&Guest::new().brings(definition)).await;
    let dispatch = scene.dispatch.clone();
    let activating = tokio::spawn(async move { dispatch.activate(candidate).await });
    let informers = scene.dispatch.parts.informers.clone();
    let is_cached = || informers.all().iter().any(|informer| informer.key().of == maps() && informer.size().0 > 0);
    comes_true("ConfigMaps are cached", is_cached).await;
    let plugin = PluginName::new("apples").expect("a name");
    let why = "this process may not act now; the plugin's CustomResourceDefinitions are installed when it may";
    let waits = || scene.dispatch.waiting().get(&plugin).map(String::as_str) == Some(why);
    comes_true("it waits", waits).await;
    assert_eq!(scene.api.requests("APPLY", "customresourcedefinitions").await, 0);
    acting.set(true);
    soon("it is active", activating).await.expect("the host does not fail").expect("it can serve");
    assert_eq!(scene.api.requests("APPLY", "customresourcedefinitions").await, 1);
}

#[tokio::test]
async fn a_plugin_whose_definitions_are_installed_serves_before_this_process_may_act() {
    let scene = Scene::new().await;
    let definition = crate::testing::apples("Namespaced", &[("v1", true)]).to_string();
    let first = Guest::new().brings(definition.clone());
    scene.activate(&first).await;
    scene.dispatch.deactivate(&PluginName::new("apples").expect("a name")).await;
    scene.dispatch.parts.acting.host().set(false);
    scene.activate(&Guest::new().brings(definition)).await;
    assert_eq!(scene.api.requests("APPLY", "customresourcedefinitions").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_call_in_flight_is_finished_before_another_host_may_act_and_no_other_begins() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&waits_for_go()).await;
    let (controller, acting) = (scene.controller(), scene.dispatch.parts.acting.host().clone());
    scene.api.create(apple("a")).await;
    comes_true("a call begins", || controller.active_workers() > 0).await;
    acting.finish_until(crate::acting::now() + Duration::from_secs(3600));
    scene.api.create(apple("b")).await;
    comes_true("a key waits", || controller.ledger().queue().has_next()).await;
    assert!(!acting.is_over());
    scene.api.create(config_map("go")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    comes_true("the call is over", || acting.is_over()).await;
    others_have_their_turns().await;
    assert!(scene.ended.try_recv().is_err() && acting.is_over());
    acting.set(true);
    assert_eq!(scene.next().await, ReconcileResult::Success);
}
