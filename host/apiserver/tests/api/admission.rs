//! Webhooks are asked about writes as kube-apiserver asks them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};

use crate::{
    cluster::{APPLES, APPLY, CONFIG_MAPS, Cluster, JSON_PATCH, MERGE, TABLE, apple, config_map},
    webhook::{Hook, Said, configuration, entry, patched, rule},
};

const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const NAMESPACES: &str = "/api/v1/namespaces";

async fn validating(cluster: &Cluster, hook: &Hook, more: &Value) -> Value {
    let hooks = [entry("policy.example.com", hook, more)];
    cluster.post(VALIDATING, &configuration("Validating", "policy", &hooks)).await.ok()
}

async fn mutating(cluster: &Cluster, hook: &Hook, more: &Value) -> Value {
    let hooks = [entry("defaults.example.com", hook, more)];
    cluster.post(MUTATING, &configuration("Mutating", "defaults", &hooks)).await.ok()
}

async fn replace(cluster: &Cluster, collection: &str, kind: &str, webhook: Value) {
    let name = if kind == "Mutating" { "defaults" } else { "policy" };
    cluster.delete(&format!("{collection}/{name}"), &Value::Null).await;
    cluster.post(collection, &configuration(kind, name, &[webhook])).await.ok();
}

fn denying() -> impl Fn(&Value) -> Said {
    |_| {
        Said::Response(
            json!({"allowed": false, "status": {"message": "not today", "code": 403, "reason": "Forbidden"}}),
        )
    }
}

#[tokio::test]
async fn a_configuration_gets_defaults_and_its_columns() {
    let cluster = Cluster::start().await;
    let hook = Hook::allowing().await;
    let kept = mutating(&cluster, &hook, &json!({})).await;
    assert_eq!(
        kept["webhooks"],
        json!([{
            "name": "defaults.example.com", "clientConfig": hook.client_config(), "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "matchPolicy": "Equivalent", "timeoutSeconds": 10,
            "reinvocationPolicy": "Never", "namespaceSelector": {}, "objectSelector": {},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"], "scope": "*"}],
        }])
    );
    assert_eq!(kept["metadata"]["generation"], 1);
    let table = cluster.get_as(MUTATING, TABLE).await.ok();
    assert_eq!(table["columnDefinitions"][1]["name"], "Webhooks");
    assert_eq!(table["rows"][0]["cells"][1], 1);
}

