//! Writes when the cache differs from the server.

use pilothouse_apiserver::faults::{Answer, Delay, Fault, Requests, Rule, RuleId, Verb as Faulty};
use pilothouse_core::reflector::State;

use super::*;

fn key(name: &str) -> Key {
    Key::new(Some("default"), name)
}

fn with_data(name: &str, data: &serde_json::Value) -> serde_json::Value {
    let mut map = config_map(name);
    map["data"] = data.clone();
    map
}

impl Orchard {
    /// Stops the events of the ConfigMaps' watch.
    fn hold(&self) -> RuleId {
        let watches = Requests::to("configmaps", &[Faulty::Watch]);
        self.api.server.faults().add(Rule::new(Fault::Hold).on(watches)).expect("it is a rule")
    }

    /// Makes the server reject lists and watches of a resource, and cuts its watches.
    async fn refuse(&self, code: u16, resource: &str, of: &TypeMeta, reached: impl Fn(&State) -> bool) -> RuleId {
        let reads = Requests::to(resource, &[Faulty::List, Faulty::Watch]);
        let faults = self.api.server.faults();
        let refused = faults.add(Rule::new(Fault::Status(Answer::code(code))).on(reads)).expect("it is a rule");
        faults.cut(&Requests::to(resource, &[Faulty::Watch])).expect("watches can be cut");
        let lease = self.view.of(of).next().expect("it is cached");
        comes_true("the watch is lost", || reached(&lease.state())).await;
        refused
    }

    /// Changes an object as another manager.
    async fn somebody_patches(&self, name: &str, patch: serde_json::Value) {
        let options = cluster::WriteOptions { manager: "somebody", subresource: None };
        let (of, body) = (config_maps(), patch.to_string().into_bytes());
        self.api.cluster.patch(&of, Some("default"), name, Patch::Merge, body, options).await.expect("it is there");
    }

    /// Returns an object as the server has it, or `None` if it does not exist.
    async fn live(&self, name: &str) -> Option<serde_json::Value> {
        let body = self.api.cluster.get(&config_maps(), Some("default"), name).await.ok()?;
        Some(serde_json::from_slice(&body).expect("an object is JSON"))
    }

    async fn requests(&self) -> [u64; 3] {
        let count = async |verb| self.api.requests(verb, "configmaps").await;
        [count("APPLY").await, count("GET").await, count("DELETE").await]
    }

    /// Counts the applies, gets and deletes that `work` causes.
    async fn costs<T>(&self, work: impl Future<Output = T>) -> (T, [u64; 3]) {
        let before = self.requests().await;
        let done = work.await;
        let after = self.requests().await;
        (done, std::array::from_fn(|at| after[at] - before[at]))
    }
}

fn taken(report: &Report) -> bool {
    matches!(&report.problems[..], [Error::Taken { .. }])
}

#[tokio::test]
async fn a_child_is_made_changed_and_deleted_with_one_request_each() {
    let orchard = Orchard::plant().await;
    let [red, green] = ["red", "green"].map(|color| with_data("c", &json!({ "color": color })));
    for (children, expected) in [(vec![red], [1, 0, 0]), (vec![green], [1, 0, 0]), (vec![], [0, 0, 1])] {
        let (report, requests) = orchard.costs(orchard.children(&children)).await;
        assert_eq!((report.problem(), report.written, requests), (None, 1, expected));
    }
    assert_eq!(orchard.live("c").await, None);
}

#[tokio::test]
async fn an_object_that_the_watch_has_not_shown_is_not_taken_over() {
    let orchard = Orchard::plant().await;
    orchard.hold();
    orchard.api.create(with_data("victim", &json!({ "precious": "yes" }))).await;
    assert!(orchard.view.get(&config_maps(), &key("victim")).is_none());
    let (report, requests) = orchard.costs(orchard.children(&[config_map("victim"), config_map("free")])).await;
    assert!(taken(&report), "{report:?}");
    assert_eq!((report.written, requests), (1, [2, 1, 0]));
    let live = orchard.live("victim").await.expect("it is there");
    assert_eq!((&live["data"]["precious"], &live["metadata"]["ownerReferences"]), (&json!("yes"), &json!(null)));

    // A plugin that asks to adopt the object gets it.
    let child = Child { object: config_map("victim").to_string(), adopt: true, replace: false };
    let owner = Owner { object: &orchard.object, owns: &[config_maps()] };
    let report = orchard.writer.children(&owner, &orchard.view, vec![child]).await;
    assert_eq!(report.problem(), None);
    let live = orchard.live("victim").await.expect("it is there");
    assert_eq!(live["data"]["precious"], "yes");
    assert_eq!(live["metadata"]["ownerReferences"][0]["name"], "a");
}

