//! Discovery and OpenAPI, as kubectl and client libraries read them.

use serde_json::{Value, json};

use crate::cluster::{Cluster, apple_crd};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

#[tokio::test]
async fn aggregated_discovery_repeats_what_was_asked_for() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    let reply = cluster.get_as("/apis", AGGREGATED).await;
    assert_eq!(reply.headers["content-type"], "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let tag = reply.headers["etag"].to_str().unwrap().to_owned();
    let groups = reply.ok();
    let items = groups["items"].as_array().unwrap();
    let stable = items.iter().find(|group| group["metadata"]["name"] == "stable.example.com").unwrap();
    let versions: Vec<&Value> = stable["versions"].as_array().unwrap().iter().map(|v| &v["version"]).collect();
    assert_eq!(versions, ["v1", "v1beta1"]);
    let apples = &stable["versions"][0]["resources"][0];
    assert_eq!((&apples["resource"], &apples["shortNames"]), (&json!("myapples"), &json!(["ma"])));
    let subresources: Vec<&Value> =
        apples["subresources"].as_array().unwrap().iter().map(|s| &s["subresource"]).collect();
    assert_eq!(subresources, ["scale", "status"]);
    let again = cluster.send("GET", "/apis", &[("accept", AGGREGATED), ("if-none-match", &tag)], b"").await;
    assert_eq!((again.code, again.text.as_str()), (304, ""));
}

#[tokio::test]
async fn plain_discovery_leads_to_every_resource() {
    let cluster = Cluster::start().await;
    let groups = cluster.get("/apis").await.ok();
    let group_versions = groups["groups"].as_array().unwrap().iter().map(|group| {
        let version = group["preferredVersion"]["groupVersion"].as_str().unwrap();
        format!("/apis/{version}")
    });
    for path in group_versions.chain(["/api/v1".to_owned()]) {
        let list = cluster.get(&path).await.ok();
        assert_eq!(list["kind"], "APIResourceList");
        let stored = list["resources"].as_array().unwrap().iter();
        for resource in stored.filter(|r| r["verbs"].as_array().unwrap().contains(&json!("list"))) {
            let plural = resource["name"].as_str().unwrap();
            let list = cluster.get(&format!("{path}/{plural}")).await.ok();
            assert_eq!(list["kind"], format!("{}List", resource["kind"].as_str().unwrap()));
        }
    }
}

#[tokio::test]
async fn every_kind_has_a_schema_and_a_patch_that_validates_fields() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    let index = cluster.get("/openapi/v3").await.ok();
    for (path, place) in index["paths"].as_object().unwrap() {
        let document = cluster.get(place["serverRelativeURL"].as_str().unwrap()).await.ok();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let text = document.to_string();
        for reference in text.split("\"#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(schemas.contains_key(reference), "{path} refers to {reference}");
        }
        for (at, operations) in document["paths"].as_object().unwrap() {
            let kind = |operation: &Value| operation["x-kubernetes-group-version-kind"].clone();
            let some = operations.as_object().unwrap().values().next().unwrap();
            let described =
                schemas.values().any(|schema| schema["x-kubernetes-group-version-kind"] == json!([kind(some)]));
            assert!(described, "{at} has a kind with a schema");
            if at.ends_with("/{name}") {
                let parameters = operations["patch"]["parameters"].as_array().unwrap();
                assert!(parameters.iter().any(|parameter| parameter["name"] == "fieldValidation"), "{at}");
            }
        }
    }
}

#[tokio::test]
async fn a_document_moves_when_a_definition_changes_it() {
    let cluster = Cluster::start().await;
    let place = async |cluster: &Cluster| {
        let index = cluster.get("/openapi/v3").await.ok();
        index["paths"]["apis/stable.example.com/v1"]["serverRelativeURL"].clone()
    };
    assert_eq!(place(&cluster).await, Value::Null);
    cluster.apples().await;
    let before = place(&cluster).await;
    assert!(before.is_string());
    assert_eq!(place(&cluster).await, before);
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/myapples.stable.example.com";
    let mut crd = apple_crd();
    crd["metadata"]["resourceVersion"] = cluster.get(path).await.ok()["metadata"]["resourceVersion"].clone();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "Other words.".into();
    cluster.put(path, &crd).await.ok();
    assert_ne!(place(&cluster).await, before);
}

#[tokio::test]
async fn the_server_is_healthy_and_says_what_it_is() {
    let cluster = Cluster::start().await;
    for path in ["/healthz", "/livez", "/readyz", "/readyz/ping"] {
        assert_eq!((cluster.get(path).await.code, cluster.get(path).await.text.as_str()), (200, "ok"), "{path}");
    }
    let version = cluster.get("/version").await.ok();
    assert_eq!((&version["major"], &version["minor"]), (&json!("1"), &json!("36")));
    assert_eq!(version["gitVersion"], pilothouse_apiserver::VERSION);
}