#[tokio::test]
async fn an_invalid_configuration_is_rejected() {
    let cluster = Cluster::start().await;
    let hook = Hook::allowing().await;
    for (more, field, message) in [
        (
            json!({"name": "a.b"}),
            "name",
            "Invalid value: \"a.b\": should be a domain with at least three segments separated by dots",
        ),
        (json!({"sideEffects": null}), "sideEffects", "Required value: must specify one of None, NoneOnDryRun"),
        (
            json!({"sideEffects": "Some"}),
            "sideEffects",
            "Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
        ),
        (
            json!({"failurePolicy": "Maybe"}),
            "failurePolicy",
            "Unsupported value: \"Maybe\": supported values: \"Fail\", \"Ignore\"",
        ),
        (
            json!({"timeoutSeconds": 31}),
            "timeoutSeconds",
            "Invalid value: 31: the timeout value must be between 1 and 30 seconds",
        ),
        (
            json!({"admissionReviewVersions": ["v2"]}),
            "admissionReviewVersions",
            "Invalid value: [\"v2\"]: must include at least one of v1",
        ),
        (json!({"clientConfig": {}}), "clientConfig", "Required value: exactly one of url or service is required"),
        (
            json!({"clientConfig": {"url": "http://a.example.com"}}),
            "clientConfig.url",
            "Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
        ),
        (
            json!({"rules": [{"apiGroups": ["*", "apps"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}]}),
            "rules[0].apiGroups",
            "Invalid value: [\"*\",\"apps\"]: if '*' is present, must not specify other API groups",
        ),
        (
            json!({"rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["READ"]}]}),
            "rules[0].operations[0]",
            "Unsupported value: \"READ\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"DELETE\", \"UPDATE\"",
        ),
    ] {
        let reply = cluster.post(VALIDATING, &configuration("Validating", "x", &[entry("a.b.c", &hook, &more)])).await;
        assert_eq!(reply.refusal(), (422, "Invalid"), "{field}: {}", reply.text);
        let causes = reply.body["details"]["causes"].as_array().unwrap();
        let found: Vec<_> =
            causes.iter().map(|cause| (cause["field"].as_str().unwrap(), cause["message"].as_str().unwrap())).collect();
        assert_eq!(found, [(format!("webhooks[0].{field}").as_str(), message)]);
    }
    let twice = [entry("a.b.c", &hook, &json!({})), entry("a.b.c", &hook, &json!({}))];
    let reply = cluster.post(VALIDATING, &configuration("Validating", "x", &twice)).await;
    assert_eq!(reply.body["details"]["causes"][0]["message"], "Duplicate value: \"a.b.c\"");
}

#[tokio::test]
async fn a_webhook_sees_the_whole_request() {
    let cluster = Cluster::start().await;
    let hook = Hook::allowing().await;
    validating(&cluster, &hook, &json!({})).await;
    let created = cluster.post(&format!("{CONFIG_MAPS}?fieldManager=me"), &config_map("a")).await.ok();
    let mut seen = hook.seen();
    let request = seen.remove(0);
    assert!(seen.is_empty());
    let mut object = created;
    object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let resource = json!({"group": "", "version": "v1", "resource": "configmaps"});
    let kind = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    assert_eq!(
        request,
        json!({
            "uid": request["uid"], "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
            "name": "a", "namespace": "default", "operation": "CREATE", "object": object, "oldObject": null, "dryRun": false,
            "userInfo": {"username": "pilothouse", "groups": ["system:masters", "system:authenticated"]},
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me"},
        })
    );
}

#[tokio::test]
async fn every_kind_of_write_asks() {
    let cluster = Cluster::start().await;
    let (before, after) = (Hook::allowing().await, Hook::allowing().await);
    mutating(&cluster, &before, &json!({})).await;
    validating(&cluster, &after, &json!({})).await;
    let path = format!("{CONFIG_MAPS}/a");
    let mut object = cluster.config_map("a").await;
    object["data"] = json!({"k": "v"});
    cluster.put(&path, &object).await.ok();
    cluster.patch(&path, MERGE, &json!({"data": {"k": "w"}})).await.ok();
    cluster.patch(&format!("{path}?fieldManager=m&force=true"), APPLY, &config_map("a")).await.ok();
    cluster.delete(&path, &json!({"gracePeriodSeconds": 0})).await.ok();
    cluster.patch(&format!("{CONFIG_MAPS}/b?fieldManager=m"), APPLY, &config_map("b")).await.ok();
    cluster.delete(&format!("{CONFIG_MAPS}?labelSelector=!x&fieldSelector=metadata.name=b"), &Value::Null).await.ok();
    let wanted = [
        ("CREATE", "CreateOptions", "a", true, false),
        ("UPDATE", "UpdateOptions", "a", true, true),
        ("UPDATE", "PatchOptions", "a", true, true),
        ("UPDATE", "PatchOptions", "a", true, true),
        ("DELETE", "DeleteOptions", "a", false, true),
        ("CREATE", "CreateOptions", "b", true, false),
        ("DELETE", "DeleteOptions", "", false, true),
    ];
    for hook in [&before, &after] {
        let seen = hook.seen();
        let seen: Vec<_> = seen
            .iter()
            .map(|request| {
                let text = |value: &'static str| request[value].as_str().unwrap_or_default();
                let options = request["options"]["kind"].as_str().unwrap();
                (
                    text("operation"),
                    options,
                    text("name"),
                    request["object"].is_object(),
                    request["oldObject"].is_object(),
                )
            })
            .collect();
        assert_eq!(seen, wanted);
    }
    assert_eq!(before.connections(), 1, "connections are used again");
}

#[tokio::test]
async fn a_denied_request_fails_with_the_webhooks_status() {
    for (status, code, reason, message) in [
        (Value::Null, 400, "", "denied the request without explanation"),
        (json!({"message": "no"}), 400, "", "denied the request: no"),
        (json!({"reason": "Because"}), 400, "Because", "denied the request: Because"),
        (json!({"message": "no", "code": 403, "reason": "Forbidden"}), 403, "Forbidden", "denied the request: no"),
        (json!({"message": "no", "code": 200, "status": "Success"}), 400, "", "denied the request: no"),
    ] {
        let cluster = Cluster::start().await;
        let hook = Hook::serve(move |_| Said::Response(json!({"allowed": false, "status": status}))).await;
        validating(&cluster, &hook, &json!({"failurePolicy": "Ignore"})).await;
        let reply = cluster.post(CONFIG_MAPS, &config_map("a")).await;
        assert_eq!(reply.refusal(), (code, reason));
        let mut wanted = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
            "message": format!("admission webhook \"policy.example.com\" {message}"),
        });
        if !reason.is_empty() {
            wanted["reason"] = reason.into();
        }
        assert_eq!(reply.body, wanted);
        assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.code, 404);
    }
}

