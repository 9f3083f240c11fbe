//! Informers against the embedded API server.

use std::sync::Arc;

use parking_lot::Mutex;
use pilothouse_core::{
    key::{Key, TypeMeta},
    object::Object,
    selector::Selector,
};
use tokio::{runtime::Handle, sync::mpsc};

use super::{Informer, Informers, Origin};
use crate::testing::{Api, config_map, soon};

fn config_maps() -> TypeMeta {
    TypeMeta::new("v1", "ConfigMap")
}

async fn synced(informer: &Informer) {
    let mut synced = informer.synced();
    soon("the informer syncs", synced.wait_for(|synced| *synced)).await.expect("the informer lives");
}

#[tokio::test]
async fn invariant_1_one_watch_serves_every_lease_and_ends_with_the_last() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let everything = Selector::default();
    let first = informers.acquire(&config_maps(), None, &everything);
    let second = informers.acquire(&config_maps(), None, &everything);
    assert!(std::ptr::eq(&*first, &*second));
    synced(&first).await;
    drop(first);
    assert_eq!(informers.all().len(), 1);
    drop(second);
    assert!(informers.all().is_empty());
    // A watch is counted when it ends.
    let requests = async || api.requests("WATCH", "configmaps").await + api.requests("LIST", "configmaps").await;
    soon("the watch ends", async { while requests().await == 0 {} }).await;
    assert_eq!(requests().await, 1);
}

#[tokio::test]
async fn another_scope_or_selector_is_another_informer() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let (everything, web) = (Selector::default(), Selector::parse("app=web").expect("a selector"));
    let leases = [(None, &everything), (Some("default"), &everything), (None, &web)]
        .map(|(namespace, selector)| informers.acquire(&config_maps(), namespace, selector));
    let keys: Vec<String> = informers.all().iter().map(|informer| informer.key().to_string()).collect();
    assert_eq!(keys, ["v1 ConfigMap", "v1 ConfigMap where app=web", "v1 ConfigMap in default"]);
    drop(leases);
}

#[tokio::test]
async fn a_subscriber_gets_what_is_there_then_every_change_in_order() {
    let api = Api::start().await;
    api.create(config_map("a")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let lease = informers.acquire(&config_maps(), Some("default"), &Selector::default());
    synced(&lease).await;
    let (sender, mut heard) = mpsc::unbounded_channel();
    let subscription = lease.subscribe(Box::new(move |change, origin| {
        let side = |object: &Option<Arc<Object>>| object.is_some();
        let _ = sender.send((change.key().name.to_string(), side(&change.old), side(&change.new), origin));
    }));
    api.create(config_map("b")).await;
    api.delete(&config_maps(), &Key::new(Some("default"), "b")).await;
    let mut all = Vec::new();
    while all.last() != Some(&("b".to_owned(), true, false, Origin::Change)) {
        let next = soon("the next change", heard.recv()).await.expect("the informer lives");
        if next.0 != "kube-root-ca.crt" {
            all.push(next);
        }
    }
    let expected = [
        ("a".to_owned(), false, true, Origin::Initial),
        ("b".to_owned(), false, true, Origin::Change),
        ("b".to_owned(), true, false, Origin::Change),
    ];
    assert_eq!(all, expected);
    lease.unsubscribe(subscription);
    assert_eq!(heard.recv().await, None);
}

#[tokio::test]
async fn invariant_3_an_own_write_is_in_every_informer_that_covers_it_at_once() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let everything = Selector::default();
    let labelled = Selector::parse("app=web").expect("a selector");
    let wide = informers.acquire(&config_maps(), None, &everything);
    let narrow = informers.acquire(&config_maps(), Some("default"), &labelled);
    let elsewhere = informers.acquire(&config_maps(), Some("kube-system"), &everything);
    for lease in [&wide, &narrow, &elsewhere] {
        synced(lease).await;
    }
    let written = |version: u64, app: &str| {
        let mut object = config_map("own");
        object["metadata"]["uid"] = "5f0d6a3e-0000-4000-8000-000000000001".into();
        object["metadata"]["resourceVersion"] = version.to_string().into();
        object["metadata"]["labels"] = serde_json::json!({ "app": app });
        Arc::new(Object::parse(object.to_string().as_bytes(), &config_maps()).expect("it is an object"))
    };
    let key = Key::new(Some("default"), "own");
    // Newer than anything that the watch has delivered.
    let object = written(1_000_000, "web");
    informers.own_write(&object);
    assert_eq!(wide.get(&key), Some(object.clone()));
    assert_eq!(narrow.get(&key), Some(object));
    assert_eq!(elsewhere.get(&key), None);

    // It leaves the selector by an own write, too.
    informers.own_write(&written(1_000_001, "db"));
    assert_eq!(narrow.get(&key), None);
    assert!(wide.get(&key).is_some());
}

#[tokio::test]
async fn a_kind_that_appears_is_found_and_one_that_is_missing_is_said() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let apples = TypeMeta::new("stable.example.com/v1", "MyApple");
    let lease = informers.acquire(&apples, None, &Selector::default());
    let told = Mutex::new(String::new());
    soon("it says that the kind is missing", async {
        loop {
            *told.lock() = super::told(&lease.state());
            if told.lock().starts_with("waiting for the kind to be served") {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!*lease.synced().borrow());
    api.serve_apples().await;
    synced(&lease).await;
}