#[tokio::test]
async fn a_child_that_changed_hands_while_the_watch_lagged_is_neither_pruned_nor_taken_back() {
    let orchard = Orchard::plant().await;
    assert_eq!(orchard.children(&[config_map("c"), config_map("d")]).await.written, 2);
    orchard.hold();
    for name in ["c", "d"] {
        let patch = json!({ "metadata": { "ownerReferences": null }, "data": { "precious": "yes" } });
        orchard.somebody_patches(name, patch).await;
    }
    // `c` is not wanted any more, and `d` is to change.
    let (report, requests) = orchard.costs(orchard.children(&[with_data("d", &json!({ "precious": "no" }))])).await;
    assert!(taken(&report), "{report:?}");
    assert_eq!((report.written, requests), (0, [1, 2, 1]));
    for name in ["c", "d"] {
        let live = orchard.live(name).await.expect("it survives");
        assert_eq!((&live["data"]["precious"], &live["metadata"]["ownerReferences"]), (&json!("yes"), &json!(null)));
    }
}

#[tokio::test]
async fn an_object_made_anew_by_somebody_while_the_watch_lagged_is_not_taken_over() {
    let orchard = Orchard::plant().await;
    assert_eq!(orchard.children(&[config_map("c"), config_map("d")]).await.written, 2);
    orchard.hold();
    for name in ["c", "d"] {
        orchard.api.delete(&config_maps(), &key(name)).await;
        orchard.api.create(with_data(name, &json!({ "precious": "yes" }))).await;
    }
    let report = orchard.children(&[with_data("d", &json!({ "precious": "no" }))]).await;
    assert!(taken(&report), "{report:?}");
    for name in ["c", "d"] {
        assert_eq!(orchard.live(name).await.expect("it survives")["data"]["precious"], "yes");
    }
}

#[tokio::test]
async fn a_child_that_somebody_touched_while_the_watch_lagged_is_still_written_and_pruned() {
    let orchard = Orchard::plant().await;
    assert_eq!(orchard.children(&[config_map("c"), config_map("d"), config_map("e")]).await.written, 3);
    orchard.hold();
    orchard.somebody_patches("c", json!({ "data": { "note": "mine" } })).await;
    orchard.somebody_patches("d", json!({ "data": { "note": "mine" } })).await;
    orchard.api.delete(&config_maps(), &key("e")).await;
    let children = [with_data("d", &json!({ "color": "red" })), with_data("e", &json!({ "color": "red" }))];
    let (report, requests) = orchard.costs(orchard.children(&children)).await;
    assert_eq!((report.problem(), report.written), (None, 3));
    // `c`: delete, get, delete. `d`: apply, get, apply. `e` does not exist, and is created at once.
    assert_eq!(requests, [3, 2, 2]);
    assert_eq!(orchard.live("c").await, None);
    let live = orchard.live("d").await.expect("it is there");
    assert_eq!(live["data"], json!({ "color": "red", "note": "mine" }));
    assert_eq!(orchard.live("e").await.expect("it is made anew")["data"], json!({ "color": "red" }));
}

#[tokio::test]
async fn a_child_that_ends_unseen_is_tried_again() {
    let orchard = Orchard::plant().await;
    orchard.hold();
    let mut ending = config_map("c");
    ending["metadata"]["finalizers"] = json!(["example.com/hold"]);
    ending["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "stable.example.com/v1", "kind": "MyApple", "name": "a", "controller": true,
        "uid": orchard.object.uid().to_string(),
    }]);
    orchard.api.create(ending).await;
    orchard.api.delete(&config_maps(), &key("c")).await;
    let report = orchard.children(&[config_map("c")]).await;
    assert!(matches!(&report.problems[..], [Error::Ending { .. }]), "{report:?}");
}

#[tokio::test]
async fn nothing_is_deleted_while_the_watch_of_an_owned_kind_is_denied_and_the_reconcile_says_why() {
    let orchard = Orchard::plant().await;
    assert_eq!(orchard.children(&[config_map("c")]).await.written, 1);
    orchard.refuse(403, "configmaps", &config_maps(), |state| matches!(state, State::Denied(_))).await;
    orchard.api.create(with_data("victim", &json!({ "precious": "yes" }))).await;
    let report = orchard.children(&[config_map("d"), config_map("victim")]).await;
    // What the server checks is written.
    assert_eq!(report.written, 1);
    assert!(report.awaits_watch);
    let [Error::Taken { .. }, unknown @ Error::Unknown { .. }] = &report.problems[..] else { panic!("{report:?}") };
    let told = unknown.to_string();
    assert!(
        told.starts_with("cannot tell which children of v1 ConfigMap exist: the watch has been denied since 20"),
        "{told}"
    );
    assert!(told.contains("grant the host's account list and watch"), "{told}");
    assert!(orchard.live("c").await.is_some(), "it was pruned on the word of an old cache");
    assert_eq!(orchard.live("victim").await.expect("it is there")["metadata"]["ownerReferences"], json!(null));
    // A child that holds is still skipped.
    let (report, requests) = orchard.costs(orchard.children(&[config_map("d")])).await;
    assert_eq!((report.skipped, requests), (1, [0, 0, 0]));
    assert!(matches!(&report.problems[..], [Error::Unknown { .. }]), "{report:?}");
}