#[tokio::test]
async fn a_denied_delete_leaves_the_object() {
    let cluster = Cluster::start().await;
    cluster.config_map("a").await;
    let hook = Hook::serve(denying()).await;
    validating(&cluster, &hook, &json!({})).await;
    let message = "admission webhook \"policy.example.com\" denied the request: not today";
    let reply = cluster.delete(&format!("{CONFIG_MAPS}/a"), &Value::Null).await;
    assert_eq!((reply.code, reply.message()), (403, message));
    let reply = cluster.delete(CONFIG_MAPS, &Value::Null).await;
    assert_eq!((reply.code, reply.message()), (403, message));
    cluster.get(&format!("{CONFIG_MAPS}/a")).await.ok();
}

#[tokio::test]
async fn a_patch_changes_the_object_before_it_is_checked() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    let color = json!([{"op": "add", "path": "/spec", "value": {"color": "green", "unknown": 1}}]);
    let hook = Hook::serve(move |_| patched(&color)).await;
    let apples = json!({"rules": [rule("stable.example.com", "v1", "myapples")]});
    mutating(&cluster, &hook, &apples).await;
    let check = Hook::allowing().await;
    validating(&cluster, &check, &apples).await;
    // Without a spec, which the schema requires.
    let bare = json!({"apiVersion": "stable.example.com/v1", "kind": "MyApple", "metadata": {"name": "gala"}});
    let created = cluster.post(APPLES, &bare).await.ok();
    assert_eq!(created["spec"], json!({"color": "green", "size": "small"}));
    assert_eq!(check.seen()[0]["object"]["spec"], created["spec"]);
    // The change has no owner, as in kube-apiserver.
    assert!(!created["metadata"]["managedFields"].to_string().contains("f:color"));
    // A change that the schema forbids is rejected, and validating webhooks are not asked.
    let bad = Hook::serve(|_| patched(&json!([{"op": "replace", "path": "/spec/color", "value": "black"}]))).await;
    replace(&cluster, MUTATING, "Mutating", entry("defaults.example.com", &bad, &apples)).await;
    let reply = cluster.patch(&format!("{APPLES}/gala"), MERGE, &json!({"spec": {"quantity": 1}})).await;
    assert_eq!(reply.refusal(), (422, "Invalid"));
    assert_eq!(check.seen().len(), 1);
}

#[tokio::test]
async fn a_generated_name_is_known_to_validating_webhooks_only() {
    let cluster = Cluster::start().await;
    let (before, after) = (Hook::allowing().await, Hook::allowing().await);
    mutating(&cluster, &before, &json!({})).await;
    validating(&cluster, &after, &json!({})).await;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "x-"}});
    let created = cluster.post(CONFIG_MAPS, &object).await.ok();
    assert_eq!(before.seen()[0].get("name"), None);
    assert_eq!(after.seen()[0]["name"], created["metadata"]["name"]);
}

