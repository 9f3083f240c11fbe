//! A webhook converts custom resources between versions, as kube-apiserver has it convert them.

use serde_json::{Value, json};

use crate::{
    cluster::{APPLES, APPLY, CRDS, Cluster, MERGE, apple, apple_crd},
    webhook::{Hook, Said, configuration, entry, patched, rule},
};

const OLD_APPLES: &str = "/apis/stable.example.com/v1beta1/namespaces/default/myapples";

/// Converts like a good webhook: `v1beta1` writes the color as `colour`.
fn convert(request: &Value) -> Value {
    let wanted = request["desiredAPIVersion"].clone();
    let (from, to) = if wanted == "stable.example.com/v1" { ("colour", "color") } else { ("color", "colour") };
    let objects = request["objects"].as_array().unwrap().iter().cloned().map(|mut object| {
        object["apiVersion"] = wanted.clone();
        if let Some(color) = object["spec"].as_object_mut().and_then(|spec| spec.remove(from)) {
            object["spec"][to] = color;
        }
        object
    });
    json!({"result": {"status": "Success"}, "convertedObjects": objects.collect::<Vec<_>>()})
}

async fn install(cluster: &Cluster, hook: &Hook) -> Value {
    let mut crd = apple_crd();
    crd["spec"]["conversion"] = json!({
        "strategy": "Webhook",
        "webhook": {"clientConfig": hook.client_config(), "conversionReviewVersions": ["v1"]},
    });
    cluster.post(CRDS, &crd).await.ok()
}

async fn with_conversion() -> (Cluster, Hook) {
    let cluster = Cluster::start().await;
    let hook = Hook::serve(|request| Said::Response(convert(request))).await;
    install(&cluster, &hook).await;
    (cluster, hook)
}

fn old_apple(name: &str, color: &str) -> Value {
    json!({
        "apiVersion": "stable.example.com/v1beta1", "kind": "MyApple", "metadata": {"name": name}, "spec": {"colour": color},
    })
}

/// Versions and colors of what each review asked to convert.
fn asked(hook: &Hook) -> Vec<(Value, usize)> {
    let seen = hook.seen();
    seen.iter()
        .map(|request| (request["desiredAPIVersion"].clone(), request["objects"].as_array().unwrap().len()))
        .collect()
}

#[tokio::test]
async fn objects_are_converted_on_their_way_in_and_out() {
    let (cluster, hook) = with_conversion().await;
    let created = cluster.post(OLD_APPLES, &old_apple("gala", "red")).await.ok();
    assert_eq!(
        (&created["apiVersion"], &created["spec"]["colour"]),
        (&json!("stable.example.com/v1beta1"), &json!("red"))
    );
    let stored = cluster.get(&format!("{APPLES}/gala")).await.ok();
    assert_eq!((&stored["apiVersion"], &stored["spec"]), (&json!("stable.example.com/v1"), &json!({"color": "red"})));
    let (new, old) = (json!("stable.example.com/v1"), json!("stable.example.com/v1beta1"));
    assert_eq!(asked(&hook), [(new.clone(), 1), (old.clone(), 1)], "in, and out again for the answer");

    let path = format!("{OLD_APPLES}/gala");
    let mut object = cluster.get(&path).await.ok();
    object["spec"]["colour"] = "green".into();
    assert_eq!(cluster.put(&path, &object).await.ok()["spec"]["colour"], "green");
    let patched = cluster.patch(&path, MERGE, &json!({"spec": {"colour": "blue"}})).await.ok();
    assert_eq!(patched["spec"]["colour"], "blue");
    let applied =
        cluster.patch(&format!("{path}?fieldManager=m&force=true"), APPLY, &old_apple("gala", "pink")).await.ok();
    assert_eq!(applied["spec"]["colour"], "pink");
    let stored = cluster.get(&format!("{APPLES}/gala")).await.ok();
    assert_eq!(stored["spec"]["color"], "pink");
    assert_eq!(stored["metadata"]["uid"], created["metadata"]["uid"]);
}

