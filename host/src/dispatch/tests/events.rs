//! Events of plugins: written after the status they belong to, once, and as granted.

use pilothouse_apiserver::faults::Answer as Refusal;
use pilothouse_core::{event::Level, object::Object};
use serde_json::Value;

use super::*;
use crate::writer::Source;

/// Answers while the object has no status, and traps when it has one.
const UNTIL_IT_HAS_A_STATUS: &str = "(if (i32.gt_u (local.get 10) (i32.const 1500)) (then unreachable))";

/// A status that is longer than the rest of a MyApple.
fn ripe() -> Option<String> {
    Some(json!({ "phase": "R".repeat(2_000) }).to_string())
}

/// Waits until everything that the plugin told so far was handled. Returns reason and count of its Events on `a`.
async fn told(scene: &Scene) -> Vec<(String, u64)> {
    let object = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "mark", "uid": "u", "resourceVersion": "1" },
    });
    let node = Object::parse(object.to_string().as_bytes(), &TypeMeta::new("v1", "Node")).expect("an object");
    let source = Source::Plugin(PluginName::new("apples").expect("a name"));
    // The Events of one source are written in order.
    static MARKS: AtomicUsize = AtomicUsize::new(0);
    let mark = format!("Mark{}", MARKS.fetch_add(1, Ordering::Relaxed));
    scene.dispatch.parts.events.record(source, &node, Level::Normal, &mark, "");
    soon("all Events are written", async {
        loop {
            let (on_a, marks) = (events(scene, "a").await, events(scene, "mark").await);
            if marks.iter().any(|event| event["reason"] == *mark) {
                let of_plugin = on_a.into_iter().filter(|event| event["source"]["component"] == "pilothouse/apples");
                let text = |event: &Value| event["reason"].as_str().unwrap_or_default().to_owned();
                return of_plugin.map(|event| (text(&event), event["count"].as_u64().unwrap_or_default())).collect();
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

async fn events(scene: &Scene, name: &str) -> Vec<Value> {
    let path = format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{name}");
    let body = scene.api.cluster.get_path(&path).await.expect("Events can be listed");
    let mut list: Value = serde_json::from_slice(&body).expect("a list");
    list["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
}

#[tokio::test]
async fn a_transition_that_a_postponed_status_lets_a_plugin_tell_twice_is_one_event() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let children = vec![(config_map("settings").to_string(), false)];
    let answer = Answer::Children { children, status: ripe(), requeue_after: None };
    // It reads its child, so that the status of the first call is stale.
    let guest = Guest::new().reads("v1", "ConfigMap").answer(answer).event("Ripened", "it is ripe");
    scene.activate(&guest.reconcile(&format!("{UNTIL_IT_HAS_A_STATUS} {READS}"))).await;
    scene.api.create(apple("a")).await;
    // Two calls tell the same, and the third sees the status.
    assert_eq!([scene.next().await, scene.next().await], [ReconcileResult::Success; 2]);
    assert_eq!(scene.next().await, ReconcileResult::Error);
    assert_eq!(told(&scene).await, [("Ripened".to_owned(), 1)]);
}

#[tokio::test]
async fn events_wait_for_a_status_that_cannot_be_written() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let status = Requests::to("myapples.stable.example.com/status", &[Verb::Apply]);
    let refused = Rule::new(Fault::Status(Refusal::code(500))).on(status);
    let refused = scene.api.server.faults().add(refused).expect("it is a rule");
    let answer = Answer::Children { children: Vec::new(), status: ripe(), requeue_after: None };
    let guest = Guest::new().answer(answer).event("Ripened", "it is ripe");
    scene.activate(&guest.reconcile(&format!("{UNTIL_IT_HAS_A_STATUS} {ANSWER}"))).await;
    scene.api.create(apple("a")).await;
    assert_eq!([scene.next().await, scene.next().await, scene.next().await], [ReconcileResult::Error; 3]);
    assert_eq!(told(&scene).await, []);
    assert!(scene.api.server.faults().remove(refused));
    while scene.next().await != ReconcileResult::Success {}
    assert_eq!(scene.next().await, ReconcileResult::Error);
    assert_eq!(told(&scene).await, [("Ripened".to_owned(), 1)]);
}

#[tokio::test]
async fn an_event_of_a_call_whose_child_cannot_be_written_is_not_repeated_by_the_next() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let refused = Rule::new(Fault::Status(Refusal::code(500))).on(Requests::to("configmaps", &[Verb::Apply])).times(2);
    scene.api.server.faults().add(refused).expect("it is a rule");
    let children = vec![(config_map("c").to_string(), false)];
    let answer = Answer::Children { children, status: None, requeue_after: None };
    scene.activate(&Guest::new().answer(answer).event("Filling", "it gets a child")).await;
    scene.api.create(apple("a")).await;
    assert_eq!([scene.next().await, scene.next().await], [ReconcileResult::Error; 2]);
    assert_eq!(told(&scene).await, [("Filling".to_owned(), 1)]);
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!(told(&scene).await[0].0, "Filling");
}

#[tokio::test]
async fn an_event_of_a_cleanup_is_not_repeated_while_its_finalizer_cannot_be_removed() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let guest = Guest::new().owns_nothing().finalizer("example.com/cleanup").event("Cleaned", "nothing is left");
    scene.activate(&guest).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    assert_eq!(told(&scene).await, [("Cleaned".to_owned(), 1)]);
    let apples = Requests::to("myapples.stable.example.com", &[Verb::Patch]);
    let refused = Rule::new(Fault::Status(Refusal::code(500))).on(apples);
    let refused = scene.api.server.faults().add(refused).expect("it is a rule");
    scene.api.delete(&super::apples(), &Key::new(Some("default"), "a")).await;
    assert_eq!([scene.next().await, scene.next().await, scene.next().await], [ReconcileResult::Error; 3]);
    // One of the call before, and one of the cleanup.
    assert_eq!(told(&scene).await, [("Cleaned".to_owned(), 2)]);
    assert!(scene.api.server.faults().remove(refused));
    while scene.next().await != ReconcileResult::Success {}
    assert_eq!(told(&scene).await, [("Cleaned".to_owned(), 2)]);
}

#[tokio::test]
async fn each_failure_that_a_plugin_returns_is_counted() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let answer = Answer::Failure { message: "no".into(), terminal: false, status: None };
    scene.activate(&Guest::new().answer(answer).event("Away", "the far end does not answer")).await;
    scene.api.create(apple("a")).await;
    for _ in 0..3 {
        assert_eq!(scene.next().await, ReconcileResult::Error);
    }
    let told = told(&scene).await;
    assert!(told.len() == 1 && told[0].1 >= 3, "{told:?}");
}