#[tokio::test]
async fn mutating_webhooks_run_in_order_and_again_if_a_later_one_changed_the_object() {
    let cluster = Cluster::start().await;
    let order = Arc::new(AtomicUsize::new(0));
    let label = |name: &'static str, order: Arc<AtomicUsize>| {
        move |request: &Value| {
            let turn = order.fetch_add(1, Ordering::Relaxed).to_string();
            let labels = request["object"]["metadata"]["labels"].clone();
            let mut labels = labels.as_object().cloned().unwrap_or_default();
            labels.entry(name).or_insert_with(|| format!("turn-{turn}").into());
            patched(&json!([{"op": "add", "path": "/metadata/labels", "value": labels}]))
        }
    };
    let first = Hook::serve(label("first", Arc::clone(&order))).await;
    let never = Hook::serve(label("never", Arc::clone(&order))).await;
    let last = Hook::serve(label("last", Arc::clone(&order))).await;
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    let hooks = [entry("z.example.com", &last, &again)];
    cluster.post(MUTATING, &configuration("Mutating", "b", &hooks)).await.ok();
    let hooks = [entry("y.example.com", &first, &again), entry("x.example.com", &never, &json!({}))];
    cluster.post(MUTATING, &configuration("Mutating", "a", &hooks)).await.ok();
    let created = cluster.config_map("a").await;
    assert_eq!(created["metadata"]["labels"], json!({"first": "turn-0", "never": "turn-1", "last": "turn-2"}));
    let asked = [&first, &never, &last].map(|hook| hook.seen().len());
    assert_eq!(asked, [2, 1, 1], "the second round changes nothing, and asks those before the last change");
}

/// A port on which nobody listens any more.
async fn closed_port() -> u16 {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn a_failed_call_follows_the_failure_policy() {
    let cluster = Cluster::start().await;
    let hook = Hook::allowing().await;
    let other = Hook::allowing().await;
    let misnamed = Hook::serve_as("other.example.com", denying()).await;
    let silent = Hook::serve(|_| Said::Nothing).await;
    let port = closed_port().await;
    let failing = |code: u16, text: &'static str| Hook::serve(move |_| Said::Body(code, text.to_owned()));
    let (broken, absent, garbage) = (failing(500, "oh").await, failing(404, "").await, failing(200, "{").await);
    let url = |addr: std::net::SocketAddr, seconds: u64| format!("Post \"https://{addr}/review?timeout={seconds}s\": ");
    let at = |hook: &Hook| json!({"clientConfig": hook.client_config(), "timeoutSeconds": 1});
    for (more, why) in [
        (
            json!({"clientConfig": {"url": format!("https://127.0.0.1:{port}"), "caBundle": hook.ca}}),
            format!(
                "Post \"https://127.0.0.1:{port}/?timeout=10s\": dial tcp 127.0.0.1:{port}: connect: connection refused"
            ),
        ),
        (at(&silent), url(silent.addr, 1) + "context deadline exceeded"),
        (
            json!({"clientConfig": {"url": format!("https://{}/review", hook.addr), "caBundle": other.ca}}),
            url(hook.addr, 10) + "tls: failed to verify certificate: x509: certificate signed by unknown authority",
        ),
        (
            at(&misnamed),
            url(misnamed.addr, 1)
                + "tls: failed to verify certificate: x509: cannot validate certificate for 127.0.0.1 because it doesn't \
                   contain any IP SANs",
        ),
        (at(&broken), "an error on the server (\"oh\") has prevented the request from succeeding".to_owned()),
        (at(&absent), "the server could not find the requested resource".to_owned()),
        (at(&garbage), "couldn't get version/kind; json parse error: unexpected end of JSON input".to_owned()),
    ] {
        for (policy, code) in [("Fail", 500), ("Ignore", 201)] {
            let mut more = more.clone();
            more["failurePolicy"] = policy.into();
            for (collection, kind) in [(VALIDATING, "Validating"), (MUTATING, "Mutating")] {
                replace(&cluster, collection, kind, entry("policy.example.com", &hook, &more)).await;
                let reply = cluster.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("a")).await;
                assert_eq!(reply.code, code, "{policy} {why} {}", reply.text);
                if code == 500 {
                    let message = format!(
                        "Internal error occurred: failed calling webhook \"policy.example.com\": failed to call webhook: {why}"
                    );
                    assert_eq!(reply.message(), message);
                    assert_eq!(reply.body["reason"], "InternalError");
                }
                let name = if kind == "Mutating" { "defaults" } else { "policy" };
                cluster.delete(&format!("{collection}/{name}"), &Value::Null).await.ok();
            }
        }
    }
}

