//! Custom resources: how a definition takes effect, and what it does to its objects.

use serde_json::{Value, json};

use crate::cluster::{APPLES, APPLY, CRDS, Cluster, MERGE, STRATEGIC, TABLE, apple, apple_crd};

const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/myapples.stable.example.com";

async fn gala(cluster: &Cluster) -> Value {
    cluster.apples().await;
    cluster.post(APPLES, &apple("gala", &json!({"color": "red"}))).await.ok()
}

fn conditions(crd: &Value) -> Vec<(&str, &str)> {
    let conditions = crd["status"]["conditions"].as_array().unwrap().iter();
    conditions.map(|c| (c["type"].as_str().unwrap(), c["status"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn a_definition_is_established_and_served_at_once() {
    let cluster = Cluster::start().await;
    assert_eq!(cluster.get(APPLES).await.code, 404);
    cluster.apples().await;
    let crd = cluster.get(CRD).await.ok();
    assert_eq!(conditions(&crd), [("NamesAccepted", "True"), ("Established", "True")]);
    assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(crd["status"]["acceptedNames"]["listKind"], "MyAppleList");
    assert_eq!(cluster.get(APPLES).await.ok()["items"], json!([]));
}

#[tokio::test]
async fn objects_are_pruned_defaulted_and_validated() {
    let cluster = Cluster::start().await;
    let created = gala(&cluster).await;
    assert_eq!(created["spec"], json!({"color": "red", "size": "small"}));
    assert_eq!(created["metadata"]["generation"], 1);
    let reply = cluster.post(APPLES, &apple("odd", &json!({"color": "red", "x": 1}))).await;
    assert_eq!(reply.warnings(), ["299 - \"unknown field \\\"spec.x\\\"\""]);
    assert_eq!(reply.ok()["spec"], json!({"color": "red", "size": "small"}));
    for (spec, field) in [
        (json!({"color": 1}), "spec.color"),
        (json!({"color": "red", "quantity": 0}), "spec.quantity"),
        (json!({"color": "red", "size": "huge"}), "spec.size"),
        (json!({}), "spec.color"),
        (json!({"color": "black"}), "spec"),
    ] {
        let reply = cluster.post(APPLES, &apple("bad", &spec)).await;
        assert_eq!(reply.refusal(), (422, "Invalid"), "{spec}");
        assert_eq!(reply.body["details"]["causes"][0]["field"], field, "{spec}");
        assert_eq!(reply.body["details"]["kind"], "MyApple");
    }
}

#[tokio::test]
async fn kinds_and_methods_are_checked_as_for_custom_resources() {
    let cluster = Cluster::start().await;
    gala(&cluster).await;
    let named = |kind: &str, version: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "q"}});
    for (method, path, body, code, reason) in [
        ("POST", APPLES.to_owned(), json!({"apiVersion": "stable.example.com/v1"}), 400, "BadRequest"),
        ("POST", APPLES.to_owned(), json!({"kind": "MyApple"}), 400, "BadRequest"),
        ("POST", APPLES.to_owned(), named("Foo", "stable.example.com/v1"), 422, "Invalid"),
        ("POST", APPLES.to_owned(), named("MyApple", "stable.example.com/v2"), 400, "BadRequest"),
        ("POST", APPLES.to_owned(), Value::Null, 400, "BadRequest"),
        ("POST", format!("{APPLES}/gala"), apple("gala", &json!({"color": "red"})), 409, "AlreadyExists"),
        ("PUT", APPLES.to_owned(), json!({}), 400, "BadRequest"),
        ("PUT", format!("{APPLES}/gala"), apple("gala", &json!({"color": "red"})), 422, "Invalid"),
        ("PUT", format!("{APPLES}/none"), apple("none", &json!({"color": "red"})), 404, "NotFound"),
    ] {
        let headers = [("content-type", "application/json")];
        let reply = cluster.send(method, &path, &headers, body.to_string().as_bytes()).await;
        assert_eq!(reply.refusal(), (code, reason), "{method} {path} {body}: {}", reply.text);
    }
    let strategic = cluster.patch(&format!("{APPLES}/gala"), STRATEGIC, &json!({})).await;
    assert_eq!(strategic.refusal(), (415, "UnsupportedMediaType"));
}

#[tokio::test]
async fn status_and_the_rest_are_written_apart() {
    let cluster = Cluster::start().await;
    gala(&cluster).await;
    let both = json!({"spec": {"color": "blue"}, "status": {"available": 2}, "metadata": {"labels": {"a": "b"}}});
    let after = cluster.patch(&format!("{APPLES}/gala/status"), MERGE, &both).await.ok();
    assert_eq!((&after["spec"]["color"], &after["status"]), (&json!("red"), &json!({"available": 2})));
    assert_eq!((after["metadata"].get("labels"), &after["metadata"]["generation"]), (None, &json!(1)));
    let both = json!({"spec": {"color": "blue"}, "status": {"available": 7}, "metadata": {"labels": {"a": "b"}}});
    let after = cluster.patch(&format!("{APPLES}/gala"), MERGE, &both).await.ok();
    assert_eq!((&after["spec"]["color"], &after["status"]), (&json!("blue"), &json!({"available": 2})));
    assert_eq!((&after["metadata"]["labels"], &after["metadata"]["generation"]), (&json!({"a": "b"}), &json!(2)));
    let labels = json!({"metadata": {"labels": {"a": "c"}}});
    let after = cluster.patch(&format!("{APPLES}/gala"), MERGE, &labels).await.ok();
    assert_eq!(after["metadata"]["generation"], 2, "labels are not counted");
}

#[tokio::test]
async fn scale_reads_and_writes_the_replicas() {
    let cluster = Cluster::start().await;
    gala(&cluster).await;
    let scale = format!("{APPLES}/gala/scale");
    assert_eq!(cluster.get(&scale).await.code, 500, "there is no number of replicas yet");
    let scaled = cluster.patch(&scale, MERGE, &json!({"spec": {"replicas": 3}})).await.ok();
    assert_eq!((&scaled["kind"], &scaled["apiVersion"]), (&json!("Scale"), &json!("autoscaling/v1")));
    assert_eq!((&scaled["spec"]["replicas"], &scaled["status"]["replicas"]), (&json!(3), &json!(0)));
    assert_eq!(cluster.get(&format!("{APPLES}/gala")).await.ok()["spec"]["quantity"], 3);
    let negative = cluster.patch(&scale, MERGE, &json!({"spec": {"replicas": -3}})).await;
    assert_eq!(negative.refusal(), (422, "Invalid"));
    let mut put = cluster.get(&scale).await.ok();
    put["spec"]["replicas"] = 5.into();
    assert_eq!(cluster.put(&scale, &put).await.ok()["spec"]["replicas"], 5);
    assert_eq!(cluster.put(&scale, &put).await.refusal(), (409, "Conflict"));
    let applied = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 9}});
    let conflict = cluster.patch(&format!("{scale}?fieldManager=me"), APPLY, &applied).await;
    assert_eq!(conflict.refusal(), (409, "Conflict"), "the replicas are another manager's");
    let forced = cluster.patch(&format!("{scale}?fieldManager=me&force=true"), APPLY, &applied).await.ok();
    assert_eq!((&forced["kind"], &forced["spec"]["replicas"]), (&json!("Scale"), &json!(9)));
}

