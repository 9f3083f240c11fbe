//! Watches: their events, their beginning and their end.

use serde_json::{Value, json};

use crate::cluster::{APPLES, CONFIG_MAPS, CRDS, Cluster, MERGE, TABLE, apple, pair};

async fn labelled(cluster: &Cluster, name: &str, app: &str) -> Value {
    let body = json!({"metadata": {"name": name, "labels": {"app": app}}});
    cluster.post(CONFIG_MAPS, &body).await.ok()
}

async fn relabel(cluster: &Cluster, name: &str, app: &str) -> Value {
    let patch = json!({"metadata": {"labels": {"app": app}}});
    cluster.patch(&format!("{CONFIG_MAPS}/{name}"), MERGE, &patch).await.ok()
}

#[tokio::test]
async fn a_watch_goes_on_where_a_list_ended() {
    let cluster = Cluster::start().await;
    labelled(&cluster, "a", "x").await;
    let version = cluster.get(CONFIG_MAPS).await.ok()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={version}")).await;
    labelled(&cluster, "b", "x").await;
    let changed = relabel(&cluster, "a", "y").await;
    cluster.delete(&format!("{CONFIG_MAPS}/a"), &Value::Null).await.ok();
    assert_eq!(watch.seen().await, pair("ADDED", "b"));
    assert_eq!(watch.next().await.unwrap(), json!({"type": "MODIFIED", "object": changed}));
    let last = watch.next().await.unwrap();
    assert_eq!((&last["type"], &last["object"]["metadata"]["labels"]), (&json!("DELETED"), &json!({"app": "y"})));
    assert_eq!(last["object"]["metadata"]["resourceVersion"], cluster.server.revision().to_string());
}

#[tokio::test]
async fn a_watch_without_a_revision_begins_with_what_exists() {
    let cluster = Cluster::start().await;
    labelled(&cluster, "a", "x").await;
    for version in ["", "&resourceVersion=0"] {
        let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?labelSelector=app{version}")).await;
        assert_eq!(watch.seen().await, pair("ADDED", "a"));
    }
}

#[tokio::test]
async fn leaving_the_selector_is_a_deletion_with_the_last_matching_state() {
    let cluster = Cluster::start().await;
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?labelSelector=app%3Dx")).await;
    labelled(&cluster, "a", "x").await;
    labelled(&cluster, "other", "y").await;
    assert_eq!(watch.seen().await, pair("ADDED", "a"));
    let left = relabel(&cluster, "a", "y").await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["metadata"]["labels"]["app"]), (&json!("DELETED"), &json!("x")));
    assert_eq!(event["object"]["metadata"]["resourceVersion"], left["metadata"]["resourceVersion"]);
    relabel(&cluster, "other", "x").await;
    assert_eq!(watch.seen().await, pair("ADDED", "other"));
}

#[tokio::test]
async fn streaming_lists_mark_their_end() {
    let cluster = Cluster::start().await;
    for name in ["a", "b"] {
        labelled(&cluster, name, "x").await;
    }
    let query = "labelSelector=app&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?{query}")).await;
    assert_eq!(watch.seen().await, pair("ADDED", "a"));
    assert_eq!(watch.seen().await, pair("ADDED", "b"));
    let end = watch.next().await.unwrap();
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(end["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    assert_eq!(end["object"]["metadata"]["resourceVersion"], cluster.server.revision().to_string());
    labelled(&cluster, "c", "x").await;
    assert_eq!(watch.seen().await, pair("ADDED", "c"));
}

#[tokio::test]
async fn a_watch_ends_at_its_timeout_with_a_bookmark() {
    let cluster = Cluster::start().await;
    let now = cluster.server.revision();
    // A write to another resource advances the bookmark too.
    cluster.post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await.ok();
    let path = format!("{CONFIG_MAPS}?resourceVersion={now}&timeoutSeconds=1&allowWatchBookmarks=true");
    let mut watch = cluster.watch(&path).await;
    let bookmark = watch.next().await.unwrap();
    let version = bookmark["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert_eq!((&bookmark["type"], version > now), (&json!("BOOKMARK"), true));
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_revision_that_is_forgotten_is_an_error_event() {
    let cluster = Cluster::start().await;
    let then = cluster.server.revision();
    labelled(&cluster, "a", "x").await;
    cluster.server.compact();
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={then}")).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "ERROR");
    assert_eq!((&event["object"]["code"], &event["object"]["reason"]), (&json!(410), &json!("Expired")));
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn the_log_forgets_the_oldest_events_first() {
    let cluster = Cluster::start().await;
    let then = cluster.server.revision();
    labelled(&cluster, "a", "x").await;
    let filler = "x".repeat(700 << 10);
    for round in 0..50 {
        let patch = json!({"data": {"filler": filler, "round": round.to_string()}});
        for name in ["a", "kube-root-ca.crt"] {
            cluster.patch(&format!("{CONFIG_MAPS}/{name}"), MERGE, &patch).await.ok();
        }
    }
    let mut old = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={then}")).await;
    assert_eq!(old.next().await.unwrap()["object"]["code"], 410, "70 MB of events do not fit");
    let recent = cluster.server.revision() - 1;
    let mut new = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={recent}")).await;
    assert_eq!(new.seen().await, pair("MODIFIED", "kube-root-ca.crt"));
}

#[tokio::test]
async fn a_restart_cuts_watches_and_keeps_the_data() {
    let mut cluster = Cluster::start().await;
    let created = labelled(&cluster, "a", "x").await;
    let version = cluster.server.revision();
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={version}")).await;
    cluster.stop().await;
    assert_eq!(watch.next().await, None);
    cluster.resume().await;
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.ok(), created);
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?resourceVersion={version}")).await;
    labelled(&cluster, "b", "x").await;
    assert_eq!(watch.seen().await, pair("ADDED", "b"));
}

#[tokio::test]
async fn a_watched_table_names_its_columns_once() {
    let cluster = Cluster::start().await;
    let mut watch = cluster.watch_as(&format!("{CONFIG_MAPS}?labelSelector=app"), TABLE).await;
    labelled(&cluster, "a", "x").await;
    labelled(&cluster, "b", "x").await;
    let (first, second) = (watch.next().await.unwrap(), watch.next().await.unwrap());
    assert_eq!((&first["object"]["kind"], &second["object"]["kind"]), (&json!("Table"), &json!("Table")));
    assert_eq!(first["object"]["columnDefinitions"].as_array().unwrap().len(), 3);
    assert_eq!(second["object"]["columnDefinitions"], Value::Null);
    assert_eq!(second["object"]["rows"][0]["cells"][0], "b");
}

#[tokio::test]
async fn a_watch_ends_with_its_resource() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    let mut watch = cluster.watch(APPLES).await;
    cluster.post(APPLES, &apple("g", &json!({"color": "red"}))).await.ok();
    assert_eq!(watch.seen().await, pair("ADDED", "g"));
    cluster.delete(&format!("{CRDS}/myapples.stable.example.com"), &Value::Null).await.ok();
    assert_eq!(watch.seen().await, pair("DELETED", "g"));
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_watch_is_counted_when_it_ends() {
    let cluster = Cluster::start().await;
    let labels = ["resource=\"configmaps\"", "verb=\"WATCH\""];
    let mut watch = cluster.watch(CONFIG_MAPS).await;
    assert_eq!(cluster.counted(&labels).await, 0);
    cluster.post("/debug/faults/cut", &json!({})).await.ok();
    while watch.next().await.is_some() {}
    assert_eq!(cluster.counted(&labels).await, 1);
}