#[tokio::test]
async fn an_invalid_answer_is_a_failed_call() {
    let review = |response: Value| {
        let body = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
        move |_: &Value| Said::Body(200, body.to_string())
    };
    let cluster = Cluster::start().await;
    let patch = json!({"allowed": true, "patch": "W10=", "patchType": "JSONPatch"});
    let typeless = json!({"allowed": true, "patch": "W10="});
    for (collection, kind, hook, why) in [
        (VALIDATING, "Validating", Hook::serve(review(Value::Null)).await, "webhook response was absent"),
        (
            VALIDATING,
            "Validating",
            Hook::serve(review(json!({"uid": "x", "allowed": true}))).await,
            "expected response.uid=",
        ),
        (
            VALIDATING,
            "Validating",
            Hook::serve(|request| {
                Said::Body(200, json!({"response": {"uid": request["uid"], "allowed": true}}).to_string())
            })
            .await,
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=",
        ),
        (
            VALIDATING,
            "Validating",
            Hook::serve({
                let patch = patch.clone();
                move |_| Said::Response(patch.clone())
            })
            .await,
            "validating webhook may not return response.patch",
        ),
        (
            MUTATING,
            "Mutating",
            Hook::serve(move |_| Said::Response(typeless.clone())).await,
            "webhook returned response.patch but not response.patchType",
        ),
    ] {
        let failed = "Internal error occurred: failed calling webhook \"policy.example.com\": received invalid webhook response: ";
        replace(&cluster, collection, kind, entry("policy.example.com", &hook, &json!({}))).await;
        let reply = cluster.post(CONFIG_MAPS, &config_map("a")).await;
        assert!(reply.message().starts_with(&format!("{failed}{why}")), "{}", reply.text);
        let name = if kind == "Mutating" { "defaults" } else { "policy" };
        cluster.delete(&format!("{collection}/{name}"), &Value::Null).await.ok();
    }
}

#[tokio::test]
async fn a_patch_that_does_not_fit_rejects_the_request() {
    let cluster = Cluster::start().await;
    for patch in [
        json!([{"op": "test", "path": "/metadata/name", "value": "other"}]),
        json!([{"op": "replace", "path": "/kind", "value": "Secret"}]),
        json!([{"op": "replace", "path": "/metadata/labels", "value": "text"}]),
        json!([{"op": "replace", "path": "", "value": 1}]),
    ] {
        let hook = Hook::serve(move |_| patched(&patch)).await;
        replace(&cluster, MUTATING, "Mutating", entry("a.b.c", &hook, &json!({"failurePolicy": "Ignore"}))).await;
        let reply = cluster.post(CONFIG_MAPS, &config_map("a")).await;
        assert_eq!(reply.refusal(), (500, "InternalError"), "{}", reply.text);
    }
    // On a delete there is nothing to change.
    cluster.delete(&format!("{MUTATING}/defaults"), &Value::Null).await.ok();
    cluster.config_map("a").await;
    let hook = Hook::serve(|_| patched(&json!([{"op": "remove", "path": "/data"}]))).await;
    mutating(&cluster, &hook, &json!({})).await;
    let reply = cluster.delete(&format!("{CONFIG_MAPS}/a"), &Value::Null).await;
    let why = "Internal error occurred: admission webhook \"defaults.example.com\" attempted to modify the object, which is not \
               supported for this operation";
    assert_eq!(reply.message(), why);
}

