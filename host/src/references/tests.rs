#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use pilothouse_core::references::find;
use serde_json::json;
use tokio::runtime::Handle;

use super::*;
use crate::testing::{Api, soon};

fn config() -> Value {
    let secret =
        |key: &str| json!({"valueFrom": {"secretKeyRef": {"namespace": "default", "name": "slack", "key": key}}});
    let map = json!({"namespace": "default", "name": "urls", "key": "url", "optional": true});
    json!({"token": secret("token"), "url": {"valueFrom": {"configMapKeyRef": map}}})
}

fn secret(key: &str, base64: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "slack", "namespace": "default"}, "data": {key: base64}})
}

#[tokio::test]
async fn values_follow_their_objects_and_only_these_are_cached() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let mut other = secret("token", "b3RoZXI=");
    other["metadata"]["name"] = json!("other");
    api.create(other).await;
    let watched = Watched::new(&informers, "teller", find(&config()).unwrap());
    soon("both kinds are looked at", watched.synced()).await;
    let mut changes = watched.changes();
    let missing = |why: &str| Err(format!("key token of Secret default/slack: {why}"));
    assert_eq!(watched.resolve(&config()), missing("there is no such object"));
    for (key, base64, expected) in [
        ("other", "cmVk", missing("the object has no such key")),
        ("token", "/w==", missing("the value is not text in UTF-8")),
        ("token", "cmVk", Ok(json!({"token": "red"}))),
        ("token", "Ymx1ZQ==", Ok(json!({"token": "blue"}))),
    ] {
        if key == "other" {
            api.create(secret(key, base64)).await;
        } else {
            api.update(secret(key, base64)).await;
        }
        soon("the value changes", async {
            while watched.resolve(&config()) != expected {
                changes.changed().await;
            }
        })
        .await;
    }
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "urls", "namespace": "default"}, "data": {"url": "u"},
    });
    api.create(map).await;
    soon("the value appears", async {
        while watched.resolve(&config()) != Ok(json!({"token": "blue", "url": "u"})) {
            changes.changed().await;
        }
    })
    .await;
    let held: usize = watched.leases.values().map(|lease| lease.keys().len()).sum();
    assert_eq!(held, 2, "the other Secret is not cached");
    assert!(!format!("{watched:?}").contains("blue"));
}

#[tokio::test]
async fn that_an_object_does_not_exist_is_seen_though_it_became_known_before_somebody_waited() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let watched = Watched::new(&informers, "teller", find(&config()).unwrap());
    let mut changes = watched.changes();
    assert!(watched.resolve(&config()).is_err_and(|why| why.contains("not cached yet")));
    soon("both kinds are looked at", watched.synced()).await;
    soon("the change is seen", changes.changed()).await;
    assert!(watched.resolve(&config()).is_err_and(|why| why.contains("there is no such object")));
}
