//! Garbage collection by owner references, namespaces, and the three propagation policies.

use serde_json::{Value, json};

use crate::cluster::{APPLES, CONFIG_MAPS, CRDS, Cluster, MERGE, apple, config_map};

fn owned(name: &str, owner: &Value, blocks: bool) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": blocks,
    }]}})
}

fn owned_by_apple(name: &str, owner: &Value) -> Value {
    let mut child = owned(name, owner, false);
    let reference = &mut child["metadata"]["ownerReferences"][0];
    reference["apiVersion"] = "stable.example.com/v1".into();
    reference["kind"] = "MyApple".into();
    child
}

fn at(name: &str) -> String {
    format!("{CONFIG_MAPS}/{name}")
}

#[tokio::test]
async fn dependents_go_with_their_owner_to_any_depth() {
    let cluster = Cluster::start().await;
    let owner = cluster.config_map("owner").await;
    let child = cluster.post(CONFIG_MAPS, &owned("child", &owner, false)).await.ok();
    cluster.post(CONFIG_MAPS, &owned("grandchild", &child, false)).await.ok();
    cluster.delete(&at("owner"), &json!({"propagationPolicy": "Background"})).await.ok();
    cluster.gone(CONFIG_MAPS, "grandchild").await;
    assert_eq!(cluster.get(&at("child")).await.code, 404);
}

#[tokio::test]
async fn an_object_whose_owner_never_was_is_garbage() {
    let cluster = Cluster::start().await;
    let ghost = json!({"metadata": {"name": "ghost", "uid": "00000000-0000-0000-0000-000000000000"}});
    cluster.post(CONFIG_MAPS, &owned("child", &ghost, false)).await.ok();
    cluster.gone(CONFIG_MAPS, "child").await;
}

#[tokio::test]
async fn an_owner_of_an_unknown_kind_is_given_the_benefit_of_the_doubt() {
    let cluster = Cluster::start().await;
    let mut child = owned("child", &json!({"metadata": {"name": "x", "uid": "y"}}), false);
    child["metadata"]["ownerReferences"][0]["apiVersion"] = "nobody.example.com/v1".into();
    cluster.post(CONFIG_MAPS, &child).await.ok();
    // An object that is collected later shows that its turn has passed.
    let ghost = json!({"metadata": {"name": "ghost", "uid": "z"}});
    cluster.post(CONFIG_MAPS, &owned("other", &ghost, false)).await.ok();
    cluster.gone(CONFIG_MAPS, "other").await;
    assert_eq!(cluster.get(&at("child")).await.code, 200);
}

#[tokio::test]
async fn an_owner_of_a_kind_that_comes_later_is_looked_for_then() {
    let cluster = Cluster::start().await;
    let child = owned_by_apple("child", &json!({"metadata": {"name": "gala", "uid": "z"}}));
    cluster.post(CONFIG_MAPS, &child).await.ok();
    let ghost = json!({"metadata": {"name": "ghost", "uid": "y"}});
    cluster.post(CONFIG_MAPS, &owned("other", &ghost, false)).await.ok();
    cluster.gone(CONFIG_MAPS, "other").await;
    assert_eq!(cluster.get(&at("child")).await.code, 200);
    cluster.apples().await;
    cluster.gone(CONFIG_MAPS, "child").await;
}

#[tokio::test]
async fn dependents_go_with_an_owner_whose_definition_goes() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    for name in ["gala", "fuji"] {
        let owner = cluster.post(APPLES, &apple(name, &json!({"color": "red"}))).await.ok();
        cluster.post(CONFIG_MAPS, &owned_by_apple(&format!("{name}-0"), &owner)).await.ok();
    }
    cluster.delete(&format!("{CRDS}/myapples.stable.example.com"), &Value::Null).await.ok();
    cluster.gone(CONFIG_MAPS, "gala-0").await;
    cluster.gone(CONFIG_MAPS, "fuji-0").await;
}

#[tokio::test]
async fn a_dependent_that_comes_after_its_owner_and_its_owners_kind_are_gone_is_garbage() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    let owner = cluster.post(APPLES, &apple("gala", &json!({"color": "red"}))).await.ok();
    let childless = cluster.post(APPLES, &apple("fuji", &json!({"color": "red"}))).await.ok();
    cluster.post(CONFIG_MAPS, &owned_by_apple("child", &owner)).await.ok();
    cluster.delete(&format!("{CRDS}/myapples.stable.example.com"), &Value::Null).await.ok();
    cluster.gone(CONFIG_MAPS, "child").await;
    cluster.gone(CRDS, "myapples.stable.example.com").await;
    for owner in [&owner, &childless] {
        // Like a controller that knows of the child's deletion, but not of the owner's yet.
        cluster.post(CONFIG_MAPS, &owned_by_apple("child", owner)).await.ok();
        cluster.gone(CONFIG_MAPS, "child").await;
    }
}