#[tokio::test]
async fn versions_are_views_of_one_object() {
    let cluster = Cluster::start().await;
    let created = gala(&cluster).await;
    let beta = "/apis/stable.example.com/v1beta1/namespaces/default/myapples";
    let reply = cluster.get(&format!("{beta}/gala")).await;
    let warning = "299 - \"stable.example.com/v1beta1 MyApple is deprecated; use stable.example.com/v1 MyApple\"";
    assert_eq!(reply.warnings(), [warning]);
    let seen = reply.ok();
    assert_eq!((&seen["apiVersion"], &seen["spec"]), (&json!("stable.example.com/v1beta1"), &created["spec"]));
    let fuji = json!({
        "apiVersion": "stable.example.com/v1beta1", "kind": "MyApple", "metadata": {"name": "fuji"}, "spec": {"color": "red"},
    });
    assert_eq!(cluster.post(beta, &fuji).await.ok()["apiVersion"], "stable.example.com/v1beta1");
    assert_eq!(cluster.get(&format!("{APPLES}/fuji")).await.ok()["apiVersion"], "stable.example.com/v1");
}

#[tokio::test]
async fn tables_have_the_definitions_columns() {
    let cluster = Cluster::start().await;
    gala(&cluster).await;
    let table = cluster.get_as(APPLES, TABLE).await.ok();
    let columns: Vec<_> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| (&c["name"], &c["priority"])).collect();
    let wanted = [(json!("Name"), json!(0)), (json!("Color"), json!(0)), (json!("Quantity"), json!(1))];
    assert_eq!(columns, wanted.each_ref().map(|(name, priority)| (name, priority)));
    assert_eq!(table["rows"][0]["cells"], json!(["gala", "red", null]));
}

