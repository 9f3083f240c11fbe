//! Lists: pages, revisions, selectors, forms.

use serde_json::{Value, json};

use crate::cluster::{CONFIG_MAPS, Cluster, TABLE};

const ALL: &str = "/api/v1/configmaps?labelSelector=app";

async fn five(cluster: &Cluster) {
    for index in 0..5 {
        let body = json!({"metadata": {"name": format!("m{index}"), "labels": {"app": "x", "n": index.to_string()}}});
        cluster.post(CONFIG_MAPS, &body).await.ok();
    }
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn pages_show_one_revision_whatever_happens_meanwhile() {
    let cluster = Cluster::start().await;
    five(&cluster).await;
    let first = cluster.get(&format!("{CONFIG_MAPS}?labelSelector=app&limit=2")).await.ok();
    assert_eq!(names(&first), ["m0", "m1"]);
    cluster.delete(&format!("{CONFIG_MAPS}/m2"), &Value::Null).await.ok();
    cluster.post(CONFIG_MAPS, &json!({"metadata": {"name": "m35", "labels": {"app": "x"}}})).await.ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = cluster.get(&format!("{CONFIG_MAPS}?labelSelector=app&limit=9&continue={token}")).await.ok();
    assert_eq!(names(&rest), ["m2", "m3", "m4"]);
    assert_eq!(rest["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert!(rest["metadata"].get("continue").is_none());
}

#[tokio::test]
async fn an_expired_page_offers_to_go_on_in_the_newest_state() {
    let cluster = Cluster::start().await;
    five(&cluster).await;
    let first = cluster.get(&format!("{ALL}&limit=2")).await.ok();
    cluster.delete(&format!("{CONFIG_MAPS}/m2"), &Value::Null).await.ok();
    cluster.server.compact();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let expired = cluster.get(&format!("{ALL}&limit=2&continue={token}")).await;
    assert_eq!(expired.refusal(), (410, "Expired"));
    let token = expired.body["metadata"]["continue"].as_str().unwrap();
    assert_eq!(names(&cluster.get(&format!("{ALL}&limit=2&continue={token}")).await.ok()), ["m3", "m4"]);
}

#[tokio::test]
async fn remaining_items_are_counted_without_a_selector_only() {
    let cluster = Cluster::start().await;
    five(&cluster).await;
    let page = cluster.get(&format!("{CONFIG_MAPS}?limit=2")).await.ok();
    assert_eq!(page["metadata"]["remainingItemCount"], 4, "five, and the root certificate");
    assert!(cluster.get(&format!("{ALL}&limit=2")).await.ok()["metadata"].get("remainingItemCount").is_none());
}

#[tokio::test]
async fn a_list_may_be_had_as_it_was() {
    let cluster = Cluster::start().await;
    five(&cluster).await;
    let then = cluster.server.revision();
    cluster.delete(&format!("{CONFIG_MAPS}/m0"), &Value::Null).await.ok();
    let exact = format!("{ALL}&resourceVersion={then}&resourceVersionMatch=Exact");
    assert_eq!(names(&cluster.get(&exact).await.ok()), ["m0", "m1", "m2", "m3", "m4"]);
    let newer = format!("{ALL}&resourceVersion={then}&resourceVersionMatch=NotOlderThan");
    assert_eq!(names(&cluster.get(&newer).await.ok()), ["m1", "m2", "m3", "m4"]);
    assert_eq!(names(&cluster.get(&format!("{ALL}&resourceVersion=0&limit=1")).await.ok()).len(), 4, "0 ignores limit");
    cluster.server.compact();
    assert_eq!(cluster.get(&exact).await.refusal(), (410, "Expired"));
}

#[tokio::test]
async fn options_that_make_no_sense_are_refused() {
    let cluster = Cluster::start().await;
    for (query, code, reason) in [
        ("resourceVersion=abc", 400, "BadRequest"),
        ("limit=abc", 400, "BadRequest"),
        ("continue=abc", 400, "BadRequest"),
        ("labelSelector=a%3D%3D%3Db", 400, "BadRequest"),
        ("labelSelector=a%20in%20(b", 400, "BadRequest"),
        ("labelSelector=,", 400, "BadRequest"),
        ("fieldSelector=spec.x%3Db", 400, "BadRequest"),
        ("fieldSelector=x", 400, "BadRequest"),
        ("resourceVersionMatch=Exact", 422, "Invalid"),
        ("resourceVersionMatch=Exact&resourceVersion=0", 422, "Invalid"),
        ("resourceVersionMatch=Foo&resourceVersion=0", 422, "Invalid"),
        ("sendInitialEvents=true", 422, "Invalid"),
        ("sendInitialEvents=true&watch=true", 422, "Invalid"),
        ("resourceVersionMatch=NotOlderThan&watch=true", 422, "Invalid"),
        ("resourceVersion=abc&watch=true", 500, ""),
        ("resourceVersion=999999", 504, "Timeout"),
    ] {
        let reply = cluster.get(&format!("{CONFIG_MAPS}?{query}")).await;
        assert_eq!(reply.refusal(), (code, reason), "{query}: {}", reply.text);
    }
    let late = cluster.get(&format!("{CONFIG_MAPS}?resourceVersion=999999")).await;
    assert_eq!(late.body["details"]["retryAfterSeconds"], 1);
    assert_eq!(late.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}

#[tokio::test]
async fn selectors_select() {
    let cluster = Cluster::start().await;
    five(&cluster).await;
    for (query, wanted) in [
        ("labelSelector=n%20in%20(1,3)", vec!["m1", "m3"]),
        ("labelSelector=app,n%20notin%20(1,3)", vec!["m0", "m2", "m4"]),
        ("labelSelector=n%3E2", vec!["m3", "m4"]),
        ("labelSelector=n%3D1,app%3D%3Dx", vec!["m1"]),
        ("labelSelector=!app", vec!["kube-root-ca.crt"]),
        ("labelSelector=app%20in%20()", vec![]),
        ("labelSelector=app&fieldSelector=metadata.name!%3Dm0", vec!["m1", "m2", "m3", "m4"]),
        ("fieldSelector=metadata.name%3Dm0,metadata.namespace%3Ddefault", vec!["m0"]),
    ] {
        assert_eq!(names(&cluster.get(&format!("{CONFIG_MAPS}?{query}")).await.ok()), wanted, "{query}");
    }
}

#[tokio::test]
async fn built_in_items_do_not_say_their_kind_and_custom_ones_do() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    five(&cluster).await;
    cluster.post(crate::cluster::APPLES, &crate::cluster::apple("g", &json!({"color": "red"}))).await.ok();
    let maps = cluster.get(ALL).await.ok();
    assert_eq!((&maps["kind"], maps["items"][0].get("kind")), (&json!("ConfigMapList"), None));
    let apples = cluster.get(crate::cluster::APPLES).await.ok();
    assert_eq!((&apples["kind"], &apples["items"][0]["kind"]), (&json!("MyAppleList"), &json!("MyApple")));
    assert_eq!(apples["metadata"]["continue"], "");
}

#[tokio::test]
async fn tables_and_metadata_are_to_be_had() {
    let cluster = Cluster::start().await;
    five(&cluster).await;
    let table = cluster.get_as(&format!("{CONFIG_MAPS}?limit=1"), TABLE).await.ok();
    let columns: Vec<&Value> = table["columnDefinitions"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!((table["kind"].as_str(), columns), (Some("Table"), vec![&json!("Name"), &json!("Data"), &json!("Age")]));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert!(table["metadata"]["continue"].is_string());
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let metadata = cluster.get_as(ALL, accept).await.ok();
    assert_eq!((&metadata["kind"], metadata["items"][0].get("data")), (&json!("PartialObjectMetadataList"), None));
    assert_eq!(cluster.get_as(ALL, "application/foo").await.refusal(), (406, "NotAcceptable"));
}
