//! Mappings, mappers and observers: the keys that they wake, and their failures.

use pilothouse_core::{object::Object, store::Change, workqueue::CHANGE};

use super::*;
use crate::{
    dispatch::{mapper::Lookup, queue::Cause, remembered::MAX_LOOKUPS},
    informer::Origin,
};

#[tokio::test]
async fn mapping_leads_from_a_change_to_the_keys_that_it_concerns() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.api.create(apple("mapped")).await;
    for (guest, name) in [
        (Guest::new().maps("v1", "ConfigMap", Mapping::SameKey), "mapped"),
        (Guest::new().maps("v1", "ConfigMap", Mapping::Plugin).map(MAPS), "any"),
        (
            Guest::new().index("named", ("stable.example.com/v1", "MyApple"), "metadata.name").maps(
                "v1",
                "ConfigMap",
                Mapping::Index("named"),
            ),
            "mapped",
        ),
    ] {
        let key = Key::new(Some("default"), name);
        scene.activate(&guest.owns_nothing()).await;
        assert_eq!(scene.next().await, ReconcileResult::Success);
        scene.api.create(config_map("unrelated")).await;
        scene.api.create(config_map(name)).await;
        assert_eq!(scene.next().await, ReconcileResult::Success);
        scene.api.delete(&maps(), &key).await;
        scene.api.delete(&maps(), &Key::new(Some("default"), "unrelated")).await;
        let controller = scene.controller();
        soon("all is quiet", async {
            let view = controller.serving().view.clone();
            while view.get(&maps(), &key).is_some()
                || view.get(&maps(), &Key::new(Some("default"), "unrelated")).is_some()
                || controller.waking().unmapped().objects > 0
                || controller.active_workers() > 0
                || !controller.ledger().queue().lock().is_idle()
            {
                tokio::task::yield_now().await;
            }
        })
        .await;
        scene.dispatch.deactivate(controller.plugin()).await;
        while scene.ended.try_recv().is_ok() {}
    }
}

#[tokio::test]
async fn key_that_a_mapper_returns_is_woken_if_its_object_exists() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    // The mapper returns `mapped` for every change.
    scene.activate(&Guest::new().owns_nothing().maps("v1", "ConfigMap", Mapping::Plugin).map(MAPS)).await;
    scene.api.create(config_map("a")).await;
    scene.saw("map done", 1).await;
    let controller = scene.controller();
    comes_true("it is mapped", || controller.waking().unmapped().objects == 0).await;
    assert!(controller.ledger().queue().lock().is_idle());
    assert_eq!(controller.waking().woken()[2], ("mapping", 0));
    scene.api.create(apple("mapped")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    scene.api.create(config_map("b")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!(controller.waking().woken()[2], ("mapping", 1));
}

#[tokio::test]
async fn failed_mapper_is_called_again_and_delays_no_reconcile() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.api.create(apple("a")).await;
    scene.api.create(config_map("b")).await;
    scene.activate(&Guest::new().owns_nothing().maps("v1", "ConfigMap", Mapping::Plugin).map(MISTAKEN)).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    scene.saw("map failed", 3).await;
    let last = scene.controller().waking().last_unmapped().map(|last| last.message);
    assert_eq!(last.as_deref(), Some(MISTAKE));
    // The mapper of the newer revision works.
    scene
        .activate(&Guest::new().version("2.0.0").owns_nothing().maps("v1", "ConfigMap", Mapping::Plugin).map(MAPS))
        .await;
    scene.saw("map done", 1).await;
    let controller = scene.controller();
    comes_true("all is mapped", || controller.waking().unmapped().objects == 0).await;
}

#[tokio::test]
async fn failed_observer_delays_no_reconcile_and_loses_nothing_to_a_newer_revision() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.api.create(config_map("b")).await;
    scene.activate(&Guest::new().owns_nothing().observes("v1", "ConfigMap").observe(MISTAKEN)).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    scene.saw("observe failed", 3).await;
    let last = scene.dispatch.observing()[0].last_failure().map(|last| last.message);
    assert_eq!(last.as_deref(), Some(MISTAKE));
    scene.activate(&Guest::new().version("2.0.0").owns_nothing().observes("v1", "ConfigMap").observe(TAKES)).await;
    scene.saw("observe done", 1).await;
    let observing = scene.dispatch.observing();
    comes_true("everything is observed", || observing[0].figures().objects == 0).await;
    // A revision that observes nothing ends it.
    scene.activate(&Guest::new().version("3.0.0").owns_nothing()).await;
    assert!(scene.dispatch.observing().is_empty());
}

