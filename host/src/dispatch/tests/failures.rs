//! Plugins whose calls fail, objects that are reconciled over and over, and their Events and log lines.

use pilothouse_core::{breaker::Storm, object::Object, quarantine::IN_A_ROW};
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{Patch, WriteOptions},
    dispatch::{
        Hook, Record, ReleaseOutcome,
        hook::HookError,
        queue::Cause,
        record::{CallFailure, Failed},
    },
    wasm::{CallError, Phase},
    writer::Fence,
};

/// Waits for Events with this reason on an object, and returns them.
async fn events(scene: &Scene, name: &str, reason: &str) -> Vec<Value> {
    let path =
        format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{name}%2Creason%3D{reason}");
    soon("an Event is there", async {
        loop {
            let body = scene.api.cluster.get_path(&path).await.expect("Events can be listed");
            let mut list: Value = serde_json::from_slice(&body).expect("a list");
            let events = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
            if !events.is_empty() {
                return events;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

fn record(scene: &Scene) -> Arc<Record> {
    scene.dispatch.records().into_iter().next().expect("a plugin is at work")
}

/// A scene with a quarantined plugin.
async fn quarantined() -> Scene {
    quarantined_as(&Guest::new()).await
}

async fn quarantined_as(guest: &Guest) -> Scene {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&guest.clone().reconcile(TRAP)).await;
    for number in 0..IN_A_ROW {
        scene.api.create(apple(&format!("apple-{number}"))).await;
    }
    for _ in 0..IN_A_ROW {
        assert_eq!(scene.next().await, ReconcileResult::Error);
    }
    scene.saw("quarantined", 1).await;
    scene
}

#[tokio::test]
async fn plugin_whose_calls_fail_is_quarantined_until_it_has_a_better_revision() {
    let mut scene = quarantined().await;
    let quarantined = record(&scene).quarantined().expect("it is quarantined");
    assert_eq!(quarantined.times, 1);
    assert!(quarantined.why.starts_with("plugin trapped: "), "{}", quarantined.why);
    let failure = record(&scene).last_failure().expect("it failed");
    assert_eq!((failure.kind, &failure.message), ("trap", &quarantined.why));
    assert!(failure.call.starts_with("reconcile of default/apple-"), "{}", failure.call);

    scene.activate(&Guest::new().version("2.0.0")).await;
    assert_eq!(record(&scene).quarantined(), None);
    scene.saw("free", 1).await;
    // Every key that failed and was held back is reconciled.
    let mut ended = Vec::new();
    while ended.iter().filter(|result| **result == ReconcileResult::Success).count() < IN_A_ROW as usize {
        ended.push(scene.next().await);
    }
}

#[tokio::test]
async fn quarantine_writes_an_event_on_the_object_of_the_last_failed_call() {
    let scene = quarantined().await;
    let failed = record(&scene).last_failure().expect("it failed").call;
    let name = failed.trim_start_matches("reconcile of default/").trim_end_matches(" (apples)");
    let events = events(&scene, name, "PluginQuarantined").await;
    let event = &events[0];
    let message = event["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("plugin apples is quarantined and reconciles nothing for a while: 10 calls"),
        "{message}"
    );
    assert_eq!((&event["type"], &event["involvedObject"]["kind"]), (&json!("Warning"), &json!("MyApple")));
}

/// Objects name keys of a quarantined plugin. Those that are known are woken, which the `by`th count shows.
async fn is_named(guest: &Guest, by: usize, names: impl Fn(&str) -> Value) {
    let scene = quarantined_as(guest).await;
    let controller = scene.controller();
    // The server has ConfigMaps of its own, which were mapped before.
    let before = controller.waking().woken()[by].1;
    let woken = || controller.waking().woken()[by].1 - before;
    let looked_for = async |times| comes_true("it is looked for", || woken() >= times).await;
    scene.api.create(names("nobody")).await;
    scene.api.create(names("apple-0")).await;
    looked_for(1).await;
    // A deleted object that is not reconciled yet is known too.
    scene.api.delete(&apples(), &Key::new(Some("default"), "apple-1")).await;
    comes_true("it is gone", || controller.waking().woken()[0].1 > u64::from(IN_A_ROW)).await;
    scene.api.create(names("apple-1")).await;
    looked_for(2).await;
    // The lookup of `nobody` came before.
    assert_eq!(woken(), 2);
}

#[tokio::test]
async fn key_that_a_mapping_names_during_a_quarantine_is_woken_if_it_is_known() {
    is_named(&Guest::new().owns_nothing().maps("v1", "ConfigMap", Mapping::SameKey), 2, config_map).await;
}

#[tokio::test]
async fn key_that_a_child_names_during_a_quarantine_is_woken_if_it_is_known() {
    let child = |owner: &str| {
        let mut child = config_map(owner);
        // The owner's version is not served, so the garbage collector cannot tell whether the owner exists.
        child["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "stable.example.com/v9", "kind": "MyApple", "name": owner,
            "uid": "6b1f0a9e-57a1-4c0e-9f0e-0d6f3c1b2a00", "controller": true,
        }]);
        child
    };
    is_named(&Guest::new(), 1, child).await;
}

/// A plugin fails over each object for ever, and the objects are deleted.
async fn takes_no_deletion(guest: &Guest) {
    const ALL: u64 = 6;
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let keys: Vec<Key> = (0..ALL).map(|number| Key::new(Some("default"), &format!("apple-{number}"))).collect();
    for key in &keys {
        scene.api.create(apple(&key.name)).await;
    }
    scene.activate(guest).await;
    let controller = scene.controller();
    controller.wakes().record.remembered().gone.objects.set_most(2);
    let has_failed = |key: &Key| controller.ledger().last_error(key).is_some();
    comes_true("each has failed", || keys.iter().all(has_failed)).await;
    for (key, deleted) in keys.iter().zip(1..) {
        scene.api.delete(&apples(), key).await;
        let noted = || controller.ledger().gone().objects as u64 + controller.ledger().gone().dropped;
        comes_true("it is noted", || noted() == deleted).await;
    }
    let gone = controller.ledger().gone();
    assert_eq!((gone.objects as u64, gone.dropped), (2, ALL - 2));
    // A worker may still have one of the dropped keys.
    let known = || {
        let queue = controller.ledger().queue().lock();
        queue.len() + queue.delayed() + queue.processing()
    };
    comes_true("nothing is left of the others", || (known(), controller.ledger().failing(20).0) == (2, 2)).await;
    let last = |key: &Key| {
        controller.ledger().look_up(&controller.serving(), key).map(|(last, phase)| (last.key().clone(), phase))
    };
    let (first, kept) = keys.split_at(4);
    assert!(first.iter().all(|key| last(key).is_none() && !has_failed(key)));
    assert!(kept.iter().all(|key| last(key) == Some((key.clone(), Phase::Gone)) && has_failed(key)));

    scene.activate(&Guest::new().version("2.0.0")).await;
    for _ in kept {
        while scene.next().await != ReconcileResult::Success {}
    }
    comes_true("nothing is gone any more", || controller.ledger().gone().objects == 0 && known() == 0).await;
    assert!(scene.ended.try_recv().is_err());
}

#[tokio::test]
async fn invariant_12_deletions_that_a_plugin_never_takes_are_bounded() {
    let no = Answer::Failure { message: "no".into(), terminal: false, status: None };
    takes_no_deletion(&Guest::new().answer(no)).await;
}

#[tokio::test]
async fn invariant_12_deletions_that_a_quarantined_plugin_never_takes_are_bounded() {
    takes_no_deletion(&Guest::new().reconcile(TRAP)).await;
}

#[tokio::test]
async fn a_quarantine_can_be_ended_by_hand() {
    let scene = quarantined().await;
    assert_eq!(scene.dispatch.release("pears"), ReleaseOutcome::UnknownPlugin);
    assert_eq!(scene.dispatch.release("apples"), ReleaseOutcome::Released);
    scene.saw("free", 1).await;
    assert_eq!(scene.dispatch.release("apples"), ReleaseOutcome::NotQuarantined);
}

#[tokio::test]
async fn errors_that_a_plugin_returns_do_not_count_for_the_quarantine() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let no = Answer::Failure { message: "no".into(), terminal: true, status: None };
    scene.activate(&Guest::new().answer(no)).await;
    for number in 0..2 * IN_A_ROW {
        scene.api.create(apple(&format!("apple-{number}"))).await;
    }
    for _ in 0..2 * IN_A_ROW {
        assert_eq!(scene.next().await, ReconcileResult::Terminal);
    }
    assert_eq!((record(&scene).quarantined(), record(&scene).last_failure()), (None, None));
}

#[tokio::test]
async fn failing_key_is_listed_until_it_succeeds() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let no = Answer::Failure { message: "no".into(), terminal: false, status: None };
    scene.activate(&Guest::new().answer(no)).await;
    scene.api.create(apple("a")).await;
    assert_eq!([scene.next().await, scene.next().await], [ReconcileResult::Error; 2]);
    let controller = scene.controller();
    let (all, failing) = controller.ledger().failing(20);
    let listed: Vec<_> =
        failing.iter().map(|failing| (&*failing.key.name, &*failing.error, failing.failures > 0)).collect();
    assert_eq!((all, listed), (1, vec![("a", "no", true)]));

    scene.activate(&Guest::new().version("2.0.0")).await;
    comes_true("it fails no more", || controller.ledger().failing(20) == (0, Vec::new())).await;
}