#[tokio::test]
async fn a_definition_that_breaks_the_rules_is_refused() {
    let cluster = Cluster::start().await;
    let with = |change: fn(&mut Value)| {
        let mut crd = apple_crd();
        change(&mut crd);
        crd
    };
    for (crd, field) in [
        (with(|c| c["metadata"]["name"] = "x".into()), "metadata.name"),
        (with(|c| c["spec"]["group"] = "apps".into()), "metadata.name"),
        (with(|c| c["spec"]["scope"] = "Foo".into()), "spec.scope"),
        (with(|c| c["spec"]["versions"][0]["storage"] = false.into()), "spec.versions"),
        (with(|c| c["spec"]["conversion"] = json!({"strategy": "Other"})), "spec.conversion.strategy"),
        (with(|c| c["spec"]["conversion"] = json!({"strategy": "Webhook"})), "spec.conversion.webhookClientConfig"),
        (with(|c| c["spec"]["versions"][0]["schema"] = json!({})), "spec.versions[0].schema.openAPIV3Schema"),
    ] {
        let reply = cluster.post(CRDS, &crd).await;
        assert_eq!(reply.refusal(), (422, "Invalid"), "{field}: {}", reply.text);
        assert_eq!(reply.body["details"]["causes"][0]["field"], field);
    }
    let wrong = with(|c| c["spec"] = "nonsense".into());
    assert_eq!(cluster.post(CRDS, &wrong).await.refusal(), (400, "BadRequest"));
}

#[tokio::test]
async fn a_name_is_had_by_one_definition_and_inherited_by_the_next() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    let mut other = apple_crd();
    other["metadata"]["name"] = "apples.stable.example.com".into();
    other["spec"]["names"] = json!({"plural": "apples", "kind": "Apple", "shortNames": ["ma"]});
    let waiting = cluster.post(CRDS, &other).await.ok();
    assert_eq!(conditions(&waiting), [("NamesAccepted", "False"), ("Established", "False")]);
    assert_eq!(waiting["status"]["conditions"][0]["reason"], "ShortNamesConflict");
    let path = "/apis/stable.example.com/v1/namespaces/default/apples";
    assert_eq!(cluster.get(path).await.code, 404);
    cluster.delete(CRD, &Value::Null).await.ok();
    cluster.gone(CRDS, "myapples.stable.example.com").await;
    // The waiting definition is accepted in a write of its own, which may come after the first one is gone.
    let mut watch = cluster.watch(&format!("{CRDS}?fieldSelector=metadata.name=apples.stable.example.com")).await;
    while conditions(&watch.next().await.unwrap()["object"])[1] != ("Established", "True") {}
    assert_eq!(cluster.get(path).await.code, 200);
}