#[tokio::test]
async fn rules_selectors_and_conditions_select() {
    let cluster = Cluster::start().await;
    cluster
        .patch(&format!("{NAMESPACES}/default"), MERGE, &json!({"metadata": {"labels": {"team": "fruit"}}}))
        .await
        .ok();
    let rules = |rule: Value| json!({"rules": [rule]});
    let all = |scope: &str, operations: Value| json!({"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": operations, "scope": scope});
    let condition = |text: &str| json!({"matchConditions": [{"name": "c", "expression": text}]});
    let labels = |field: &str, key: &str| json!({field: {"matchLabels": {key: "fruit"}}});
    for (more, asked) in [
        (rules(rule("", "v1", "configmaps")), true),
        (rules(rule("*", "*", "*")), true),
        (rules(rule("", "v1", "*/status")), false),
        (rules(rule("", "v1", "configmaps/*")), true),
        (rules(rule("", "v1", "configmaps/status")), false),
        (rules(rule("apps", "v1", "configmaps")), false),
        (rules(rule("", "v2", "configmaps")), false),
        (rules(rule("", "v1", "secrets")), false),
        (rules(all("Namespaced", json!(["CREATE"]))), true),
        (rules(all("Cluster", json!(["CREATE"]))), false),
        (rules(all("*", json!(["UPDATE", "DELETE"]))), false),
        (labels("namespaceSelector", "team"), true),
        (labels("namespaceSelector", "crew"), false),
        (labels("objectSelector", "kind"), true),
        (labels("objectSelector", "sort"), false),
        (
            json!({"objectSelector": {"matchExpressions": [{"key": "kind", "operator": "NotIn", "values": ["fruit"]}]}}),
            false,
        ),
        (condition("object.metadata.name == 'a'"), true),
        (condition("object.metadata.name == 'b'"), false),
        (condition("oldObject == null && request.operation == 'CREATE' && request.namespace == 'default'"), true),
        (condition("'x-y' in object.data && object.data['x-y'] == '1'"), true),
        (condition("request.userInfo.username.startsWith('system:')"), false),
    ] {
        let hook = Hook::allowing().await;
        replace(&cluster, VALIDATING, "Validating", entry("policy.example.com", &hook, &more)).await;
        let mut object = config_map("a");
        object["metadata"]["labels"] = json!({"kind": "fruit"});
        object["data"] = json!({"x-y": "1"});
        cluster.post(&format!("{CONFIG_MAPS}?dryRun=All"), &object).await.ok();
        assert_eq!(hook.seen().len(), usize::from(asked), "{more}");
    }
}

#[tokio::test]
async fn an_object_that_loses_a_label_is_still_selected() {
    let cluster = Cluster::start().await;
    let mut object = config_map("a");
    object["metadata"]["labels"] = json!({"kind": "fruit"});
    cluster.post(CONFIG_MAPS, &object).await.ok();
    let hook = Hook::serve(denying()).await;
    validating(&cluster, &hook, &json!({"objectSelector": {"matchLabels": {"kind": "fruit"}}})).await;
    let path = format!("{CONFIG_MAPS}/a");
    assert_eq!(cluster.patch(&path, MERGE, &json!({"metadata": {"labels": null}})).await.code, 403);
    assert_eq!(cluster.delete(&path, &Value::Null).await.code, 403);
}

#[tokio::test]
async fn a_namespace_is_selected_by_its_own_labels() {
    let cluster = Cluster::start().await;
    let hook = Hook::serve(denying()).await;
    let more =
        json!({"rules": [rule("", "v1", "namespaces")], "namespaceSelector": {"matchLabels": {"team": "fruit"}}});
    validating(&cluster, &hook, &more).await;
    let namespace =
        |labels: Value| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": labels}});
    assert_eq!(cluster.post(NAMESPACES, &namespace(json!({"team": "fruit"}))).await.code, 403);
    assert_eq!(hook.seen()[0]["namespace"], "n");
    cluster.post(NAMESPACES, &namespace(json!({}))).await.ok();
}