#[tokio::test]
async fn terminal_failure_writes_an_event_on_the_object() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    let no = Answer::Failure { message: "no apples\tleft".into(), terminal: true, status: None };
    scene.activate(&Guest::new().answer(no)).await;
    scene.api.create(apple("a")).await;
    let mut events = events(&scene, "a", "ReconcileFailed").await;
    let event = &mut events[0];
    let view = scene.controller().serving().view.clone();
    let apple = view.get(&apples(), &Key::new(Some("default"), "a")).expect("it is cached");
    let name = event["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    assert!(name.starts_with("a."), "{name}");
    let (first, last) = (event["firstTimestamp"].take(), event["lastTimestamp"].take());
    assert!(first.is_string() && first == last, "{first} {last}");
    event["metadata"] = json!(null);
    let expected = json!({
        "metadata": null,
        "involvedObject": {
            "apiVersion": "stable.example.com/v1", "kind": "MyApple", "namespace": "default", "name": "a",
            "uid": apple.uid().to_string(), "resourceVersion": apple.resource_version().to_string(),
        },
        "type": "Warning", "reason": "ReconcileFailed", "count": 1,
        "message": "plugin apples gave up until something changes: no apples\tleft",
        "firstTimestamp": null, "lastTimestamp": null,
        "source": { "component": "pilothouse", "host": "test" },
        "reportingComponent": "pilothouse", "reportingInstance": "test",
    });
    let of_expected = |event: &Value| -> Value {
        let members = expected.as_object().map(|members| members.keys().cloned().collect::<Vec<_>>());
        members.unwrap_or_default().into_iter().map(|member| (member.clone(), event[&member].clone())).collect()
    };
    assert_eq!(of_expected(event), expected);
}