#[tokio::test]
async fn a_definition_takes_its_objects_with_it() {
    let cluster = Cluster::start().await;
    gala(&cluster).await;
    let held = format!("{APPLES}/gala");
    cluster.patch(&held, MERGE, &json!({"metadata": {"finalizers": ["x.y/z"]}})).await.ok();
    let going = cluster.delete(CRD, &Value::Null).await.ok();
    assert_eq!(conditions(&going)[2], ("Terminating", "True"));
    let late = cluster.post(APPLES, &apple("late", &json!({"color": "red"}))).await;
    assert_eq!(late.refusal(), (403, "Forbidden"));
    cluster.patch(&held, MERGE, &json!({"metadata": {"finalizers": null}})).await.ok();
    cluster.gone(CRDS, "myapples.stable.example.com").await;
    assert_eq!(cluster.get(APPLES).await.text, "404 page not found\n");
    gala(&cluster).await;
    assert_eq!(cluster.get(APPLES).await.ok()["items"].as_array().unwrap().len(), 1, "a new definition begins empty");
}

#[tokio::test]
async fn a_changed_definition_holds_from_then_on() {
    let cluster = Cluster::start().await;
    gala(&cluster).await;
    let mut crd = cluster.get(CRD).await.ok();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["taste"] =
        json!({"type": "string", "default": "sweet"});
    crd["spec"]["versions"][1]["served"] = false.into();
    cluster.put(CRD, &crd).await.ok();
    let created = cluster.post(APPLES, &apple("fuji", &json!({"color": "red"}))).await.ok();
    assert_eq!(created["spec"]["taste"], "sweet");
    assert_eq!(cluster.get("/apis/stable.example.com/v1beta1/myapples").await.code, 404);
}

#[tokio::test]
async fn applies_create_and_own_what_they_name() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    let path = format!("{APPLES}/gala");
    let body = apple("gala", &json!({"color": "red"}));
    assert_eq!(cluster.patch(&path, APPLY, &body).await.refusal(), (422, "Invalid"), "without a field manager");
    let mine = format!("{path}?fieldManager=me");
    let created = cluster.patch(&mine, APPLY, &body).await;
    assert_eq!(created.code, 201);
    assert_eq!(created.body["metadata"]["managedFields"][0]["manager"], "me");
    let same = cluster.patch(&mine, APPLY, &body).await;
    assert_eq!((same.code, &same.body), (200, &created.body), "the same again changes nothing");
    let theirs = format!("{path}?fieldManager=them");
    let other = apple("gala", &json!({"color": "green"}));
    let conflict = cluster.patch(&theirs, APPLY, &other).await;
    assert_eq!(conflict.refusal(), (409, "Conflict"));
    assert_eq!(conflict.message(), "Apply failed with 1 conflict: conflict with \"me\": .spec.color");
    let cause = json!({"reason": "FieldManagerConflict", "message": "conflict with \"me\"", "field": ".spec.color"});
    assert_eq!(conflict.body["details"]["causes"], json!([cause]));
    let forced = cluster.patch(&format!("{theirs}&force=true"), APPLY, &other).await.ok();
    assert_eq!(forced["spec"]["color"], "green");
    let bad = apple("gala", &json!({"colour": "green"}));
    assert_eq!(cluster.patch(&mine, APPLY, &bad).await.code, 500, "unknown fields cannot be applied");
    let status = json!({"apiVersion": "stable.example.com/v1", "kind": "MyApple", "status": {"available": 1}});
    let applied = cluster.patch(&format!("{path}/status?fieldManager=me"), APPLY, &status).await.ok();
    assert_eq!((&applied["status"], &applied["spec"]["color"]), (&json!({"available": 1}), &json!("green")));
}