#[tokio::test]
async fn a_condition_that_fails_follows_the_failure_policy() {
    let cluster = Cluster::start().await;
    let hook = Hook::allowing().await;
    let conditions = |policy: &str| json!({"failurePolicy": policy, "matchConditions": [{"name": "c", "expression": "object.data.absent == 'x'"}]});
    validating(&cluster, &hook, &conditions("Fail")).await;
    let reply = cluster.post(CONFIG_MAPS, &config_map("a")).await;
    assert_eq!(reply.refusal(), (403, "Forbidden"));
    let start = "configmaps \"a\" is forbidden: expression 'object.data.absent == 'x'' resulted in error: ";
    assert!(reply.message().starts_with(start), "{}", reply.text);
    replace(&cluster, VALIDATING, "Validating", entry("policy.example.com", &hook, &conditions("Ignore"))).await;
    cluster.config_map("a").await;
    assert!(hook.seen().is_empty());
}

#[tokio::test]
async fn dry_runs_ask_webhooks_without_side_effects_only() {
    let cluster = Cluster::start().await;
    let hook = Hook::allowing().await;
    validating(&cluster, &hook, &json!({"sideEffects": "NoneOnDryRun"})).await;
    cluster.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("a")).await.ok();
    let request = &hook.seen()[0];
    assert_eq!(request["dryRun"], true);
    assert_eq!(request["options"]["dryRun"], json!(["All"]));
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).await.code, 404);
}

#[tokio::test]
async fn warnings_reach_the_client_with_either_answer() {
    for allowed in [true, false] {
        let cluster = Cluster::start().await;
        let warnings = json!({"allowed": allowed, "warnings": ["old field", "old field", "say \"no\""]});
        let hook = Hook::serve(move |_| Said::Response(warnings.clone())).await;
        validating(&cluster, &hook, &json!({})).await;
        let reply = cluster.post(CONFIG_MAPS, &config_map("a")).await;
        assert_eq!(reply.code, if allowed { 201 } else { 400 });
        assert_eq!(reply.warnings(), ["299 - \"old field\"", "299 - \"say \\\"no\\\"\""]);
        let reply = cluster.delete(&format!("{CONFIG_MAPS}/a"), &Value::Null).await;
        assert_eq!(reply.warnings().len(), if allowed { 2 } else { 0 });
    }
}

#[tokio::test]
async fn too_many_warnings_are_cut() {
    let cluster = Cluster::start().await;
    let warnings: Vec<String> = (0..100).map(|index| format!("{index}{}", "x".repeat(1000))).collect();
    let hook = Hook::serve(move |_| Said::Response(json!({"allowed": true, "warnings": warnings}))).await;
    validating(&cluster, &hook, &json!({})).await;
    let reply = cluster.post(CONFIG_MAPS, &config_map("a")).await;
    let lengths: Vec<usize> = reply.warnings().iter().map(|warning| warning.len() - "299 - \"\"".len()).collect();
    assert_eq!(lengths, [1001, 1001, 1001, 1001, 256]);
    reply.ok();
}

#[tokio::test]
async fn subresources_are_selected_by_their_own_rules() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    cluster.post(APPLES, &apple("gala", &json!({"color": "red", "quantity": 1}))).await.ok();
    let hook = Hook::allowing().await;
    validating(&cluster, &hook, &json!({"rules": [rule("stable.example.com", "*", "myapples/status")]})).await;
    let path = format!("{APPLES}/gala");
    cluster.patch(&path, MERGE, &json!({"spec": {"quantity": 2}})).await.ok();
    cluster.patch(&format!("{path}/status"), MERGE, &json!({"status": {"available": 1}})).await.ok();
    let seen = hook.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!((&seen[0]["subResource"], &seen[0]["requestSubResource"]), (&json!("status"), &json!("status")));
    assert_eq!(seen[0]["object"]["status"], json!({"available": 1}));

    let three = Hook::serve(|_| patched(&json!([{"op": "replace", "path": "/spec/replicas", "value": 3}]))).await;
    mutating(&cluster, &three, &json!({"rules": [rule("stable.example.com", "*", "myapples/scale")]})).await;
    cluster
        .patch(&format!("{path}/scale"), JSON_PATCH, &json!([{"op": "add", "path": "/spec/replicas", "value": 9}]))
        .await
        .ok();
    let request = &three.seen()[0];
    assert_eq!(request["kind"], json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}));
    assert_eq!(
        (&request["object"]["spec"]["replicas"], &request["oldObject"]["spec"]["replicas"]),
        (&json!(9), &json!(2))
    );
    assert_eq!(cluster.get(&path).await.ok()["spec"]["quantity"], 3);
}