#[tokio::test]
async fn an_event_does_not_quote_a_plugin_that_may_read_secrets() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    let no = Answer::Failure { message: "cannot parse hunter2".into(), terminal: true, status: None };
    scene.activate(&Guest::new().reads("v1", "Secret").answer(no)).await;
    scene.api.create(apple("a")).await;
    let events = events(&scene, "a", "ReconcileFailed").await;
    let expected = "plugin apples gave up until something changes: see the host's log; the plugin may read Secrets, so its text is not shown here";
    assert_eq!(events[0]["message"], json!(expected));
}

#[tokio::test]
async fn object_that_has_failed_for_a_while_gets_an_event() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    let no = Answer::Failure { message: "no".into(), terminal: false, status: None };
    scene.activate(&Guest::new().answer(no)).await;
    scene.api.create(apple("a")).await;
    // Each change causes a try before the backoff has passed.
    for size in 0..12 {
        assert_eq!(scene.next().await, ReconcileResult::Error);
        let change = json!({ "spec": { "size": size } }).to_string().into_bytes();
        let options = WriteOptions { manager: "test", subresource: None };
        let cluster = &scene.api.cluster;
        cluster.patch(&apples(), Some("default"), "a", Patch::Merge, change, options).await.expect("it can be patched");
    }
    let events = events(&scene, "a", "ReconcileFailed").await;
    assert_eq!(events[0]["message"], json!("plugin apples keeps failing: no"));
}

