//! Informers of a restored cluster whose own versions do not reveal the restore.

use std::sync::Arc;

use pilothouse_apiserver::faults::{Answer, By, Fault, Requests, Rule, Verb};
use pilothouse_core::key::{Key, TypeMeta};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::{config_maps, config_maps_in, full, synced};
use crate::{
    informer::{Informer, InformerKey, Informers, Lease, driver, shared::Shared},
    testing::{Api, comes_true, config_map},
};

/// Versions lost by the restore. After a restore, the server repeats its ten or so writes of a start. These must not
/// reach a version that was seen before.
const LOST: usize = 50;

/// Uses up `versions` versions.
async fn write(api: &Api, versions: usize) {
    for number in 0..versions {
        api.create(config_map(&format!("new-{number}"))).await;
    }
}

fn named(of: &TypeMeta, name: &str) -> Value {
    json!({ "apiVersion": &*of.api_version, "kind": &*of.kind, "metadata": { "namespace": "default", "name": name } })
}

fn holds_lost(lease: &Lease) -> bool {
    lease.keys().contains(&Key::new(Some("default"), "lost"))
}

#[tokio::test]
async fn invariant_4_a_restore_that_one_informer_finds_reaches_all() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let kinds = [config_maps(), TypeMeta::new("v1", "Secret")];
    let within = |of| InformerKey { namespace: Some("default".into()), ..InformerKey::all(of) };
    let leases = kinds.clone().map(|of| informers.acquire(within(of), "test"));
    for lease in &leases {
        synced(lease).await;
    }
    let before = api.server.snapshot();
    write(&api, LOST).await;
    for (of, lease) in kinds.iter().zip(&leases) {
        api.create(named(of, "lost")).await;
        comes_true("the object is shown", || holds_lost(lease)).await;
    }

    let [maps, secrets] = ["configmaps", "secrets"].map(|resource| {
        let reads = Requests::to(resource, &[Verb::List, Verb::Watch]);
        let down =
            api.server.faults().add(Rule::new(Fault::Status(Answer::code(503))).on(reads)).expect("it is a rule");
        let watches = Requests::to(resource, &[Verb::Watch]);
        api.server.faults().disconnect(&watches, By::Reset).expect("watches can be cut");
        down
    });
    api.server.restore(&before);
    assert!(api.server.faults().remove(maps));
    comes_true("the first informer finds the restore", || !holds_lost(&leases[0])).await;
    // Beyond every version that the informer of Secrets has seen.
    write(&api, 2 * LOST).await;
    assert!(api.server.faults().remove(secrets));
    comes_true("the other informer takes the restored state", || !holds_lost(&leases[1])).await;
}

/// A restarted driver lists in any case. But it replaces an object of the same version in both histories only if it
/// knows of the restore.
#[tokio::test]
async fn invariant_4_a_restarted_driver_knows_a_restore_that_others_found_meanwhile() {
    let api = Api::start().await;
    let shared = Arc::new(Shared::default());
    let informer = Arc::new(Informer::new(config_maps_in("default"), shared.clone()));
    let restores = shared.restores();
    let fed_until = async |value: &str| {
        let holds = || {
            let cache = informer.cache.read();
            cache.store.get(Some("default"), "a").is_some_and(|object| object.json().contains(value))
        };
        tokio::select! {
            () = driver::feed(informer.clone(), api.cluster.clone(), 1, restores.clone()) => panic!("it ends by itself"),
            () = comes_true(value, holds) => {}
        }
    };
    let before = api.server.snapshot();
    api.create(full("a", "of the lost history")).await;
    fed_until("of the lost history").await;

    api.server.restore(&before);
    api.create(full("a", "of the present")).await;
    write(&api, LOST).await;
    shared.record_restore();
    fed_until("of the present").await;
}

/// No other informer needs to find it: the versions in the store show how far the server was.
#[tokio::test]
async fn invariant_4_a_restarted_driver_finds_a_restore_itself() {
    let api = Api::start().await;
    let shared = Arc::new(Shared::default());
    let informer = Arc::new(Informer::new(config_maps_in("default"), shared.clone()));
    let restores = shared.restores();
    let fed_until = async |there: bool| {
        let holds = || informer.cache.read().store.get(Some("default"), "lost").is_some() == there;
        tokio::select! {
            () = driver::feed(informer.clone(), api.cluster.clone(), 1, shared.restores()) => panic!("it ends by itself"),
            () = comes_true("the store follows", holds) => {}
        }
    };
    let before = api.server.snapshot();
    write(&api, LOST).await;
    api.create(config_map("lost")).await;
    fed_until(true).await;

    api.server.restore(&before);
    fed_until(false).await;
    assert!(restores.has_changed().expect("the informer lives"), "other informers are notified");
}
