//! Restoring an earlier state, as after a restore of etcd.

use serde_json::{Value, json};

use crate::cluster::{APPLES, CONFIG_MAPS, CRDS, Cluster, MERGE, apple, pair};

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_restore_brings_back_data_and_revision_and_uses_revisions_again() {
    let cluster = Cluster::start().await;
    let (kept, deleted) = (cluster.config_map("kept").await, cluster.config_map("deleted").await);
    let snapshot = cluster.server.snapshot();
    assert_eq!(snapshot.revision(), version(&deleted));

    cluster.patch(&format!("{CONFIG_MAPS}/kept"), MERGE, &json!({"data": {"a": "b"}})).await.ok();
    cluster.delete(&format!("{CONFIG_MAPS}/deleted"), &Value::Null).await.ok();
    let lost = cluster.config_map("lost").await;
    cluster.server.restore(&snapshot);

    assert_eq!(cluster.server.revision(), snapshot.revision());
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/kept")).await.ok(), kept);
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/deleted")).await.ok(), deleted);
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/lost")).await.code, 404);
    for name in ["x", "y", "z"] {
        cluster.config_map(name).await;
    }
    assert_eq!(version(&cluster.get(&format!("{CONFIG_MAPS}/z")).await.ok()), version(&lost));
}

#[tokio::test]
async fn a_restore_cuts_watches_and_history_goes_on_from_before_it() {
    let cluster = Cluster::start().await;
    let then = cluster.server.revision();
    cluster.config_map("a").await;
    let snapshot = cluster.server.snapshot();
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={then}")).await;
    assert_eq!(watch.seen().await, pair("ADDED", "a"));
    cluster.server.restore(&snapshot);
    assert_eq!(watch.next().await, None);

    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={then}")).await;
    assert_eq!(watch.seen().await, pair("ADDED", "a"));
    cluster.config_map("b").await;
    assert_eq!(watch.seen().await, pair("ADDED", "b"));
}

#[tokio::test]
async fn a_snapshot_can_be_restored_more_than_once() {
    let cluster = Cluster::start().await;
    let snapshot = cluster.server.snapshot();
    for _ in 0..2 {
        cluster.config_map("a").await;
        cluster.server.restore(&snapshot);
    }
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.code, 404);
}

#[tokio::test]
async fn custom_resources_come_and_go_with_a_restore() {
    let cluster = Cluster::start().await;
    let without = cluster.server.snapshot();
    cluster.apples().await;
    let created = cluster.post(APPLES, &apple("g", &json!({"color": "red"}))).await.ok();
    let with = cluster.server.snapshot();

    cluster.server.restore(&without);
    assert_eq!(cluster.get(APPLES).await.code, 404);
    assert_eq!(cluster.get("/apis/stable.example.com/v1").await.code, 404);
    assert_eq!(cluster.get(&format!("{CRDS}/myapples.stable.example.com")).await.code, 404);

    cluster.server.restore(&with);
    assert_eq!(cluster.get(&format!("{APPLES}/g")).await.ok(), created);
    let refused = cluster.post(APPLES, &apple("h", &json!({"color": "black"}))).await;
    assert_eq!(refused.refusal(), (422, "Invalid"));
}

#[tokio::test]
async fn what_was_left_to_collect_is_collected_after_a_restore() {
    let cluster = Cluster::start().await;
    let owner = cluster.config_map("owner").await;
    let reference =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}]);
    let owned = json!({"metadata": {"name": "owned", "ownerReferences": reference}});
    cluster.post(CONFIG_MAPS, &owned).await.ok();
    let snapshot = cluster.server.snapshot();
    for _ in 0..2 {
        cluster.delete(&format!("{CONFIG_MAPS}/owner"), &Value::Null).await.ok();
        cluster.gone(CONFIG_MAPS, "owned").await;
        cluster.server.restore(&snapshot);
    }
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/owned")).await.code, 200);
}