#[tokio::test]
async fn two_sides_that_fight_over_a_field_are_slowed_down_and_the_child_is_named() {
    let scene = Scene::new().await;
    scene.api.serve_apples().await;
    let ours = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "child" }, "data": { "color": "green" },
    });
    let answer = Answer::Children { children: vec![(ours.to_string(), false)], status: None, requeue_after: None };
    scene.activate(&Guest::new().answer(answer)).await;
    scene.api.create(apple("a")).await;
    let controller = scene.controller();
    let (view, child) = (controller.serving().view.clone(), Key::new(Some("default"), "child"));
    let fight = async {
        loop {
            while !view.get(&maps(), &child).is_some_and(|child| child.json().contains("green")) {
                tokio::task::yield_now().await;
            }
            let theirs = json!({ "data": { "color": "red" } }).to_string().into_bytes();
            let options = WriteOptions { manager: "somebody", subresource: None };
            let cluster = &scene.api.cluster;
            cluster
                .patch(&maps(), Some("default"), "child", Patch::Merge, theirs, options)
                .await
                .expect("it can be patched");
        }
    };
    let noticed = async {
        let events = events(&scene, "a", "ReconcileStorm").await;
        let storms = controller.ledger().queue().storms();
        assert_eq!(controller.ledger().queue().breakers(), (1, 1));
        let (key, storm) = &storms[0];
        assert_eq!(*key, Key::new(Some("default"), "a"));
        assert_eq!(storm.by.as_ref().map(|by| &by.cause), Some(&Cause::Child(maps(), child.clone())));
        let message = events[0]["message"].as_str().unwrap_or_default();
        assert!(
            message.ends_with(" times it was woken by changes of its child v1 ConfigMap default/child"),
            "{message}"
        );
        // Other keys are reconciled meanwhile: `b` fails, because the child belongs to `a`.
        scene.api.create(apple("b")).await;
        let b = Key::new(Some("default"), "b");
        while controller.ledger().last_error(&b).is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = soon("the fight is noticed", noticed) => {}
        () = fight => {}
    }
}

#[tokio::test]
async fn calls_into_the_host_are_counted() {
    let mut scene = Scene::new().await;
    scene.api.serve_apples().await;
    scene.activate(&Guest::new().owns_nothing().reads("v1", "ConfigMap").reconcile(READS)).await;
    scene.api.create(apple("a")).await;
    assert_eq!(scene.next().await, ReconcileResult::Success);
    let asked: Vec<_> = record(&scene).imports().filter(|(_, count)| *count > 0).collect();
    assert_eq!(asked, [("cache.get", 1)]);
}

/// A record of a plugin whose clock stands still.
async fn fresh() -> (Scene, Record) {
    let scene = Scene::new().await;
    // Paused time goes on by itself only while everything waits. From here on nothing does.
    tokio::time::pause();
    let record = Record::new(
        PluginName::new("apples").expect("a name"),
        Arc::new(Fence::new(Acting::new(true))),
        &scene.dispatch.parts,
        &Arc::default(),
    );
    (scene, record)
}

