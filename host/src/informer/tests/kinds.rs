//! Kinds that appear, vanish, and come back in another form.

use std::time::Duration;

use pilothouse_apiserver::faults::{Answer, Delay, Fault, Requests, Rule, Verb};
use pilothouse_core::{
    key::{Key, TypeMeta},
    reflector::State,
};
use tokio::runtime::Handle;

use super::{hears, listen, synced};
use crate::{
    informer::{InformerKey, Informers, Lease},
    testing::{Api, apple, apples, comes_true, soon},
};

fn my_apples() -> TypeMeta {
    TypeMeta::new("stable.example.com/v1", "MyApple")
}

fn definitions() -> TypeMeta {
    TypeMeta::new("apiextensions.k8s.io/v1", "CustomResourceDefinition")
}

/// Waits until the informer of a lease reports that its kind is missing, for this reason.
async fn reports_missing(lease: &Lease, why: &str) {
    let expected = format!("waiting for the kind to be served: {why}");
    soon(&expected, async {
        while lease.state().to_string() != expected {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

const NOT_SERVED: &str = "the API server does not serve stable.example.com/v1 MyApple";

#[tokio::test]
async fn a_missing_kind_is_reported_and_found_when_it_appears() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let lease = informers.acquire(InformerKey::all(my_apples()), "test");
    reports_missing(&lease, NOT_SERVED).await;
    assert!(!*lease.synced().borrow());
    api.serve_apples().await;
    synced(&lease).await;
}

#[tokio::test]
async fn a_kind_that_comes_back_with_another_scope_is_listed_where_it_is() {
    let api = Api::start().await;
    api.serve_apples().await;
    api.create(apple("gala")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let lease = informers.acquire(InformerKey::all(my_apples()), "test");
    let mut heard = listen(&lease);
    assert_eq!(hears(&mut heard).await, "default/gala appears");
    synced(&lease).await;

    // The definition's deletion deletes its objects.
    api.delete(&definitions(), &Key::new(None, "myapples.stable.example.com")).await;
    assert_eq!(hears(&mut heard).await, "default/gala goes");
    reports_missing(&lease, NOT_SERVED).await;
    assert_eq!(lease.keys(), []);

    api.create(apples("Cluster", &[("v1", true)])).await;
    soon("the kind is found", async {
        while api.cluster.known(&my_apples()).is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut fuji = apple("fuji");
    fuji["metadata"].as_object_mut().and_then(|metadata| metadata.remove("namespace"));
    api.create(fuji).await;
    assert_eq!(hears(&mut heard).await, "fuji appears");
}

#[tokio::test]
async fn a_thousand_informers_of_kinds_to_come_share_their_looks_and_are_woken_when_one_comes() {
    let api = Api::start().await;
    let looks = Rule::new(Fault::Delay(Delay { milliseconds: 1, up_to: None }));
    let looks = looks.on(Requests::to("*", &[Verb::Discovery]));
    let looks = api.server.faults().add(looks).expect("it is a rule");
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let began = tokio::time::Instant::now();
    let kind = |number: usize| TypeMeta::new("stable.example.com/v1", &format!("Kind{number}"));
    let others: Vec<_> = (0..1000).map(|number| informers.acquire(InformerKey::all(kind(number)), "test")).collect();
    let lease = informers.acquire(InformerKey::all(my_apples()), "test");
    let is_missing = |lease: &Lease| matches!(lease.state(), State::Missing(_));
    comes_true("all wait", || others.iter().chain([&lease]).all(is_missing)).await;
    // By then, each informer has looked again.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (hits, spans) = (api.server.faults().hits(looks).expect("it is there"), began.elapsed().as_millis() / 500 + 1);
    // At most twice a second the kind's version and its group, and once the endpoint of definitions.
    assert!(u128::from(hits) <= 2 * spans + 10, "{hits} looks in {:?}", began.elapsed());
    assert!(hits >= 4, "{hits} looks: no informer looked twice");

    api.serve_apples().await;
    let appeared = tokio::time::Instant::now();
    synced(&lease).await;
    assert!(appeared.elapsed() < Duration::from_secs(4), "it was found after {:?}", appeared.elapsed());
}

#[tokio::test]
async fn a_kind_that_took_the_place_of_another_unseen_is_found_before_its_list() {
    let api = Api::start().await;
    api.serve_apples().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let lease = informers.acquire(InformerKey::all(my_apples()), "test");
    synced(&lease).await;

    let reads = Requests::to("myapples.stable.example.com", &[Verb::List, Verb::Watch]);
    let down = Rule::new(Fault::Status(Answer::code(503))).on(reads);
    let down = api.server.faults().add(down).expect("it is a rule");
    api.delete(&definitions(), &Key::new(None, "myapples.stable.example.com")).await;
    let definition = apples("Cluster", &[("v1", true)]).to_string();
    soon("the old definition is gone", async {
        while api.cluster.create(&definitions(), None, definition.clone().into_bytes(), "test").await.is_err() {}
    })
    .await;
    api.server.compact();
    assert!(api.server.faults().remove(down));
    soon("the scope is found", async {
        while api.cluster.known(&my_apples()).is_none_or(|endpoint| endpoint.namespaced) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_version_that_is_no_longer_served_keeps_its_objects_and_the_other_is_named() {
    let api = Api::start().await;
    api.create(apples("Namespaced", &[("v2", true), ("v1", true)])).await;
    api.create(apple("gala")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let lease = informers.acquire(InformerKey::all(my_apples()), "test");
    synced(&lease).await;

    api.replace(&definitions(), "myapples.stable.example.com", |definition| {
        definition["spec"]["versions"][1]["served"] = false.into();
    })
    .await;
    reports_missing(&lease, &format!("{NOT_SERVED}; it serves stable.example.com/v2 MyApple")).await;
    assert_eq!(lease.keys(), [Key::new(Some("default"), "gala")]);
}