#[tokio::test]
async fn mapper_is_called_again_after_a_panic_of_the_host_and_reconciles_begin() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.api.create(apple("a")).await;
    scene.api.create(config_map("b")).await;
    scene.seen.faults.called.store(1, Ordering::Relaxed);
    scene.activate(&Guest::new().owns_nothing().maps("v1", "ConfigMap", Mapping::Plugin).map(MAPS)).await;
    scene.saw("map done", 1).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
}

#[tokio::test]
async fn observer_is_called_again_after_a_panic_of_the_host() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.api.create(config_map("b")).await;
    scene.seen.faults.called.store(1, Ordering::Relaxed);
    scene.activate(&Guest::new().owns_nothing().observes("v1", "ConfigMap").observe(TAKES)).await;
    scene.saw("observe done", 1).await;
    let observing = scene.dispatch.observing();
    comes_true("everything is observed", || observing[0].figures().objects == 0).await;
    scene.dispatch.deactivate(observing[0].plugin()).await;
}

/// Adds index lookups for `count` ConfigMaps that no apple names.
fn name_nobody(controller: &Controller, count: usize) {
    for number in 0..count {
        let mut json = config_map(&format!("nobody-{number}"));
        json["metadata"]["uid"] = "1".into();
        json["metadata"]["resourceVersion"] = "1".into();
        let object = Object::parse(json.to_string().as_bytes(), &maps()).expect("an object");
        let change = Change { old: None, new: Some(Arc::new(object)), missed: false };
        controller.unmapped().look_up([Lookup::Indexed("named".into())], &change, Origin::Change);
    }
}

fn indexed() -> Guest {
    let guest = Guest::new().index("named", ("stable.example.com/v1", "MyApple"), "metadata.name");
    guest.maps("v1", "ConfigMap", Mapping::Index("named")).owns_nothing()
}

#[tokio::test]
async fn invariant_12_lookups_are_bounded_while_the_kind_is_not_served() {
    let mut scene = Scene::new().await;
    scene.activate(&indexed()).await;
    let controller = scene.controller();
    comes_true("only its own kind is missing", || controller.waking().waits_for().len() == 1).await;
    name_nobody(&controller, MAX_LOOKUPS / 2);
    assert!(controller.unmapped().lookups().is_some_and(|names| names >= MAX_LOOKUPS / 2));
    name_nobody(&controller, MAX_LOOKUPS + 1);
    assert_eq!(controller.unmapped().lookups(), None);
    scene.api.serve_apples().await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    comes_true("all is looked up", || controller.unmapped().lookups() == Some(0)).await;
}

#[tokio::test]
async fn every_key_is_woken_where_too_many_lookups_wait() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&indexed()).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    name_nobody(&scene.controller(), MAX_LOOKUPS + 1);
    assert_eq!(scene.next().await, ReconcileResult::Success);
}

#[tokio::test]
async fn invariant_12_names_of_nothing_do_not_fill_the_queue_while_the_kind_is_not_served() {
    let scene = Scene::new().await;
    scene.activate(&Guest::new().maps("v1", "ConfigMap", Mapping::SameKey).owns_nothing()).await;
    let controller = scene.controller();
    comes_true("only its own kind is missing", || controller.waking().waits_for().len() == 1).await;
    for number in 0..MAX_LOOKUPS {
        controller.ledger().queue().add(Key::new(Some("default"), &number.to_string()), CHANGE, || Cause::Itself);
    }
    let keys = controller.ledger().queue().lock().len();
    scene.api.create(config_map("nobody")).await;
    comes_true("it is to be looked for", || controller.unmapped().lookups() == Some(1)).await;
    assert_eq!(controller.ledger().queue().lock().len(), keys);
    scene.api.serve_apples().await;
    comes_true("all is looked up", || controller.unmapped().lookups() == Some(0)).await;
    comes_true("nothing is left of it", || controller.ledger().queue().lock().is_idle()).await;
}

#[tokio::test]
async fn names_of_nothing_do_not_use_up_a_rate() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let guest = Guest::new().maps("v1", "ConfigMap", Mapping::SameKey).owns_nothing();
    let mut candidate = scene.candidate(&guest).await;
    candidate.limits = grant::Limits { reconciles_per_second: NonZeroU32::new(1), ..grant::Limits::default() };
    scene.dispatch.activate(candidate).await.expect("it can serve");
    scene.api.create(apple("somebody")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let controller = scene.controller();
    let before = controller.waking().woken()[2].1;
    let woken = || controller.waking().woken()[2].1 - before;
    scene.api.create(config_map("nobody")).await;
    scene.api.create(config_map("somebody")).await;
    comes_true("it is looked for", || woken() >= 1).await;
    // The lookup of `nobody` came before.
    assert_eq!(woken(), 1);
}