#[tokio::test]
async fn backtrace_is_logged_once_a_minute_for_each_kind_of_failure() {
    let (_scene, record) = fresh().await;
    let frames: Vec<String> = (0..10).map(|depth| format!("{depth}: apples!eat")).collect();
    let trap = || CallError::Trap { reason: "unreachable".into(), said: None, backtrace: frames.clone() };
    let stack = || CallError::Stack { backtrace: frames.clone() };
    let logged = |error| record.hook_failed(Hook::Observe, "Pod a/b", &HookError::Call(error));
    let (all, none) = (Some(frames.clone()), Some(Vec::new()));
    assert_eq!([logged(trap()), logged(trap()), logged(stack())], [all.clone(), none, all]);
    let mut last = record.last_failure().expect("it failed");
    last.at = jiff::Timestamp::UNIX_EPOCH;
    let expected = CallFailure {
        at: jiff::Timestamp::UNIX_EPOCH,
        call: "observe of Pod a/b".into(),
        kind: "stack",
        message: "plugin overflowed its stack".into(),
        backtrace: frames,
    };
    assert_eq!(last, expected);
}

#[tokio::test]
async fn failures_that_come_too_fast_are_counted_and_not_logged() {
    const BURST: usize = 1000;
    let refused = |record: &Record| record.log_failure("no apples", false);
    let hook_refused = |record: &Record| {
        let error = HookError::Refused("no apples".into());
        record.hook_failed(Hook::Map, "Pod a/b", &error).is_some()
    };
    let hook_trapped = |record: &Record| {
        let error = CallError::Answer("nonsense".into());
        record.hook_failed(Hook::Map, "Pod a/b", &HookError::Call(error)).is_some()
    };
    let fails: [&dyn Fn(&Record) -> bool; 3] = [&refused, &hook_refused, &hook_trapped];
    let (scene, _) = fresh().await;
    for fail in fails {
        let record = Record::new(
            PluginName::new("apples").expect("a name"),
            Arc::new(Fence::new(Acting::new(true))),
            &scene.dispatch.parts,
            &Arc::default(),
        );
        assert!((0..BURST).all(|_| fail(&record)));
        assert_eq!(record.lines_dropped(), 0);
        assert!(!(0..100).any(|_| fail(&record)));
        assert_eq!(record.lines_dropped(), 100);
    }
}

fn one() -> Object {
    let mut json = apple("a");
    json["metadata"]["uid"] = "1".into();
    json["metadata"]["resourceVersion"] = "1".into();
    Object::parse(json.to_string().as_bytes(), &apples()).expect("an object")
}

#[tokio::test]
async fn failed_calls_that_come_too_fast_are_counted_and_not_logged() {
    let (_scene, record) = fresh().await;
    let object = one();
    let error = CallError::Answer("nonsense".into());
    for _ in 0..1100 {
        let call = record.begin();
        record.failed(
            call,
            &Failed { controller: "apples", key: object.key(), object: &object, error: &error, is_quotable: true },
        );
    }
    assert_eq!((record.lines_dropped(), record.last_failure().map(|last| last.kind)), (100, Some("answer")));
    assert_eq!(record.traps(), [("answer", 1100)].into());
}

#[tokio::test]
async fn storms_of_many_objects_are_logged_for_some_and_do_not_use_up_the_plugins_lines() {
    let (_scene, record) = fresh().await;
    let storm = Storm { since: Duration::ZERO, open: Some(Duration::ZERO), reconciles: 60, wakes: 60, by: None };
    let key = |number: i32| Key::new(Some("default"), &format!("apple-{number}"));
    let second = Duration::from_secs(1);
    let storms = (0..1000).filter(|number| record.log_storm("apples", &key(*number), &storm, second)).count();
    let calmed = (0..1000).filter(|number| record.log_settled("apples", &key(*number), &storm, second)).count();
    assert_eq!((storms, calmed), (20, 0));
    assert_eq!((record.may_log(), record.lines_dropped()), (true, 0));
}
