//! What an administrator does not grant is neither reconciled nor read (invariant 7).

use super::*;

#[tokio::test]
async fn invariant_7_an_object_whose_name_is_not_granted_is_not_reconciled() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let mut candidate = scene.candidate(&Guest::new()).await;
    let file: grant::AdminFile = serde_saphyr::from_str(
        "grants:\n- {apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read], names: [mine]}\n",
    )
    .expect("an administrator's file");
    candidate.grants = Arc::new(Grants::new(&candidate.revision.manifest().permissions, &file.grants));
    soon("it becomes active", scene.dispatch.activate(candidate)).await.expect("it can serve");
    // One worker takes them in order.
    for name in ["another", "mine", "other"] {
        scene.api.create(apple(name)).await;
    }
    scene.api.delete(&apples(), &Key::new(Some("default"), "another")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let controller = scene.controller();
    let view = controller.serving().view.clone();
    soon("all came and went", async {
        let key = |name| Key::new(Some("default"), name);
        while view.get(&apples(), &key("other")).is_none()
            || view.get(&apples(), &key("another")).is_some()
            || controller.active_workers() > 0
            || !controller.queue().lock().is_idle()
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(scene.ended.try_recv().is_err());
}

#[tokio::test]
async fn invariant_7_what_is_taken_away_is_gone_though_what_is_new_never_comes() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new()).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let controller = scene.controller();
    let (maps, key) = (TypeMeta::new("v1", "ConfigMap"), Key::new(Some("default"), "a"));
    assert!(controller.serving().access.reader.may_read(&maps, &key));
    // It asks for a kind that nobody serves, and ConfigMaps are no longer granted everywhere.
    let mut candidate = scene.candidate(&Guest::new().reads("example.com/v1", "Pear")).await;
    let file: grant::AdminFile = serde_saphyr::from_str(
        "grants:\n- {apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read]}\n\
         - {apiVersion: example.com/v1, kind: Pear, verbs: [read]}\n\
         - {apiVersion: v1, kind: ConfigMap, verbs: [read], namespaces: [other]}\n",
    )
    .expect("an administrator's file");
    candidate.grants = Arc::new(Grants::new(&candidate.revision.manifest().permissions, &file.grants));
    let waits = async {
        while scene.dispatch.waiting().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        activated = scene.dispatch.activate(candidate) => panic!("it waits for its informers: {activated:?}"),
        () = soon("it waits", waits) => {}
    }
    assert!(!controller.serving().access.reader.may_read(&maps, &key));
    assert!(controller.serving().access.reader.may_read(&apples(), &key));
}

#[tokio::test]
async fn namespaces_of_a_kind_that_has_none_are_said() {
    let scene = Scene::new().await;
    let mut candidate = scene.candidate(&Guest::new().watches("v1", "Node").owns_nothing()).await;
    let file: grant::AdminFile =
        serde_saphyr::from_str("grants:\n- {apiVersion: v1, kind: Node, verbs: [read], namespaces: [a]}\n")
            .expect("an administrator's file");
    candidate.grants = Arc::new(Grants::new(&candidate.revision.manifest().permissions, &file.grants));
    soon("it becomes active", scene.dispatch.activate(candidate)).await.expect("it can serve");
    let controller = scene.controller();
    soon("the informer says so", async {
        loop {
            let states = controller.waits_for();
            let told: Vec<String> = states.iter().map(|(_, state)| crate::informer::told(state)).collect();
            if told.iter().any(|told| told.contains("v1 Node is cluster-scoped: there is nothing of it in namespace a"))
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}
