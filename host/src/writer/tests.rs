//! Writes against the embedded API server.

use std::sync::Arc;

use arc_swap::ArcSwap;
use pilothouse_core::{
    grant::Grants,
    key::{Key, TypeMeta},
    manifest::{Permission, Verb},
    object::Object,
    selector::Selector,
};
use serde_json::json;
use tokio::runtime::Handle;

use super::{ClientError, Error, Owner, Writer};
use crate::{
    cluster::{self, DeleteOptions},
    informer::{InformerKey, Informers, View},
    testing::{Api, apple, config_map, soon},
    wasm::Child,
};

fn config_maps() -> TypeMeta {
    TypeMeta::new("v1", "ConfigMap")
}

/// A writer that may do everything with ConfigMaps, and nothing else.
fn writer(api: &Api, informers: &Informers) -> Writer {
    let verbs = [Verb::Read, Verb::Create, Verb::Update, Verb::Patch, Verb::Apply, Verb::Delete];
    let asked = Permission {
        of: config_maps(),
        subresource: None,
        verbs: verbs.into(),
        namespaces: Vec::new(),
        names: Vec::new(),
    };
    let grants = Arc::new(ArcSwap::from_pointee(Grants::all_asked(&[asked])));
    Writer::new(api.cluster.clone(), informers.clone(), "apples", grants, Arc::new(()))
}

async fn view(informers: &Informers, labels: &str) -> View {
    let selector = Selector::parse(labels).expect("a selector");
    let lease = informers.acquire(InformerKey { labels: selector, ..InformerKey::all(config_maps()) }, "apples");
    let mut synced = lease.synced();
    soon("the informer syncs", synced.wait_for(|synced| *synced)).await.expect("it lives");
    View::new([Arc::new(lease)])
}

#[tokio::test]
async fn an_object_that_the_selector_hides_is_not_taken_over() {
    let api = Api::start().await;
    let mut foreign = config_map("taken");
    foreign["data"] = json!({ "theirs": "1" });
    api.create(foreign).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let view = view(&informers, "app=web").await;
    let mut object = apple("a");
    object["metadata"]["uid"] = "5f0d6a3e-0000-4000-8000-000000000001".into();
    object["metadata"]["resourceVersion"] = "1".into();
    let of = TypeMeta::new("stable.example.com/v1", "MyApple");
    let object = Arc::new(Object::parse(object.to_string().as_bytes(), &of).expect("an object"));
    let owns = [config_maps()];
    let owner = Owner { object: &object, owns: &owns };
    // No field of it is in the way: an apply would succeed, and make the object ours.
    let child = |name: &str| {
        let mut child = config_map(name);
        child["metadata"]["labels"] = json!({ "app": "web" });
        Child { object: child.to_string(), adopt: false }
    };
    let report = writer(&api, &informers).children(&owner, &view, vec![child("taken"), child("free")]).await;
    assert!(matches!(&report.problems[..], [Error::Taken { key, .. }] if &*key.name == "taken"), "{report:?}");
    assert_eq!(report.written, 1);
    let live = api.cluster.get(&config_maps(), Some("default"), "taken").await.expect("it is there");
    let live = Object::parse(&live, &config_maps()).expect("an object");
    assert!(live.controller().is_none());
}

#[tokio::test]
async fn invariant_3_a_delete_without_preconditions_is_in_the_cache_at_once() {
    let api = Api::start().await;
    api.create(config_map("a")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let view = view(&informers, "").await;
    let key = Key::new(Some("default"), "a");
    assert!(view.get(&config_maps(), &key).is_some());
    // Nothing but this future runs until the answer is there: the watch has no turn to bring the event first.
    writer(&api, &informers)
        .delete_object(&config_maps(), &key, DeleteOptions::default())
        .await
        .expect("it is deleted");
    assert!(view.get(&config_maps(), &key).is_none());
}

#[test]
fn a_deletes_status_names_whom_it_deleted() {
    let status = json!({ "kind": "Status", "status": "Success", "details": { "name": "a", "uid": "1-2" } });
    assert_eq!(super::deleted_uid(status.to_string().as_bytes()).map(|uid| uid.to_string()).as_deref(), Some("1-2"));
    for other in ["", "[]", r#"{"details":null}"#, r#"{"details":{"uid":""}}"#, r#"{"details":{"uid":7}}"#] {
        assert!(super::deleted_uid(other.as_bytes()).is_none(), "{other}");
    }
}

#[tokio::test]
async fn invariant_7_what_is_not_granted_is_not_even_looked_for() {
    let api = Api::start().await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let writer = writer(&api, &informers);
    let nowhere = TypeMeta::new("nowhere.example.com/v1", "Nothing");
    for namespace in [None, Some("default")] {
        let denied = writer.get(&nowhere, &Key::new(namespace, "a")).await;
        assert!(matches!(denied, Err(ClientError::Denied(_))), "{denied:?}");
    }
    let missing = writer.get(&config_maps(), &Key::new(Some("default"), "a")).await;
    assert!(matches!(missing, Err(ClientError::Request(error)) if error.is_not_found()));
}

#[tokio::test]
async fn a_name_cannot_lead_to_a_subresource_or_a_collection() {
    let api = Api::start().await;
    api.create(config_map("a")).await;
    let informers = Informers::new(api.cluster.clone(), Handle::current());
    let writer = writer(&api, &informers);
    for name in ["", "a/status", ".."] {
        let refused =
            writer.delete_object(&config_maps(), &Key::new(Some("default"), name), DeleteOptions::default()).await;
        assert!(matches!(refused, Err(ClientError::Request(cluster::Error::Name(_)))), "{refused:?}");
    }
    assert!(writer.get(&config_maps(), &Key::new(Some("default"), "a")).await.is_ok());
}

#[test]
fn a_problem_is_told_in_bounds() {
    let mut report = super::Report::default();
    report.problems.push(Error::Status("ä".repeat(1 << 20)));
    assert!(report.problem().is_some_and(|told| told.chars().count() == super::TOLD_CHARS + 1));
}