#[tokio::test]
async fn one_owner_left_is_enough() {
    let cluster = Cluster::start().await;
    let (first, second) = (cluster.config_map("first").await, cluster.config_map("second").await);
    let mut child = owned("child", &first, false);
    let reference = owned("", &second, false)["metadata"]["ownerReferences"][0].clone();
    child["metadata"]["ownerReferences"].as_array_mut().unwrap().push(reference.clone());
    let created = cluster.post(CONFIG_MAPS, &child).await.ok();
    let version = created["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch =
        cluster.watch(&format!("{CONFIG_MAPS}?fieldSelector=metadata.name=child&resourceVersion={version}")).await;
    cluster.delete(&at("first"), &Value::Null).await.ok();
    let event = watch.next().await.unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["ownerReferences"]),
        (&json!("MODIFIED"), &json!([reference]))
    );
    cluster.delete(&at("second"), &Value::Null).await.ok();
    cluster.gone(CONFIG_MAPS, "child").await;
}

#[tokio::test]
async fn orphans_stay_without_their_owner() {
    let cluster = Cluster::start().await;
    let owner = cluster.config_map("owner").await;
    cluster.post(CONFIG_MAPS, &owned("child", &owner, false)).await.ok();
    cluster.delete(&at("owner"), &json!({"propagationPolicy": "Orphan"})).await.ok();
    cluster.gone(CONFIG_MAPS, "owner").await;
    assert!(cluster.get(&at("child")).await.ok()["metadata"].get("ownerReferences").is_none());
}

#[tokio::test]
async fn a_foreground_deletion_waits_for_what_blocks_it() {
    let cluster = Cluster::start().await;
    let owner = cluster.config_map("owner").await;
    let mut child = owned("child", &owner, true);
    child["metadata"]["finalizers"] = json!(["x.y/z"]);
    cluster.post(CONFIG_MAPS, &child).await.ok();
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?fieldSelector=metadata.name=child")).await;
    watch.next().await.unwrap();
    let marked = cluster.delete(&at("owner"), &json!({"propagationPolicy": "Foreground"})).await.ok();
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let event = watch.next().await.unwrap();
    assert!(event["object"]["metadata"]["deletionTimestamp"].is_string(), "the child is deleted first");
    assert_eq!(cluster.get(&at("owner")).await.code, 200);
    cluster.patch(&at("child"), MERGE, &json!({"metadata": {"finalizers": null}})).await.ok();
    cluster.gone(CONFIG_MAPS, "owner").await;
}

#[tokio::test]
async fn garbage_left_while_nothing_served_is_collected_afterwards() {
    let mut cluster = Cluster::start().await;
    let owner = cluster.config_map("owner").await;
    cluster.post(CONFIG_MAPS, &owned("child", &owner, false)).await.ok();
    cluster.stop().await;
    cluster.resume().await;
    cluster.delete(&at("owner"), &Value::Null).await.ok();
    cluster.gone(CONFIG_MAPS, "child").await;
}

#[tokio::test]
async fn a_namespace_goes_when_it_is_empty() {
    let cluster = Cluster::start().await;
    let namespaces = "/api/v1/namespaces";
    let created = cluster.post(namespaces, &json!({"metadata": {"name": "n"}})).await.ok();
    assert_eq!(created["status"]["phase"], "Active");
    assert_eq!(created["metadata"]["labels"], json!({"kubernetes.io/metadata.name": "n"}));
    let inside = "/api/v1/namespaces/n/configmaps";
    assert_eq!(cluster.get(&format!("{inside}/kube-root-ca.crt")).await.code, 200);
    assert_eq!(cluster.get("/api/v1/namespaces/n/serviceaccounts/default").await.code, 200);
    let held = json!({"metadata": {"name": "held", "finalizers": ["x.y/z"]}});
    cluster.post(inside, &held).await.ok();
    let going = cluster.delete(&format!("{namespaces}/n"), &Value::Null).await.ok();
    assert_eq!(going["status"]["phase"], "Terminating");
    let refused = cluster.post(inside, &config_map("late")).await;
    assert_eq!(refused.refusal(), (403, "Forbidden"));
    assert_eq!(refused.body["details"]["causes"][0]["reason"], "NamespaceTerminating");
    cluster.gone(inside, "kube-root-ca.crt").await;
    assert_eq!(cluster.get(&format!("{namespaces}/n")).await.code, 200, "a finalizer inside holds it");
    cluster.patch(&format!("{inside}/held"), MERGE, &json!({"metadata": {"finalizers": null}})).await.ok();
    cluster.gone(namespaces, "n").await;
    cluster.post(namespaces, &json!({"metadata": {"name": "n"}})).await.ok();
}

#[tokio::test]
async fn many_dependents_go_quickly() {
    let cluster = Cluster::start().await;
    let owner = cluster.config_map("owner").await;
    for index in 0..300 {
        cluster.post(CONFIG_MAPS, &owned(&format!("child-{index:03}"), &owner, false)).await.ok();
    }
    cluster.delete(&at("owner"), &Value::Null).await.ok();
    cluster.gone(CONFIG_MAPS, "child-299").await;
}