#[tokio::test]
async fn a_list_is_converted_in_one_call_and_what_has_the_version_in_none() {
    let (cluster, hook) = with_conversion().await;
    for name in ["a", "b", "c"] {
        cluster.post(APPLES, &apple(name, &json!({"color": name}))).await.ok();
    }
    assert_eq!(cluster.get(APPLES).await.ok()["items"].as_array().unwrap().len(), 3);
    assert!(hook.seen().is_empty());
    let list = cluster.get(OLD_APPLES).await.ok();
    let colors: Vec<_> = list["items"].as_array().unwrap().iter().map(|item| item["spec"]["colour"].clone()).collect();
    assert_eq!(colors, ["a", "b", "c"]);
    assert_eq!(asked(&hook), [(json!("stable.example.com/v1beta1"), 3)]);
    let page = cluster.get(&format!("{OLD_APPLES}?limit=2")).await.ok();
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    assert_eq!(asked(&hook)[1].1, 2);
}

#[tokio::test]
async fn a_watch_shows_converted_objects() {
    let (cluster, _hook) = with_conversion().await;
    cluster.post(APPLES, &apple("gala", &json!({"color": "red"}))).await.ok();
    let mut watch = cluster.watch(OLD_APPLES).await;
    let seen = async |watch: &mut crate::cluster::Watch| {
        let event = watch.next().await.unwrap();
        (event["type"].clone(), event["object"]["apiVersion"].clone(), event["object"]["spec"]["colour"].clone())
    };
    let old = json!("stable.example.com/v1beta1");
    assert_eq!(seen(&mut watch).await, (json!("ADDED"), old.clone(), json!("red")));
    cluster.patch(&format!("{APPLES}/gala"), MERGE, &json!({"spec": {"color": "green"}})).await.ok();
    assert_eq!(seen(&mut watch).await, (json!("MODIFIED"), old.clone(), json!("green")));
    cluster.delete(&format!("{APPLES}/gala"), &Value::Null).await.ok();
    assert_eq!(seen(&mut watch).await, (json!("DELETED"), old, json!("green")));
}

#[tokio::test]
async fn only_labels_and_annotations_of_the_metadata_may_change() {
    let cluster = Cluster::start().await;
    let hook = Hook::serve(|request| {
        let mut response = convert(request);
        for object in response["convertedObjects"].as_array_mut().unwrap() {
            object["metadata"]["labels"] = json!({"by": "webhook"});
            object["metadata"]["finalizers"] = json!(["example.com/x"]);
        }
        Said::Response(response)
    })
    .await;
    install(&cluster, &hook).await;
    cluster.post(APPLES, &apple("gala", &json!({"color": "red"}))).await.ok();
    let read = cluster.get(&format!("{OLD_APPLES}/gala")).await.ok();
    assert_eq!(read["metadata"]["labels"], json!({"by": "webhook"}));
    assert_eq!(read["metadata"].get("finalizers"), None);
}

#[tokio::test]
async fn a_failed_conversion_fails_reads_writes_and_watches() {
    type Change = fn(&mut Value);
    let failures: [(Change, &str); 8] = [
        (|response| response["result"] = json!({"status": "Failure", "message": "no way"}), "failed: no way"),
        (|response| response["result"] = json!({}), "failed: response.result.status was '', not 'Success'"),
        (|response| response["convertedObjects"] = json!([]), "returned 0 objects, expected 1"),
        (
            |response| response["convertedObjects"][0]["apiVersion"] = "stable.example.com/v3".into(),
            "returned invalid object at index 0: invalid groupVersion (expected stable.example.com/v1beta1, received \
             stable.example.com/v3)",
        ),
        (
            |response| response["convertedObjects"][0]["kind"] = "Pear".into(),
            "returned invalid object at index 0: invalid kind (expected MyApple, received Pear)",
        ),
        (
            |response| response["convertedObjects"][0]["metadata"]["name"] = "fuji".into(),
            "returned invalid object: must have the same name: gala != fuji",
        ),
        (
            |response| response["convertedObjects"][0]["metadata"]["uid"] = "1".into(),
            "returned invalid object: must have the same UID: UID != 1",
        ),
        (
            |response| {
                let object = response["convertedObjects"][0].as_object_mut().unwrap();
                object["metadata"]["labels"] = json!({"a b": "c"});
            },
            "returned invalid metadata: metadata.labels: Invalid value: \"a b\": name part must consist of",
        ),
    ];
    for (change, why) in failures {
        let cluster = Cluster::start().await;
        let hook = Hook::serve(move |request| {
            let mut response = convert(request);
            change(&mut response);
            Said::Response(response)
        })
        .await;
        install(&cluster, &hook).await;
        let object = cluster.post(APPLES, &apple("gala", &json!({"color": "red"}))).await.ok();
        let why = why.replace("UID !=", &format!("{} !=", object["metadata"]["uid"].as_str().unwrap()));
        let message = format!("conversion webhook for stable.example.com/v1, Kind=MyApple {why}");
        for path in [format!("{OLD_APPLES}/gala"), OLD_APPLES.to_owned()] {
            let reply = cluster.get(&path).await;
            assert_eq!(reply.refusal(), (500, ""));
            assert!(reply.message().starts_with(&message), "{} instead of {message}", reply.text);
        }
        let reply = cluster.patch(&format!("{OLD_APPLES}/gala"), MERGE, &json!({"spec": {"colour": "blue"}})).await;
        assert!(reply.message().starts_with(&message), "{} instead of {message}", reply.text);
        let event = cluster.watch(OLD_APPLES).await.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(500)));
    }
}

