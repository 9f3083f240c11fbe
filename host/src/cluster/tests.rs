//! Requests of several plugins to the embedded API server.
#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReviewSpec};
use pilothouse_apiserver::faults::{Answer, Delay, Fault, Requests, Rule, Verb};
use pilothouse_core::{
    key::{Key, TypeMeta},
    permits::Usage,
};

use super::{Cluster, Error};
use crate::{
    acting::Acting,
    testing::{Api, apple, apples, comes_true, config_map, soon},
};

fn config_maps() -> TypeMeta {
    TypeMeta::new("v1", "ConfigMap")
}

fn usage(cluster: &Cluster, plugin: &str) -> Usage {
    cluster.requests().into_iter().find(|(name, _)| **name == *plugin).map(|(_, usage)| usage).unwrap_or_default()
}

fn delay(milliseconds: u32) -> Fault {
    Fault::Delay(Delay { milliseconds, up_to: None })
}

#[tokio::test]
async fn a_request_takes_little_room_in_the_task_that_awaits_it() {
    const MOST: usize = 2 << 10;
    let api = Api::start().await;
    let (of, key) = (config_maps(), Key::new(Some("default"), "any"));
    let get = api.cluster.get(&of, key.namespace.as_deref(), &key.name);
    let create = api.cluster.create(&of, key.namespace.as_deref(), Vec::new(), "test");
    // Each worker of each plugin has this room all the time.
    for size in [size_of_val(&get), size_of_val(&create)] {
        assert!(size <= MOST, "{size} bytes");
    }
}

