use std::collections::BTreeMap;

use pilothouse_apiserver::{
    faults::{Answer, Fault, Requests, Rule},
    yaml::{documents, located},
};
use pilothouse_core::manifest::{Controller, MappedWatch, Mapping, Policy, Watch};
use serde_json::json;

use super::*;
use crate::testing::Api;

fn watch(api_version: &str, kind: &str) -> Watch {
    Watch::all(TypeMeta::new(api_version, kind))
}

/// A manifest of one controller: for Sites, which own Deployments and ConfigMaps, maps Services and reads ConfigMaps
/// and Secrets.
fn manifest() -> Manifest {
    let controller = Controller {
        name: "sites".to_owned(),
        for_: watch("example.com/v1", "Site"),
        owns: vec![watch("apps/v1", "Deployment"), watch("v1", "ConfigMap")],
        watches: vec![MappedWatch { watch: watch("v1", "Service"), mapping: Mapping::SameKey }],
        reads: vec![
            watch("v1", "ConfigMap"),
            Watch { namespaces: vec!["a".to_owned(), "b".to_owned()], ..watch("v1", "Secret") },
        ],
        max_concurrency: 1,
        resync: None,
        timeout: Duration::from_secs(10),
        finalizer: None,
    };
    Manifest {
        version: "1".to_owned(),
        description: "Tests.".to_owned(),
        controllers: vec![controller],
        indexes: Vec::new(),
        observes: Vec::new(),
        patterns: Vec::new(),
        permissions: Vec::new(),
        crds: Vec::new(),
        config_schema: None,
        instances: Policy::Fresh,
        http: Vec::new(),
        webhooks: Vec::new(),
        metrics: Vec::new(),
    }
}

#[test]
fn each_kind_is_listed_as_widely_as_it_is_needed_and_children_come_last() {
    let lists = |namespaces: &[&str]| {
        let namespaces: Vec<String> = namespaces.iter().map(|name| (*name).to_owned()).collect();
        let wanted = wanted(&manifest(), &Discovered::default(), &namespaces);
        let text = |of: &Wanted| format!("{}{}", of.key, if of.is_owned { " that is owned" } else { "" });
        wanted.iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(
        lists(&[]),
        [
            "example.com/v1 Site",
            "v1 ConfigMap",
            "v1 Secret in a",
            "v1 Secret in b",
            "v1 Service",
            "apps/v1 Deployment that is owned"
        ]
    );
    assert_eq!(
        lists(&["b"]),
        [
            "example.com/v1 Site in b",
            "v1 ConfigMap in b",
            "v1 Secret in b",
            "v1 Service in b",
            "apps/v1 Deployment in b that is owned"
        ]
    );
}

#[test]
fn objects_are_redacted_and_lose_what_the_server_sets() {
    let owner = |kind: &str, uid: &str| json!({"apiVersion": "v1", "kind": kind, "name": "a", "uid": uid});
    let cleaned = clean(vec![
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": "s", "namespace": "shop", "uid": "2", "resourceVersion": "7", "managedFields": [{}],
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "cGFzc3dvcmQ="},
                "ownerReferences": [owner("Website", "9"), owner("ConfigMap", "1")],
            },
            "data": {"a": "cGFzc3dvcmQ=", "b": "cGFzc3dvcmQ=", "c": "b3RoZXI=", ".dockerconfigjson": "e30="},
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
            "metadata": {
                "name": "a", "namespace": "shop", "uid": "1", "generation": 4, "labels": {"x": "y"}, "finalizers": ["a/b"],
                "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0,
            },
        }),
    ]);
    let expected = [
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
            "metadata": {"name": "a", "namespace": "shop", "labels": {"x": "y"}, "finalizers": ["a/b"]},
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": "s", "namespace": "shop",
                "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a"}],
            },
            "data": {
                // redacted-2 and redacted-3, and {"auths":{}}.
                "a": "cmVkYWN0ZWQtMg==", "b": "cmVkYWN0ZWQtMg==", "c": "cmVkYWN0ZWQtMw==",
                ".dockerconfigjson": "eyJhdXRocyI6e319",
            },
        }),
    ];
    assert_eq!(cleaned.objects, expected);
    assert_eq!(cleaned.namespaces.iter().map(String::as_str).collect::<Vec<_>>(), ["shop"]);
    assert_eq!(
        cleaned.notes,
        [
            "v1 ConfigMap shop/a is being deleted in the cluster, and is not here.",
            "1 reference to an owner is left out, because the plugin does not need the owners.",
        ]
    );
}