#[tokio::test]
async fn invariant_7_an_event_that_is_not_granted_is_not_written_and_fails_nothing() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let guest = Guest::new().owns_nothing().event("Ripened", "it is ripe");
    let read = "- {apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read]}";
    let event = "- {apiVersion: v1, kind: Event, verbs: [create]";
    for (grants, is_granted) in [
        (format!("grants:\n{read}\n"), false),
        (format!("grants:\n{read}\n{event}, namespaces: [elsewhere]}}\n"), false),
        (format!("grants:\n{read}\n{event}, namespaces: [default]}}\n"), true),
    ] {
        let file: grant::AdminFile = serde_saphyr::from_str(&grants).expect("an administrator's file");
        let mut candidate = scene.candidate(&guest).await;
        candidate.grants = Arc::new(Grants::new(&candidate.revision.manifest().permissions, &file.grants));
        soon("it becomes active", scene.dispatch.activate(candidate)).await.expect("it can serve");
        scene.api.create(apple("a")).await;
        assert_eq!(scene.next().await, ReconcileResult::Success);
        assert_eq!(!told(&scene).await.is_empty(), is_granted, "{grants}");
        scene.api.delete(&super::apples(), &Key::new(Some("default"), "a")).await;
        assert_eq!(scene.next().await, ReconcileResult::Success);
    }
}
