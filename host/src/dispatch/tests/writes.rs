//! When a plugin's writes end, and what wakes keys that could not write.

use std::num::NonZeroU32;

use pilothouse_apiserver::faults::{Answer as Refusal, Delay};
use pilothouse_core::{event::KeyEvents, reflector::State};
use serde_json::Value;

use super::*;
use crate::{dispatch::ledger::Deferral, writer::WITHDRAWN_AFTER};

/// Children of one outcome: more than can be written before the fence closes.
const CHILDREN: usize = 2_000;

/// Duration of each apply.
const EACH: Duration = Duration::from_millis(100);

/// Children that are written at a time.
const AT_ONCE: u64 = 8;

/// A scene with a plugin that is writing [`CHILDREN`], and a function that counts the written ones.
async fn writes_for_long() -> (Scene, impl Fn(&Scene) -> u64) {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    let delay = Delay { milliseconds: u32::try_from(EACH.as_millis()).expect("it is short"), up_to: None };
    let slow = Rule::new(Fault::Delay(delay)).on(Requests::to("configmaps", &[Verb::Apply]));
    let slow = scene.api.server.faults().add(slow).expect("it is a rule");
    let children = (0..CHILDREN).map(|number| (config_map(&format!("c-{number}")).to_string(), false)).collect();
    let status = Some(json!({ "phase": "Ripe" }).to_string());
    // The texts of the children take four pages.
    scene.activate(&Guest::new().pages(16).answer(Answer::Children { children, status, requeue_after: None })).await;
    scene.api.create(apple("a")).await;
    let written = move |scene: &Scene| scene.api.server.faults().hits(slow).unwrap_or_default();
    comes_true("some children are written", || written(&scene) >= 16).await;
    (scene, written)
}

/// Upper bound of the writes that begin within this time.
fn within(grace: Duration) -> u64 {
    let rounds = grace.as_millis().div_ceil(EACH.as_millis()) + 2;
    AT_ONCE * u64::try_from(rounds).expect("they are few")
}

/// The status of the only MyApple.
async fn status(scene: &Scene) -> Value {
    let body = scene.api.cluster.get(&apples(), Some("default"), "a").await.expect("it is there");
    let mut apple: Value = serde_json::from_slice(&body).expect("an object is JSON");
    apple["status"].take()
}

#[tokio::test]
async fn a_plugin_that_is_removed_stops_writing_within_its_grace() {
    let (scene, written) = writes_for_long().await;
    let before = written(&scene);
    scene.dispatch.deactivate(&PluginName::new("apples").expect("a name")).await;
    let after = written(&scene);
    assert!(after <= before + within(WITHDRAWN_AFTER), "{after} writes, {before} of them before it was removed");
    assert_eq!(status(&scene).await, json!(null));
    // The plugin comes back and goes on.
    scene.api.server.faults().clear();
    scene
        .activate(&Guest::new().answer(Answer::Children {
            children: vec![(config_map("later").to_string(), false)],
            status: None,
            requeue_after: None,
        }))
        .await;
    let key = Key::new(Some("default"), "later");
    soon("it writes", async {
        while scene.api.cluster.get(&maps(), key.namespace.as_deref(), &key.name).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn invariant_10_host_that_stops_begins_no_writes_in_the_second_half_of_its_grace() {
    let (scene, written) = writes_for_long().await;
    let (before, grace) = (written(&scene), Duration::from_secs(4));
    assert!(scene.dispatch.shut_down(grace).await, "writes went on to the end of the grace period");
    let after = written(&scene);
    assert!(after <= before + within(grace / 2), "{after} writes, {before} of them before the shutdown began");
    assert_eq!(status(&scene).await, json!(null));
}

#[tokio::test]
async fn postponed_status_is_written_at_the_end_if_no_reconcile_follows() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.api.create(apple("a")).await;
    scene.activate(&waits_for_go().concurrency(1)).await;
    let controller = scene.controller();
    comes_true("it is reconciled", || controller.active_workers() == 1).await;
    // The object changes while it is reconciled, so that its key is next.
    let view = controller.serving().view.clone();
    let key = Key::new(Some("default"), "a");
    scene.api.replace_apple("a", json!({ "quantity": 2 })).await;
    comes_true("it is to be reconciled again", || controller.ledger().queue().lock().is_ready(&key)).await;
    let object = view.get(&apples(), &key).expect("it is cached");
    let deferral =
        controller.ledger().defer(controller.wakes().record, &object, r#"{"phase":"Ripe"}"#, &KeyEvents::default());
    assert_eq!(deferral, Deferral::Postponed);
    let (ended, ()) = tokio::join!(scene.shut_down(), async { scene.api.create(config_map("go")).await });
    assert!(ended);
    assert_eq!(status(&scene).await, json!({ "phase": "Ripe" }));
}

#[tokio::test]
async fn key_whose_children_were_unknown_is_woken_when_the_watch_is_back() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let wanted = Answer::Children { children: Vec::new(), status: None, requeue_after: None };
    let mut candidate = scene.candidate(&Guest::new().answer(wanted)).await;
    // The backoff is so long that only the watch can bring the key back in time.
    candidate.limits.backoff_base_ms = NonZeroU32::new(600_000);
    candidate.limits.backoff_cap_ms = NonZeroU32::new(600_000);
    scene.dispatch.activate(candidate).await.expect("it can serve");
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);

    let faults = scene.api.server.faults();
    let reads = Requests::to("configmaps", &[Verb::List, Verb::Watch]);
    let down = faults.add(Rule::new(Fault::Status(Refusal::code(503))).on(reads)).expect("it is a rule");
    faults.cut(&Requests::to("configmaps", &[Verb::Watch])).expect("watches can be cut");
    let controller = scene.controller();
    let view = controller.serving().view.clone();
    let of = maps();
    let lease = view.of(&of).next().expect("it is cached");
    comes_true("the watch is lost", || matches!(lease.state(), State::Waiting { .. })).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    tokio::time::resume();
    scene.api.replace_apple("a", json!({ "quantity": 2 })).await;
    assert_eq!(scene.next().await, ReconcileResult::Error);
    let (_, failing) = controller.ledger().failing(1);
    let error = failing.first().map(|failing| failing.error.clone()).unwrap_or_default();
    assert!(
        error.starts_with("cannot tell which children of v1 ConfigMap exist: the watch has been broken since "),
        "{error}"
    );
    assert!(scene.api.server.faults().remove(down));
    assert_eq!(scene.next().await, ReconcileResult::Success);
}