#[tokio::test]
async fn invariant_8_a_flood_of_one_plugin_leaves_the_next_turns_to_another() {
    const WORKERS: usize = 256;
    let api = Api::start().await;
    let faults = api.server.faults();
    faults.add(Rule::new(delay(20)).on(Requests::to("configmaps", &[]))).unwrap();
    let connections = faults.add(Rule::new(delay(1)).on(Requests::to("*", &[Verb::Connect]))).unwrap();
    let busy = api.cluster.for_plugin("busy", None);
    let answered = Arc::new(AtomicUsize::new(0));
    let flood: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (busy, answered) = (busy.clone(), answered.clone());
            tokio::spawn(async move {
                loop {
                    let _ = busy.get(&config_maps(), Some("default"), "never").await;
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    comes_true("the flood waits for permits", || usage(&api.cluster, "busy").waiting > 0).await;
    let quiet = api.cluster.for_plugin("quiet", None);
    for number in 0..10 {
        let before = answered.load(Ordering::Relaxed);
        let body = config_map(&format!("quiet-{number}")).to_string().into_bytes();
        quiet.create(&config_maps(), Some("default"), body, "test").await.unwrap();
        let served = answered.load(Ordering::Relaxed) - before;
        // At most those in flight, and as many again while this request was in flight. Not the 208 that waited before
        // it.
        assert!(served <= 4 * 48, "{served} requests of the flood were answered first");
        let Usage { in_flight, .. } = usage(&api.cluster, "busy");
        assert!(in_flight <= 48, "{in_flight} are in flight");
    }
    assert_eq!(usage(&api.cluster, "quiet").waited, 0);
    flood.iter().for_each(tokio::task::JoinHandle::abort);
    comes_true("cancelled requests have no permit", || usage(&api.cluster, "busy").in_flight == 0).await;
    let connections = faults.hits(connections).unwrap();
    // Twice the permits, because a request may open a connection before the last one has returned to the pool.
    assert!(connections <= 128, "{connections} connections");
}

#[tokio::test]
async fn a_retry_after_pauses_only_the_plugin_that_received_it() {
    let api = Api::start().await;
    let refused = Requests::to("configmaps", &[Verb::Get]);
    let answer = Answer { retry_after_seconds: Some(30), ..Answer::code(429) };
    api.server.faults().add(Rule::new(Fault::Status(answer)).on(refused).times(1)).unwrap();
    let plugin = api.cluster.for_plugin("refused", None);
    let error = plugin.get(&config_maps(), Some("default"), "a").await.unwrap_err();
    assert_eq!(error.retry_after().map(|after| after.as_secs()), Some(30));
    let again = tokio::spawn({
        let plugin = plugin.clone();
        async move { plugin.get(&config_maps(), Some("default"), "a").await }
    });
    comes_true("its next request waits", || usage(&api.cluster, "refused").waiting == 1).await;
    let body = config_map("a").to_string().into_bytes();
    let other = api.cluster.for_plugin("other", None);
    other.create(&config_maps(), Some("default"), body, "test").await.unwrap();
    assert!(!again.is_finished());
    let Usage { waiting, throttled, .. } = usage(&api.cluster, "refused");
    assert_eq!((waiting, throttled), (1, 1));
    again.abort();
    comes_true("it is cancelled", || usage(&api.cluster, "refused").waiting == 0).await;
}

#[tokio::test]
async fn a_kind_that_comes_back_under_another_path_is_found_by_a_request() {
    let api = Api::start().await;
    let (my_apples, definitions) = (
        TypeMeta::new("stable.example.com/v1", "MyApple"),
        TypeMeta::new("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    );
    let plugin = api.cluster.for_plugin("a", None);
    api.serve_apples().await;
    assert!(plugin.get(&my_apples, Some("default"), "gala").await.unwrap_err().is_not_found());
    assert_eq!(plugin.known(&my_apples).map(|endpoint| endpoint.plural.clone()).as_deref(), Some("myapples"));

    api.delete(&definitions, &Key::new(None, "myapples.stable.example.com")).await;
    let mut pommes = apples("Namespaced", &[("v1", true)]);
    pommes["metadata"]["name"] = "pommes.stable.example.com".into();
    pommes["spec"]["names"]["plural"] = "pommes".into();
    soon("the old definition is gone", async {
        while api.cluster.create(&definitions, None, pommes.to_string().into_bytes(), "test").await.is_err() {}
    })
    .await;
    let gala = apple("gala").to_string().into_bytes();
    plugin.create(&my_apples, Some("default"), gala, "test").await.unwrap();
    assert_eq!(plugin.known(&my_apples).map(|endpoint| endpoint.plural.clone()).as_deref(), Some("pommes"));

    // A 404 that names an object does not concern the path.
    let looks = Rule::new(delay(1)).on(Requests::to("*", &[Verb::Discovery]));
    let looks = api.server.faults().add(looks).unwrap();
    for _ in 0..3 {
        assert!(plugin.get(&my_apples, Some("default"), "fuji").await.unwrap_err().is_not_found());
    }
    assert_eq!(api.server.faults().hits(looks), Some(0));
}

#[tokio::test]
async fn a_standby_may_ask_who_a_token_belongs_to_and_what_its_user_may_do() {
    let api = Api::start().await;
    let standby = api.cluster.clone().fenced(Acting::new(false));
    let status = standby.review_token("made-up").await.unwrap();
    assert_eq!((status.authenticated, status.error.as_deref()), (None, Some("invalid bearer token")));
    let attributes = NonResourceAttributes { path: Some("/metrics".to_owned()), verb: Some("get".to_owned()) };
    for (group, allowed) in [("system:masters", true), ("system:authenticated", false)] {
        let spec = SubjectAccessReviewSpec {
            user: Some("ana".to_owned()),
            groups: Some(vec![group.to_owned()]),
            non_resource_attributes: Some(attributes.clone()),
            ..SubjectAccessReviewSpec::default()
        };
        assert_eq!(standby.review_access(spec).await.unwrap().allowed, allowed);
    }
    let body = config_map("a").to_string().into_bytes();
    let written = standby.create(&config_maps(), Some("default"), body, "test").await;
    assert!(written.is_err_and(|error| matches!(error, Error::NotActing)));
}