#[test]
fn owners_come_before_what_they_own_and_a_circle_ends() {
    let object = |name: &str, uid: &str, owner: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": uid, "ownerReferences": [{"uid": owner}]}});
    let names = |objects: Vec<Value>| {
        let name = |object: &Value| object["metadata"]["name"].as_str().map(str::to_owned);
        clean(objects).objects.iter().filter_map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(vec![object("a", "1", "2"), object("b", "2", "3"), object("c", "3", "0")]), ["c", "b", "a"]);
    assert_eq!(names(vec![object("a", "1", "2"), object("b", "2", "1")]).len(), 2);
}

#[test]
fn cases_and_manifests_are_read_back_as_what_was_written() -> anyhow::Result<()> {
    let odd = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "odd", "namespace": "shop"},
        "data": {
            "lines": "one\n\n  two  \n#three\n", "yes": "y", "number": "0644", "colon": "a: b", "": "- x", "end": "x\n\n",
            "long": "word ".repeat(60), "list": "[1]",
        },
    });
    let none = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "none"}, "data": {}, "nothing": null});
    let cleaned = Cleaned {
        objects: vec![odd.clone(), none.clone()],
        namespaces: ["shop".to_owned()].into(),
        notes: vec!["A note.".to_owned()],
    };
    let text = case("site", &cleaned, "2026-11-26T16:00:00Z".parse()?)?;
    let documents_of_case = located::documents(&text)?;
    let [document] = &*documents_of_case else { panic!("{text}") };
    let given = json!({"clock": "2026-11-26T16:00:00Z", "objects": [odd.clone(), none.clone()]});
    assert_eq!(
        document.value(),
        json!({"name": "the cluster at 2026-11-26T16:00:00Z", "given": given, "then": {}}),
        "{text}"
    );
    let text = manifests(&cleaned)?;
    let (read, error) = documents(&text);
    assert_eq!(error, None, "{text}");
    let read: Vec<Value> = read.into_iter().map(|document| document.value).filter(|value| !value.is_null()).collect();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    assert_eq!(read, [namespace, odd, none], "{text}");
    Ok(())
}

async fn create(api: &Api, api_version: &str, kind: &str, name: &str, more: &Value) {
    let mut object =
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": "default"}});
    object.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    api.create(object).await;
}

/// How many objects of each kind there are.
fn counts(objects: &[Value]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for object in objects {
        *counts.entry(object["kind"].as_str().unwrap_or_default()).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn a_cluster_is_read_in_pages_with_children_and_definitions_and_what_is_denied_is_told() {
    let api = Api::start().await;
    let version = json!({
        "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}},
    });
    let names = json!({"kind": "Site", "plural": "sites"});
    let spec = json!({"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]});
    let name = json!({"name": "sites.example.com"});
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": name, "spec": spec});
    api.create(crd).await;
    create(&api, "example.com/v1", "Site", "blog", &json!({})).await;
    for number in 0..=PAGE {
        create(&api, "v1", "ConfigMap", &format!("map-{number}"), &json!({})).await;
    }
    let site = api.cluster.get(&TypeMeta::new("example.com/v1", "Site"), Some("default"), "blog").await;
    let site: Value = serde_json::from_slice(&site.expect("it is there")).expect("JSON");
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    create(&api, "apps/v1", "Deployment", "other", &json!({ "spec": spec })).await;
    let owner = json!({"apiVersion": "example.com/v1", "kind": "Site", "name": "blog", "uid": site["metadata"]["uid"]});
    let metadata = json!({"name": "blog", "namespace": "default", "ownerReferences": [owner]});
    api.create(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})).await;

    let on = Requests { resource: "secrets".to_owned(), ..Requests::default() };
    api.server.faults().add(Rule::new(Fault::Status(Answer::code(403))).on(on)).expect("a rule");
    let mut reader = Reader::new(&api.cluster, MAX_OBJECTS);
    reader.read_all(&manifest(), &[]).await.expect("it answers");
    let maps = usize::try_from(PAGE).expect("it is small") + 1;
    let all = [("ConfigMap", maps), ("CustomResourceDefinition", 1), ("Deployment", 1), ("Service", 1), ("Site", 1)];
    let mut found = counts(&reader.objects);
    // Those of every cluster.
    found.entry("ConfigMap").and_modify(|count| *count = (*count).min(maps));
    found.entry("Service").or_insert(1);
    assert_eq!(found, all.into());
    assert!(reader.failed.len() == 2 && reader.failed[0].starts_with("v1 Secret in a: "), "{:?}", reader.failed);

    let mut few = Reader::new(&api.cluster, 10);
    let error = few.read_all(&manifest(), &[]).await.expect_err("there are more").to_string();
    assert_eq!(error, "there are more than 10 objects: read less with --namespace, or set --limit");
}
