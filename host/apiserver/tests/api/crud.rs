//! Creating, reading, replacing and deleting objects. Errors have the codes and reasons of kube-apiserver 1.36.

use serde_json::{Value, json};

use crate::cluster::{CONFIG_MAPS, Cluster, MERGE, config_map};

/// Method, path, body, code, reason, and how the message begins (empty: anything).
type Row = (&'static str, String, Value, u16, &'static str, &'static str);

async fn check(cluster: &Cluster, rows: Vec<Row>) {
    for (method, path, body, code, reason, message) in rows {
        let headers = [("content-type", if method == "PATCH" { MERGE } else { "application/json" })];
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let reply = cluster.send(method, &path, &headers, text.as_bytes()).await;
        assert_eq!(reply.refusal(), (code, reason), "{method} {path} {text}: {}", reply.text);
        assert!(reply.message().starts_with(message), "{method} {path} {text}: {}", reply.message());
        if !reply.body.is_null() && code >= 400 {
            assert_eq!(reply.body["kind"], "Status");
            assert_eq!(reply.body["code"], code);
        }
    }
}

#[tokio::test]
async fn created_objects_get_what_the_server_owes_them() {
    let cluster = Cluster::start().await;
    let created = cluster.config_map("a").await;
    let meta = &created["metadata"];
    assert_eq!((&created["kind"], &created["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    assert_eq!(meta["namespace"], "default");
    assert_eq!(meta["uid"].as_str().unwrap().len(), 36);
    assert!(meta["creationTimestamp"].as_str().unwrap().ends_with('Z'));
    assert_eq!(meta["resourceVersion"], cluster.server.revision().to_string());
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.ok(), created);
}

#[tokio::test]
async fn generated_names_extend_their_prefix() {
    let cluster = Cluster::start().await;
    let body = json!({"metadata": {"generateName": "x-"}});
    let name = cluster.post(CONFIG_MAPS, &body).await.ok()["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("x-") && name.len() == 7, "{name}");
}

#[tokio::test]
async fn refusals_of_unknown_paths_have_two_shapes() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    for path in ["/nope", "/apis/nope", "/apis/nope/v1/x", "/apis/stable.example.com/v1/nope", "/openapi/v2"] {
        let reply = cluster.get(path).await;
        assert_eq!((reply.code, reply.text.as_str()), (404, "404 page not found\n"), "{path}");
    }
    let unknown = "the server could not find the requested resource";
    let rows = ["/api/v1/nope", "/api/v2/configmaps", "/apis/apps/v2/deployments", "/api/v1/namespaces/default/nodes"];
    let rows = rows.map(|path| ("GET", path.to_owned(), Value::Null, 404, "NotFound", unknown)).to_vec();
    check(&cluster, rows).await;
    assert_eq!(cluster.get("/api/v1/nope").await.body["details"], json!({}));
}

#[tokio::test]
async fn creates_are_refused_as_kubernetes_refuses_them() {
    let cluster = Cluster::start().await;
    cluster.config_map("a").await;
    let maps = || CONFIG_MAPS.to_owned();
    let strict = || format!("{CONFIG_MAPS}?fieldValidation=Strict");
    let named = |name: &str| json!({"metadata": {"name": name}});
    let meta = |field: &str, value: Value| json!({"metadata": {"name": "x", field: value}});
    check(
        &cluster,
        vec![
            ("POST", maps(), config_map("a"), 409, "AlreadyExists", "configmaps \"a\" already exists"),
            ("POST", maps(), named("A_"), 422, "Invalid", "ConfigMap \"A_\" is invalid: metadata.name: Invalid value"),
            ("POST", maps(), json!({"metadata": {}}), 422, "Invalid", "ConfigMap \"\" is invalid: metadata.name: Required"),
            ("POST", maps(), meta("labels", json!({"a b": "c"})), 422, "Invalid", ""),
            ("POST", maps(), meta("labels", json!({"a": "c d"})), 422, "Invalid", ""),
            ("POST", maps(), meta("labels", json!({"a": 1})), 400, "BadRequest", "ConfigMap in version \"v1\" cannot be"),
            ("POST", maps(), meta("finalizers", json!(["foo"])), 422, "Invalid", ""),
            ("POST", maps(), meta("ownerReferences", json!([{"name": "o"}])), 422, "Invalid", ""),
            ("POST", maps(), meta("resourceVersion", json!("1")), 500, "", "resourceVersion should not be set"),
            ("POST", maps(), meta("namespace", json!("other")), 400, "BadRequest", "the namespace of the provided object"),
            ("POST", maps(), json!({"metadata": {"name": "x"}, "data": {"a": 1}}), 400, "BadRequest", ""),
            ("POST", maps(), json!({"metadata": {"name": "x"}, "data": {"a b": "c"}}), 422, "Invalid", ""),
            ("POST", maps(), json!({"apiVersion": "v2", "kind": "ConfigMap"}), 400, "BadRequest", ""),
            ("POST", maps(), json!({"apiVersion": "v1", "kind": "Pod"}), 400, "BadRequest", "Pod in version \"v1\" cannot"),
            ("POST", maps(), json!([]), 400, "BadRequest", "the object provided is unrecognized"),
            (
                "POST",
                strict(),
                json!({"metadata": {"name": "x"}, "foo": 1}),
                400,
                "BadRequest",
                "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"foo\"",
            ),
            ("POST", format!("{CONFIG_MAPS}?fieldValidation=x"), named("x"), 422, "Invalid", "CreateOptions.meta.k8s.io"),
            ("POST", format!("{CONFIG_MAPS}?dryRun=x"), named("x"), 422, "Invalid", ""),
            ("POST", "/api/v1/namespaces/nope/configmaps".into(), named("x"), 404, "NotFound", "namespaces \"nope\" not"),
            ("POST", "/api/v1/configmaps".into(), named("x"), 405, "MethodNotAllowed", ""),
            ("POST", format!("{CONFIG_MAPS}/a"), named("a"), 405, "MethodNotAllowed", ""),
            ("PUT", maps(), named("a"), 405, "MethodNotAllowed", ""),
            ("POST", "/api/v1/namespaces".into(), named("N"), 422, "Invalid", ""),
        ],
    )
    .await;
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/x")).await.code, 404, "nothing refused was stored");
}

#[tokio::test]
async fn unknown_and_repeated_fields_are_warned_of() {
    let cluster = Cluster::start().await;
    let headers = [("content-type", "application/json")];
    let body = br#"{"metadata": {"name": "x"}, "foo": 1, "data": {"a": "1", "a": "2"}}"#;
    let reply = cluster.send("POST", CONFIG_MAPS, &headers, body).await;
    assert_eq!(reply.warnings(), ["299 - \"duplicate field \\\"data.a\\\"\"", "299 - \"unknown field \\\"foo\\\"\""]);
    let created = reply.ok();
    assert_eq!((&created["data"]["a"], created.get("foo")), (&json!("2"), None));
    let path = format!("{CONFIG_MAPS}?fieldValidation=Ignore");
    let quiet = cluster.post(&path, &json!({"metadata": {"name": "y"}, "foo": 1})).await;
    assert_eq!((quiet.code, quiet.warnings()), (201, vec![]));
}

#[tokio::test]
async fn updates_are_refused_as_kubernetes_refuses_them() {
    let cluster = Cluster::start().await;
    cluster.config_map("a").await;
    let a = || format!("{CONFIG_MAPS}/a");
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    let with = |field: &str, value: &str| json!({"metadata": {"name": "a", field: value}});
    check(
        &cluster,
        vec![
            (
                "PUT",
                a(),
                config_map("b"),
                400,
                "BadRequest",
                "the name of the object (b) does not match the name on the URL (a)",
            ),
            (
                "PUT",
                a(),
                json!({"metadata": {}}),
                400,
                "BadRequest",
                "the name of the object (a based on URL) was undeterm",
            ),
            ("PUT", format!("{CONFIG_MAPS}/zz"), config_map("zz"), 404, "NotFound", "configmaps \"zz\" not found"),
            (
                "PUT",
                a(),
                with("resourceVersion", "1"),
                409,
                "Conflict",
                "Operation cannot be fulfilled on configmaps \"a\": the",
            ),
            ("PUT", a(), with("resourceVersion", "abc"), 500, "", ""),
            ("PUT", a(), with("uid", "x"), 409, "Conflict", ""),
            ("PUT", lease.into(), json!({"metadata": {"name": "l"}}), 201, "", ""),
            (
                "PUT",
                lease.into(),
                json!({"metadata": {"name": "l"}}),
                422,
                "Invalid",
                "leases.coordination.k8s.io \"l\" is inv",
            ),
            ("PATCH", a(), json!({"metadata": {"uid": "q"}}), 422, "Invalid", ""),
            ("PATCH", a(), json!({"metadata": {"name": "q"}}), 400, "BadRequest", ""),
            ("PATCH", a(), json!({"metadata": {"resourceVersion": "1"}}), 409, "Conflict", ""),
            ("PATCH", a(), json!({"kind": "Pod"}), 422, "Invalid", " \"\" is invalid: patch: Invalid value"),
            ("PATCH", a(), json!({"data": []}), 422, "Invalid", " \"\" is invalid: patch: Invalid value"),
            (
                "PATCH",
                format!("{}?fieldValidation=Strict", a()),
                json!({"foo": 1}),
                422,
                "Invalid",
                " \"\" is invalid: patch",
            ),
            (
                "PATCH",
                format!("{}?force=true", a()),
                json!({}),
                422,
                "Invalid",
                "PatchOptions.meta.k8s.io \"\" is invalid: force",
            ),
            ("PATCH", format!("{CONFIG_MAPS}/zz"), json!({}), 404, "NotFound", ""),
            ("GET", format!("{}?resourceVersion=abc", a()), Value::Null, 500, "", ""),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_update_that_changes_nothing_is_silent() {
    let cluster = Cluster::start().await;
    let created = cluster.config_map("a").await;
    let path = format!("{CONFIG_MAPS}/a");
    assert_eq!(cluster.put(&path, &created).await.ok(), created);
    assert_eq!(cluster.patch(&path, MERGE, &json!({})).await.ok(), created);
    assert_eq!(cluster.server.revision().to_string(), created["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn dry_runs_answer_and_store_nothing() {
    let cluster = Cluster::start().await;
    let before = cluster.server.revision();
    let made = cluster.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("a")).await.ok();
    assert!(made["metadata"]["uid"].is_string() && made["metadata"]["resourceVersion"].is_null());
    assert_eq!(cluster.server.revision(), before);
    let created = cluster.config_map("a").await;
    let path = format!("{CONFIG_MAPS}/a?dryRun=All");
    let patched = cluster.patch(&path, MERGE, &json!({"data": {"x": "y"}})).await.ok();
    assert_eq!(patched["data"]["x"], "y");
    assert_eq!(patched["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
    assert_eq!(cluster.delete(&path, &Value::Null).await.ok()["status"], "Success");
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.ok(), created);
}

#[tokio::test]
async fn deletes_check_their_preconditions() {
    let cluster = Cluster::start().await;
    let created = cluster.config_map("a").await;
    let path = || format!("{CONFIG_MAPS}/a");
    check(
        &cluster,
        vec![
            ("DELETE", format!("{CONFIG_MAPS}/zz"), Value::Null, 404, "NotFound", "configmaps \"zz\" not found"),
            (
                "DELETE",
                path(),
                json!({"preconditions": {"uid": "x"}}),
                409,
                "Conflict",
                "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (x) does not match the UID",
            ),
            ("DELETE", path(), json!({"preconditions": {"resourceVersion": "1"}}), 409, "Conflict", ""),
            ("DELETE", path(), json!({"propagationPolicy": "x"}), 422, "Invalid", "DeleteOptions.meta.k8s.io"),
            ("DELETE", path(), json!({"kind": "Foo"}), 400, "BadRequest", ""),
            ("DELETE", "/api/v1/configmaps".into(), Value::Null, 405, "MethodNotAllowed", ""),
            ("DELETE", "/api/v1/namespaces".into(), Value::Null, 405, "MethodNotAllowed", ""),
            ("DELETE", "/api/v1/namespaces/default".into(), Value::Null, 403, "Forbidden", "namespaces \"default\" is forb"),
        ],
    )
    .await;
    let uid = &created["metadata"]["uid"];
    let deleted = cluster.delete(&path(), &json!({"preconditions": {"uid": uid}})).await.ok();
    let details = json!({"name": "a", "kind": "configmaps", "uid": uid});
    assert_eq!((&deleted["status"], &deleted["details"]), (&json!("Success"), &details));
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_taken_away() {
    let cluster = Cluster::start().await;
    let body = json!({"metadata": {"name": "a", "finalizers": ["x.y/z"]}});
    cluster.post(CONFIG_MAPS, &body).await.ok();
    let path = format!("{CONFIG_MAPS}/a");
    let marked = cluster.delete(&path, &Value::Null).await.ok();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(cluster.delete(&path, &Value::Null).await.ok(), marked, "a second delete changes nothing");
    let more = json!({"metadata": {"finalizers": ["x.y/z", "a.b/c"]}});
    let refused = cluster.patch(&path, MERGE, &more).await;
    assert_eq!(refused.refusal(), (422, "Invalid"));
    let last = cluster.patch(&path, MERGE, &json!({"metadata": {"finalizers": null}})).await.ok();
    assert_eq!(last["metadata"]["resourceVersion"], marked["metadata"]["resourceVersion"]);
    assert_eq!(cluster.get(&path).await.code, 404);
}

#[tokio::test]
async fn deleting_a_collection_takes_what_the_selector_takes() {
    let cluster = Cluster::start().await;
    for (name, app) in [("a", "x"), ("b", "y"), ("c", "x")] {
        cluster.post(CONFIG_MAPS, &json!({"metadata": {"name": name, "labels": {"app": app}}})).await.ok();
    }
    let gone = cluster.delete(&format!("{CONFIG_MAPS}?labelSelector=app=x"), &Value::Null).await.ok();
    assert_eq!(gone["items"].as_array().unwrap().len(), 2);
    let left = cluster.get(&format!("{CONFIG_MAPS}?labelSelector=app")).await.ok();
    assert_eq!(left["items"][0]["metadata"]["name"], "b");
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn pods_end_with_the_grace_that_they_need() {
    let cluster = Cluster::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str, node: Value| json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
    cluster.post(pods, &pod("free", Value::Null)).await.ok();
    assert_eq!(cluster.delete(&format!("{pods}/free"), &Value::Null).await.ok()["kind"], "Pod");
    assert_eq!(cluster.get(&format!("{pods}/free")).await.code, 404, "an unscheduled pod vanishes at once");
    cluster.post(pods, &pod("bound", json!("node"))).await.ok();
    let marked = cluster.delete(&format!("{pods}/bound"), &Value::Null).await.ok();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(cluster.get(&format!("{pods}/bound")).await.code, 200);
    cluster.delete(&format!("{pods}/bound"), &json!({"gracePeriodSeconds": 0})).await.ok();
    assert_eq!(cluster.get(&format!("{pods}/bound")).await.code, 404);
}

#[tokio::test]
async fn secrets_take_text_and_keep_base64() {
    let cluster = Cluster::start().await;
    let path = "/api/v1/namespaces/default/secrets";
    let secret = cluster.post(path, &json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}})).await.ok();
    assert_eq!(
        (&secret["data"], &secret["type"], secret.get("stringData")),
        (&json!({"a": "Yg=="}), &json!("Opaque"), None)
    );
}

#[tokio::test]
async fn events_are_one_kind_in_two_groups() {
    let cluster = Cluster::start().await;
    let event = json!({
        "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "R",
        "message": "M", "type": "Normal",
    });
    cluster.post("/api/v1/namespaces/default/events", &event).await.ok();
    let other = cluster.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.ok();
    assert_eq!(other["apiVersion"], "events.k8s.io/v1");
    assert_eq!((&other["regarding"]["name"], &other["note"]), (&json!("p"), &json!("M")));
    let found = |name: &str| format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{name}");
    assert_eq!(cluster.get(&found("p")).await.ok()["items"].as_array().unwrap().len(), 1);
    assert_eq!(cluster.get(&found("q")).await.ok()["items"], json!([]));
}

#[tokio::test]
async fn whoever_asks_may_do_everything() {
    let cluster = Cluster::start().await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let body = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let reply = cluster.post(path, &body).await;
    assert_eq!((reply.code, &reply.body["status"]), (201, &json!({"allowed": true})));
    assert_eq!(cluster.get(path).await.refusal(), (405, "MethodNotAllowed"));
}

#[tokio::test]
async fn requests_are_counted_by_verb_and_resource() {
    let cluster = Cluster::start().await;
    cluster.config_map("a").await;
    cluster.get(CONFIG_MAPS).await.ok();
    cluster.get(&format!("{CONFIG_MAPS}/zz")).await;
    let apply = format!("{CONFIG_MAPS}/a?fieldManager=m");
    cluster.patch(&apply, crate::cluster::APPLY, &config_map("a")).await.ok();
    cluster.delete(CONFIG_MAPS, &Value::Null).await.ok();
    for (verb, code) in [("POST", 201), ("LIST", 200), ("GET", 404), ("APPLY", 200), ("DELETECOLLECTION", 200)] {
        let labels = ["resource=\"configmaps\"", &format!("verb=\"{verb}\""), &format!("code=\"{code}\"")];
        assert_eq!(cluster.counted(&labels).await, 1, "{verb}");
    }
    assert_eq!(cluster.counted(&["verb=\"PUT\""]).await, 0);
}

#[tokio::test]
async fn pod_is_evicted_unless_its_budget_forbids_it() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let cluster = Cluster::start().await;
    let pod = |name: &str| json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for name in ["a", "b"] {
        cluster.post(PODS, &pod(name)).await.ok();
        let running = json!({"status": {"phase": "Running"}});
        cluster.patch(&format!("{PODS}/{name}/status"), MERGE, &running).await.ok();
    }
    let budget =
        json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    cluster.post(BUDGETS, &budget).await.ok();
    let evict = async |name: &str| {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        cluster.post(&format!("{PODS}/{name}/eviction"), &eviction).await
    };
    let refused = evict("a").await;
    assert_eq!(refused.refusal(), (429, "TooManyRequests"));
    let counted =
        json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "desiredHealthy": 1, "currentHealthy": 2}});
    cluster.patch(&format!("{BUDGETS}/web/status"), MERGE, &counted).await.ok();
    assert_eq!(evict("a").await.code, 201);
    assert_eq!(cluster.get(&format!("{PODS}/a")).await.code, 404);
    assert_eq!(evict("b").await.refusal(), (429, "TooManyRequests"));
    assert_eq!(evict("c").await.refusal(), (404, "NotFound"));
    // Without a kubelet there is no log.
    assert_eq!(cluster.get(&format!("{PODS}/b/log")).await.code, 204);
    assert_eq!(cluster.get(&format!("{PODS}/b/log?container=x")).await.refusal(), (400, "BadRequest"));
    assert_eq!(cluster.get(&format!("{PODS}/c/log")).await.refusal(), (404, "NotFound"));
}