#[tokio::test]
async fn a_watch_that_is_lost_for_a_moment_fails_no_reconcile() {
    let orchard = Orchard::plant().await;
    assert_eq!(orchard.children(&[config_map("c")]).await.written, 1);
    orchard.refuse(503, "configmaps", &config_maps(), |state| matches!(state, State::Waiting { .. })).await;
    assert_eq!(orchard.children(&[config_map("c")]).await.problem(), None);
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(6)).await;
    tokio::time::resume();
    let report = orchard.children(&[]).await;
    let told = report.problem().unwrap_or_default();
    assert!(
        told.starts_with("cannot tell which children of v1 ConfigMap exist: the watch has been broken since "),
        "{told}"
    );
    assert!(orchard.live("c").await.is_some());
}

#[tokio::test]
async fn nothing_is_deleted_for_an_owner_whose_own_watch_is_denied() {
    let mut orchard = Orchard::plant().await;
    orchard.api.serve_apples().await;
    // Children of an owner that does not exist would be garbage-collected.
    orchard.api.create(apple("a")).await;
    let informers = &orchard.writer.informers;
    let own = lease(informers, InformerKey::all(apples())).await;
    orchard.object = own.get(&key("a")).expect("it is cached");
    orchard.view = View::new([lease(informers, InformerKey::all(config_maps())).await, own]);
    assert_eq!(orchard.children(&[config_map("c"), config_map("d")]).await.written, 2);
    let refused = "myapples.stable.example.com";
    orchard.refuse(403, refused, &apples(), |state| matches!(state, State::Denied(_))).await;
    // Nothing would be deleted.
    assert_eq!(orchard.children(&[config_map("c"), config_map("d")]).await.problem(), None);
    let report = orchard.children(&[config_map("c")]).await;
    assert!(matches!(&report.problems[..], [Error::OldOwner { .. }]), "{report:?}");
    assert!(orchard.live("d").await.is_some());
}

#[tokio::test]
async fn nothing_begins_once_the_fence_is_closed() {
    let orchard = Orchard::plant().await;
    assert_eq!(orchard.children(&[config_map("c")]).await.written, 1);
    // All but the first few writes would begin after the fence was closed.
    let children: Vec<_> = (0..200).map(|number| config_map(&format!("c-{number}"))).collect();
    let slow = Rule::new(Fault::Delay(Delay { milliseconds: 20, up_to: None }));
    let slow = slow.on(Requests::to("configmaps", &[Faulty::Apply]));
    let slow = orchard.api.server.faults().add(slow).expect("it is a rule");
    let hits = || orchard.api.server.faults().hits(slow).unwrap_or_default();
    let close = async {
        comes_true("some are written", || hits() >= 16).await;
        orchard.writer.fence.close_after(std::time::Duration::ZERO);
        hits()
    };
    let (report, before) = tokio::join!(orchard.children(&children), close);
    let after = hits();
    assert!(after <= before + 8, "{after} writes, of which {before} began in time");
    assert_eq!(report.written as u64, after);
    let told = report.problem().unwrap_or_default();
    assert!(told.starts_with("not written: the plugin was removed or disabled") && !told.contains("more"), "{told}");

    let (writer, of, key) = (&orchard.writer, config_maps(), key("c"));
    let map = config_map("d").to_string();
    let refused = [
        writer.get(&of, &key, None).await.map(drop),
        writer.create(&map).await.map(drop),
        writer.update(&map, None).await.map(drop),
        writer.apply_object(&map, None, false).await.map(drop),
        writer.patch(&of, &key, Patch::Merge, "{}".to_owned(), None).await.map(drop),
        writer.delete_object(&of, &key, DeleteOptions::default()).await,
    ];
    assert!(refused.iter().all(|refused| matches!(refused, Err(ClientError::Closed(_)))), "{refused:?}");
    let (pruned, requests) = orchard.costs(orchard.children(&[])).await;
    assert!(matches!(&pruned.problems[..], [Error::Closed(_)]), "{pruned:?}");
    assert_eq!(requests, [0, 0, 0]);
    let view = View::new([lease(&writer.informers, InformerKey::all(config_maps())).await]);
    let own = view.get(&of, &key).expect("it is there");
    let grants = Permission {
        of: of.clone(),
        subresource: Some(Subresource::Status),
        verbs: [Verb::Apply].into_iter().collect(),
        namespaces: Vec::new(),
        names: Vec::new(),
    };
    writer.grants.store(Arc::new(Grants::all_asked(&[grants])));
    let status = writer.status(&Owner { object: &own, owns: &[] }, &view, r#"{"phase":"Ripe"}"#).await;
    assert!(matches!(status, Err(Error::Closed(_))), "{status:?}");
}