#[tokio::test]
async fn a_conversion_without_an_answer_names_the_call() {
    let (cluster, hook) = with_conversion().await;
    cluster.post(APPLES, &apple("gala", &json!({"color": "red"}))).await.ok();
    let other = Hook::allowing().await;
    let crd = format!("{CRDS}/myapples.stable.example.com");
    let bundle = json!({"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": other.ca}}}}});
    cluster.patch(&crd, MERGE, &bundle).await.ok();
    let reply = cluster.get(&format!("{OLD_APPLES}/gala")).await;
    let why = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    let message = format!(
        "conversion webhook for stable.example.com/v1, Kind=MyApple failed: Post \"https://{}/review?timeout=30s\": {why}",
        hook.addr
    );
    assert_eq!((reply.code, reply.message()), (500, message.as_str()));
    cluster.get(&format!("{APPLES}/gala")).await.ok();
}

#[tokio::test]
async fn an_admission_webhook_gets_the_version_that_it_asked_for() {
    let (cluster, _hook) = with_conversion().await;
    let admission =
        Hook::serve(|_| patched(&json!([{"op": "replace", "path": "/spec/colour", "value": "gold"}]))).await;
    let rules = json!({"rules": [rule("stable.example.com", "v1beta1", "myapples")]});
    let hooks = [entry("a.example.com", &admission, &rules)];
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    cluster.post(path, &configuration("Mutating", "a", &hooks)).await.ok();
    let created = cluster.post(APPLES, &apple("gala", &json!({"color": "red"}))).await.ok();
    assert_eq!(created["spec"], json!({"color": "gold", "size": "small"}));
    assert_eq!(admission.seen()[0]["object"]["spec"]["colour"], "red");
}

#[tokio::test]
async fn an_invalid_conversion_is_rejected() {
    let cluster = Cluster::start().await;
    let hook = Hook::allowing().await;
    let webhook = |client: Value, versions: Value| json!({"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": versions}});
    let client = "spec.conversion.webhookClientConfig";
    for (conversion, field) in [
        (json!({"strategy": "Other"}), "spec.conversion.strategy"),
        (json!({"strategy": "Webhook"}), client),
        (webhook(json!({}), json!(["v1"])), client),
        (webhook(json!({"url": "http://a"}), json!(["v1"])), &format!("{client}.url")),
        (webhook(json!({"url": "https://a", "caBundle": "Cg=="}), json!(["v1"])), &format!("{client}.caBundle")),
        (webhook(hook.client_config(), json!([])), "spec.conversion.conversionReviewVersions"),
        (webhook(hook.client_config(), json!(["v1beta1"])), "spec.conversion.conversionReviewVersions"),
    ] {
        let mut crd = apple_crd();
        crd["spec"]["conversion"] = conversion;
        let reply = cluster.post(CRDS, &crd).await;
        assert_eq!(reply.refusal(), (422, "Invalid"), "{field}");
        assert_eq!(reply.body["details"]["causes"][0]["field"], field, "{}", reply.text);
    }
}
