//! The four kinds of patch, over HTTP. What each computes is tested beside its module.

use serde_json::json;

use crate::cluster::{APPLY, CONFIG_MAPS, Cluster, JSON_PATCH, MERGE, STRATEGIC, config_map};

#[tokio::test]
async fn every_kind_of_patch_changes_the_object() {
    let cluster = Cluster::start().await;
    cluster.config_map("a").await;
    let path = format!("{CONFIG_MAPS}/a");
    cluster.patch(&path, MERGE, &json!({"data": {"merge": "1"}})).await.ok();
    cluster.patch(&path, STRATEGIC, &json!({"data": {"strategic": "2"}})).await.ok();
    let add = json!([{"op": "add", "path": "/data/json", "value": "3"}]);
    cluster.patch(&path, JSON_PATCH, &add).await.ok();
    let mut applied = config_map("a");
    applied["data"] = json!({"apply": "4"});
    let after = cluster.patch(&format!("{path}?fieldManager=m"), APPLY, &applied).await.ok();
    assert_eq!(after["data"], json!({"merge": "1", "strategic": "2", "json": "3", "apply": "4"}));
}

#[tokio::test]
async fn an_apply_may_be_yaml() {
    let cluster = Cluster::start().await;
    let text = b"apiVersion: v1\nkind: ConfigMap\ndata:\n  color: red\n";
    let path = format!("{CONFIG_MAPS}/a?fieldManager=m");
    let reply = cluster.send("PATCH", &path, &[("content-type", APPLY)], text).await;
    assert_eq!((reply.code, &reply.body["data"]), (201, &json!({"color": "red"})));
}

#[tokio::test]
async fn patches_that_do_not_fit_are_refused() {
    let cluster = Cluster::start().await;
    cluster.config_map("a").await;
    let path = format!("{CONFIG_MAPS}/a");
    let many = vec![json!({"op": "test", "path": "/kind", "value": "ConfigMap"}); 10_001];
    for (kind, body, code, reason) in [
        (JSON_PATCH, json!([{"op": "remove", "path": "/data/none"}]), 422, "Invalid"),
        (JSON_PATCH, json!([{"op": "test", "path": "/kind", "value": "Pod"}]), 422, "Invalid"),
        (JSON_PATCH, json!(many), 413, "RequestEntityTooLarge"),
        (JSON_PATCH, json!({}), 400, "BadRequest"),
        (MERGE, json!([]), 400, "BadRequest"),
        ("application/json", json!({}), 415, "UnsupportedMediaType"),
        (APPLY, json!({"data": {}}), 422, "Invalid"),
    ] {
        let reply = cluster.patch(&path, kind, &body).await;
        assert_eq!(reply.refusal(), (code, reason), "{kind}: {}", reply.text);
    }
    let managed = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"managedFields": [{}]}});
    let reply = cluster.patch(&format!("{path}?fieldManager=m"), APPLY, &managed).await;
    assert_eq!((reply.code, reply.message()), (400, "metadata.managedFields must be nil"));
}

#[tokio::test]
async fn concurrent_patches_all_count() {
    let cluster = std::sync::Arc::new(Cluster::start().await);
    cluster.config_map("a").await;
    let patches = (0..40).map(|index| {
        let cluster = std::sync::Arc::clone(&cluster);
        tokio::spawn(async move {
            let patch = json!({"data": {format!("k{index}"): "v"}});
            cluster.patch(&format!("{CONFIG_MAPS}/a"), MERGE, &patch).await.ok();
        })
    });
    for patch in patches.collect::<Vec<_>>() {
        patch.await.unwrap();
    }
    let after = cluster.get(&format!("{CONFIG_MAPS}/a")).await.ok();
    assert_eq!(after["data"].as_object().unwrap().len(), 40);
}
