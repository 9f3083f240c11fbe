//! What a reconcile reads from the cache, and what wakes it.

use super::*;

#[tokio::test]
async fn invariant_11_key_is_woken_by_what_it_read_and_by_nothing_else() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new().owns_nothing().reads("v1", "ConfigMap").reconcile(READS)).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let controller = scene.controller();
    // The call found no `settings`. A new one concerns the key, and others do not.
    for name in ["another", "settings", "other"] {
        scene.api.create(config_map(name)).await;
    }
    assert_eq!(scene.next().await, ReconcileResult::Success);
    scene.api.delete(&maps(), &Key::new(Some("default"), "other")).await;
    scene.api.delete(&maps(), &Key::new(Some("default"), "settings")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!(controller.waking().woken(), [("self", 1), ("child", 0), ("mapping", 0), ("read", 2)]);
    assert_eq!((controller.ledger().reads().keys, controller.ledger().reads().things), (1, 1));
    // A deleted object that was reconciled has no reads.
    scene.api.delete(&apples(), &Key::new(Some("default"), "a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    comes_true("its reads are forgotten", || controller.ledger().reads().keys == 0).await;
}

#[tokio::test]
async fn members_that_a_watch_does_not_ask_for_are_neither_cached_nor_shown() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let mut gala = apple("gala");
    gala["metadata"]["labels"] = serde_json::json!({ "app": "web" });
    gala["metadata"]["annotations"] = serde_json::json!({ "large": "text" });
    scene.api.create(gala).await;
    let guest = Guest::new().maps("v1", "Secret", Mapping::SameKey).reads("v1", "Service").observes("v1", "Node");
    scene.activate(&guest.observe(TAKES).frugal()).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);

    // Children are compared whole.
    let holdings = scene.dispatch.parts.informers.holdings();
    let used: Vec<_> = holdings.iter().flat_map(|holding| &holding.leases).map(ToString::to_string).collect();
    let frugal = |kind: &str| format!("{kind}, metadata only, without metadata.annotations, compressed");
    let [secrets, services, nodes] = ["v1 Secret", "v1 Service", "v1 Node"].map(frugal);
    let expected = [frugal("stable.example.com/v1 MyApple"), "v1 ConfigMap".to_owned(), nodes, secrets, services];
    assert_eq!(used, expected);

    let controller = scene.controller();
    let key = Key::new(Some("default"), "gala");
    let (object, _) = controller.ledger().look_up(&controller.serving(), &key).expect("it is there");
    let object: serde_json::Value = serde_json::from_str(&object.json()).expect("it is JSON");
    let members = |object: &serde_json::Value| {
        object.as_object().map(|members| members.keys().cloned().collect::<Vec<_>>()).unwrap_or_default()
    };
    assert_eq!(members(&object), ["apiVersion", "kind", "metadata"]);
    assert_eq!((&object["kind"], &object["metadata"]["labels"]["app"]), (&"MyApple".into(), &"web".into()));
    assert_eq!(object["metadata"].get("annotations"), None);
}

#[tokio::test]
async fn invariant_11_key_is_woken_by_a_change_that_its_moment_has_hidden() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&waits_for_go()).await;
    scene.api.create(apple("a")).await;
    let controller = scene.controller();
    let lease = scene.dispatch.parts.informers.acquire(InformerKey::all(maps()), "test");
    comes_true("the call sees a moment", || lease.informer().snapshots() > 0).await;
    // No call has read it yet, so no key is woken.
    scene.api.create(config_map("settings")).await;
    comes_true("the cache has it", || lease.get(&Key::new(Some("default"), "settings")).is_some()).await;
    assert_eq!(controller.waking().woken(), [("self", 1), ("child", 0), ("mapping", 0), ("read", 0)]);
    scene.api.create(config_map("go")).await;
    assert_eq!([scene.next().await, scene.next().await], [ReconcileResult::Success; 2]);
    assert_eq!(controller.waking().woken(), [("self", 1), ("child", 0), ("mapping", 0), ("read", 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_of_a_call_are_released_however_the_call_ends() {
    for (end, result) in
        [(ANSWER, ReconcileResult::Success), (TRAP, ReconcileResult::Error), (LOOP, ReconcileResult::Error)]
    {
        let mut scene = Scene::new().await;
        scene.api.serve_apples().await;
        // This lease outlives the plugin's.
        let lease = scene.dispatch.parts.informers.acquire(InformerKey::all(maps()), "test");
        let body = format!("(call $cache_get {{settings}} (i32.const 512)) {end}");
        // Only the endless loop is to meet its deadline.
        let timeout = if end == LOOP { 300 } else { 60_000 };
        let guest = Guest::new().owns_nothing().reads("v1", "ConfigMap").reconcile(&body).timeout_ms(timeout);
        scene.activate(&guest).await;
        scene.api.create(apple("a")).await;
        if end == LOOP {
            comes_true("the call sees a moment", || lease.informer().snapshots() > 0).await;
        }
        assert_eq!(scene.next().await, result);
        assert!(scene.shut_down().await);
        assert_eq!(lease.informer().snapshots(), 0);
    }
}

#[tokio::test]
async fn an_index_lives_as_long_as_the_revision_that_declares_it() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    let informers = scene.dispatch.parts.informers.clone();
    let indexed = || -> Vec<String> {
        let uses = informers.holdings().into_iter().flat_map(|holding| holding.leases);
        uses.filter(|used| !used.indexes.is_empty()).map(|used| used.to_string()).collect()
    };
    let apple = ("stable.example.com/v1", "MyApple");
    for (guest, expected) in [
        (Guest::new().index("size", apple, "spec.size"), vec!["stable.example.com/v1 MyApple, indexed by spec.size"]),
        (
            Guest::new().version("2").index("sort", apple, "spec.sort"),
            vec!["stable.example.com/v1 MyApple, indexed by spec.sort"],
        ),
        (Guest::new().version("3"), vec![]),
    ] {
        scene.activate(&guest).await;
        comes_true("the old index ends", || indexed() == expected).await;
    }
}

#[tokio::test]
async fn invariant_11_a_failed_call_changes_nothing() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new().owns_nothing().reads("v1", "ConfigMap").reconcile(READS_AND_TRAPS_IF_THERE)).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    scene.api.create(config_map("settings")).await;
    assert_eq!(scene.next().await, ReconcileResult::Error);
    let controller = scene.controller();
    // The read of the last successful call stays, and wakes the key when the ConfigMap is deleted.
    assert_eq!((controller.ledger().reads().keys, controller.ledger().reads().things), (1, 1));
    scene.api.delete(&maps(), &Key::new(Some("default"), "settings")).await;
    while scene.next().await != ReconcileResult::Success {}
}

#[tokio::test]
async fn invariant_5_an_object_that_cannot_be_read_is_given_up_without_a_call_and_reconciled_when_it_is_gone() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new().owns_nothing().reconcile(TRAP)).await;
    let mut deep = apple("a");
    deep["spec"] = (0..200).fold(serde_json::Value::Null, |inner, _| serde_json::json!([inner]));
    scene.api.create(deep).await;
    assert_eq!(scene.next().await, ReconcileResult::Terminal);
    let controller = scene.controller();
    let keys = controller.ledger().given_up();
    assert!(keys.iter().any(|key| key.error.contains("nests deeper than 127 levels")), "{keys:?}");
    scene.api.delete(&apples(), &Key::new(Some("default"), "a")).await;
    // The deletion causes a call, which traps.
    assert_eq!(scene.next().await, ReconcileResult::Error);
}