#[tokio::test]
async fn a_rule_for_another_version_matches_unless_the_policy_is_exact() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    let hook =
        Hook::serve(|_| patched(&json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]))).await;
    mutating(&cluster, &hook, &json!({"rules": [rule("stable.example.com", "v1beta1", "myapples")]})).await;
    let created = cluster.post(APPLES, &apple("gala", &json!({"color": "red"}))).await.ok();
    assert_eq!(
        (&created["apiVersion"], &created["metadata"]["labels"]),
        (&json!("stable.example.com/v1"), &json!({"seen": "yes"}))
    );
    let request = &hook.seen()[0];
    let versions = [&request["kind"], &request["requestKind"]].map(|kind| kind["version"].clone());
    assert_eq!(versions, ["v1beta1", "v1"]);
    assert_eq!(request["object"]["apiVersion"], "stable.example.com/v1beta1");
    let exact = json!({"rules": [rule("stable.example.com", "v1beta1", "myapples")], "matchPolicy": "Exact"});
    replace(&cluster, MUTATING, "Mutating", entry("a.b.c", &hook, &exact)).await;
    cluster.post(APPLES, &apple("fuji", &json!({"color": "red"}))).await.ok();
    assert_eq!(hook.seen().len(), 1);
}

#[tokio::test]
async fn webhook_configurations_and_reviews_ask_nobody() {
    let cluster = Cluster::start().await;
    let hook = Hook::serve(denying()).await;
    validating(&cluster, &hook, &json!({"rules": [rule("*", "*", "*/*")]})).await;
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {}});
    cluster.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await.ok();
    cluster.delete(&format!("{VALIDATING}/policy"), &Value::Null).await.ok();
    cluster.config_map("a").await;
    assert!(hook.seen().is_empty());
}

#[tokio::test]
async fn a_restored_configuration_counts_again() {
    let cluster = Cluster::start().await;
    let before = cluster.server.snapshot();
    let hook = Hook::serve(denying()).await;
    validating(&cluster, &hook, &json!({})).await;
    let with = cluster.server.snapshot();
    cluster.server.restore(&before);
    cluster.config_map("a").await;
    cluster.server.restore(&with);
    assert_eq!(cluster.post(CONFIG_MAPS, &config_map("a")).await.code, 403);
}

#[tokio::test]
async fn a_service_is_found_through_its_endpoints() {
    let cluster = Cluster::start().await;
    let hook = Hook::serve_as("hooks.default.svc", denying()).await;
    let config = json!({"service": {"name": "hooks", "namespace": "default", "path": "/review"}, "caBundle": hook.ca});
    validating(&cluster, &hook, &json!({"clientConfig": config})).await;
    let expect = async |why: &str| {
        let reply = cluster.post(CONFIG_MAPS, &config_map("a")).await;
        let start =
            "Internal error occurred: failed calling webhook \"policy.example.com\": failed to call webhook: Post ";
        assert_eq!(reply.message(), format!("{start}\"https://hooks.default.svc:443/review?timeout=10s\": {why}"));
    };
    expect("service \"hooks\" not found").await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "hooks"},
        "spec": {"ports": [{"name": "https", "port": 443}]},
    });
    cluster.post("/api/v1/namespaces/default/services", &service).await.ok();
    expect("no endpoints available for service \"hooks\"").await;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "hooks-1", "labels": {"kubernetes.io/service-name": "hooks"}},
        "endpoints": [{"addresses": ["127.0.0.2"], "conditions": {"ready": false}}, {"addresses": ["127.0.0.1"]}],
        "ports": [{"name": "https", "port": hook.addr.port(), "protocol": "TCP"}],
    });
    cluster.post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice).await.ok();
    assert_eq!(cluster.post(CONFIG_MAPS, &config_map("a")).await.code, 403);
    assert_eq!(hook.seen().len(), 1);
}
