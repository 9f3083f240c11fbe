//! What a client reads when a webhook rejects its request, or fails: the same words from both API servers.
//!
//! The webhooks here are a test's own, without a host, so that they can be wrong in every way. They apply to the test's
//! namespace only.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use pilothouse_e2e::{Reviewer, Scene, eventually, reviewer::Answer};
use serde_json::{Value, from_slice, json};
use tokio::net::TcpListener;

const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// An answer of the API server.
#[derive(Debug)]
struct Reply {
    code: u16,
    body: Value,
    warnings: Vec<String>,
}

impl Reply {
    /// Code, reason and message.
    fn told(&self) -> (u16, &str, &str) {
        let text = |field: &str| self.body[field].as_str().unwrap_or_default();
        // An accepted object has none.
        (self.code, text("reason"), text("message"))
    }
}

async fn send(scene: &Scene, method: &str, path: &str, body: Option<&Value>) -> Result<Reply> {
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string().into_bytes()));
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(body)?;
    let response = scene.client().send(request).await.with_context(|| format!("no answer to {method} {path}"))?;
    let (head, body) = response.into_parts();
    let warnings = head.headers.get_all("warning").iter().filter_map(|value| Some(value.to_str().ok()?.to_owned()));
    let (code, warnings) = (head.status.as_u16(), warnings.collect());
    Ok(Reply { code, body: from_slice(&body.collect().await?.to_bytes()).unwrap_or_default(), warnings })
}

async fn is_created(scene: &Scene, collection: &str, object: &Value) -> Result<()> {
    let reply = send(scene, "POST", collection, Some(object)).await?;
    ensure!(reply.code == 201, "{}", reply.body);
    Ok(())
}

/// Creates a ConfigMap, as a dry run. Its label selects the webhook, and its name the answer.
async fn create(scene: &Scene, webhook: &str, name: &str) -> Result<Reply> {
    let path = format!("/api/v1/namespaces/{}/configmaps?dryRun=All", scene.namespace);
    send(scene, "POST", &path, Some(&json!({"metadata": {"name": name, "labels": {"webhook": webhook}}}))).await
}

/// A webhook that reviews ConfigMaps of the test's namespace with its label. `more` has further fields.
fn webhook(scene: &Scene, name: &str, client_config: &Value, more: &Value) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]});
    let mut webhook = json!({
        "name": format!("{name}.refusals.example.com"), "clientConfig": client_config, "rules": [rule], "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "objectSelector": {"matchLabels": {"webhook": name}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        webhook[field] = value.clone();
    }
    webhook
}

/// Creates a configuration named after the test, and returns its path.
async fn configured(scene: &Scene, of: &str, webhooks: &[Value]) -> Result<String> {
    let (collection, name) = (format!("{WEBHOOKS}/{of}webhookconfigurations"), format!("{}-refusals", scene.namespace));
    let kind = if of == "mutating" { "MutatingWebhookConfiguration" } else { "ValidatingWebhookConfiguration" };
    let api_version = "admissionregistration.k8s.io/v1";
    let configuration =
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "webhooks": webhooks});
    is_created(scene, &collection, &configuration).await?;
    Ok(format!("{collection}/{name}"))
}

/// Waits until a webhook rejects the ConfigMap `probe`.
async fn in_force(scene: &Scene, webhook: &str) -> Result<()> {
    eventually("the webhook is in force", async || {
        let reply = create(scene, webhook, "probe").await?;
        ensure!(reply.code >= 400, "{reply:?}");
        Ok(())
    })
    .await
}

/// Compares all answers, and shows each that differs. After `…` a message may go on: there the words are a parser's own.
fn compare(answers: &[(String, Reply)], expected: &[(u16, &str, String)]) -> Result<()> {
    let mut wrong = Vec::new();
    for ((case, reply), (code, reason, message)) in answers.iter().zip(expected) {
        let told = reply.told();
        let is_expected = (told.0, told.1) == (*code, *reason)
            && message.strip_suffix('…').map_or(told.2 == message, |begins| told.2.starts_with(begins));
        if !is_expected {
            wrong.push(format!("{case}:\n  expected {:?}\n  got      {told:?}", (code, reason, message)));
        }
    }
    ensure!(wrong.is_empty() && answers.len() == expected.len(), "\n{}", wrong.join("\n"));
    Ok(())
}

pub(crate) async fn what_a_webhook_answers_reaches_the_client_in_the_words_of_kube_apiserver(
    scene: Scene,
) -> Result<()> {
    const DENIED: &str = r#"admission webhook "answers.refusals.example.com" denied the request"#;
    const INVALID: &str = r#"Internal error occurred: failed calling webhook "answers.refusals.example.com": received invalid webhook response: "#;
    const FAILED: &str =
        r#"Internal error occurred: failed calling webhook "answers.refusals.example.com": failed to call webhook: "#;
    let review = |response: Value| {
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response}).to_string()
    };
    let denied = |status: Value| Answer::Response(json!({"allowed": false, "status": status}));
    let answers = move |request: &Value| match request["name"].as_str().unwrap_or_default() {
        "probe" | "bare" => denied(Value::Null),
        "message" => denied(json!({"message": "not today"})),
        "reason" => denied(json!({"reason": "Because"})),
        "code" => denied(json!({"message": "not today", "code": 403, "reason": "Forbidden"})),
        "success" => denied(json!({"message": "not today", "code": 200, "status": "Success"})),
        "absent" => Answer::Body(200, review(Value::Null)),
        "stranger" => Answer::Body(200, review(json!({"uid": "x", "allowed": true}))),
        "kindless" => Answer::Body(200, json!({"response": {"uid": request["uid"], "allowed": true}}).to_string()),
        "cut" => Answer::Body(200, "{".to_owned()),
        "text" => Answer::Body(200, "yes".to_owned()),
        "patch" => Answer::Response(json!({"allowed": true, "patch": "W10=", "patchType": "JSONPatch"})),
        "patch-type" => Answer::Response(json!({"allowed": true, "patchType": "JSONPatch"})),
        "untyped" => Answer::Response(json!({"allowed": true, "patch": "W10="})),
        // [{"op":"add","path":"/data","value":{}}]
        "merge" => Answer::Response(json!({
            "allowed": true, "patchType": "MergePatch",
            "patch": "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2RhdGEiLCJ2YWx1ZSI6e319XQ==",
        })),
        // `{`
        "garbled" => Answer::Response(json!({"allowed": true, "patch": "ew==", "patchType": "JSONPatch"})),
        // [{"op":"test","path":"/metadata/name","value":"other"}]
        "unfit" => Answer::Response(json!({
            "allowed": true, "patchType": "JSONPatch",
            "patch": "W3sib3AiOiJ0ZXN0IiwicGF0aCI6Ii9tZXRhZGF0YS9uYW1lIiwidmFsdWUiOiJvdGhlciJ9XQ==",
        })),
        "error" => Answer::Body(500, "oh no".to_owned()),
        "forbidden" => Answer::Body(403, "who are you?".to_owned()),
        "missing" => Answer::Body(404, "nothing here".to_owned()),
        "busy" => Answer::Body(429, "wait".to_owned()),
        "away" => Answer::Body(503, "later".to_owned()),
        "teapot" => Answer::Body(418, "short and stout".to_owned()),
        "warned" => Answer::Response(json!({"allowed": true, "warnings": ["old field", "old field", "say \"no\""]})),
        "warned-denied" => Answer::Response(json!({"allowed": false, "warnings": ["old field"]})),
        "long" => Answer::Response(json!({"allowed": true, "warnings": ["x".repeat(1_000)]})),
        _ => Answer::Response(json!({"allowed": true})),
    };
    let reviewer = Reviewer::start("127.0.0.1", answers).await?;
    let rows = |mutating: bool| -> Vec<(&'static str, u16, &'static str, String)> {
        let internal = "InternalError";
        let mut rows = vec![
            ("bare", 400, "", format!("{DENIED} without explanation")),
            ("message", 400, "", format!("{DENIED}: not today")),
            ("reason", 400, "Because", format!("{DENIED}: Because")),
            ("code", 403, "Forbidden", format!("{DENIED}: not today")),
            ("success", 400, "", format!("{DENIED}: not today")),
            ("absent", 500, internal, format!("{INVALID}webhook response was absent")),
            (
                "kindless",
                500,
                internal,
                format!(
                    "{INVALID}expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind="
                ),
            ),
            (
                "cut",
                500,
                internal,
                format!("{FAILED}couldn't get version/kind; json parse error: unexpected end of JSON input"),
            ),
            ("text", 500, internal, format!("{FAILED}couldn't get version/kind; json parse error: …")),
            (
                "error",
                500,
                internal,
                format!("{FAILED}an error on the server (\"oh no\") has prevented the request from succeeding"),
            ),
            ("forbidden", 500, internal, format!("{FAILED}who are you?")),
            ("missing", 500, internal, format!("{FAILED}the server could not find the requested resource")),
            (
                "busy",
                500,
                internal,
                format!("{FAILED}the server has received too many requests and has asked us to try again later"),
            ),
            ("away", 500, internal, format!("{FAILED}the server is currently unable to handle the request")),
            (
                "teapot",
                500,
                internal,
                format!("{FAILED}the server responded with the status code 418 but did not return more information"),
            ),
        ];
        let invalid = |why: &str| format!("{INVALID}{why}");
        if mutating {
            let call = INVALID.replace("received invalid webhook response: ", "");
            let undecodable = INVALID.replace("invalid webhook response", "undecodable patch in webhook response");
            rows.extend([
                ("untyped", 500, internal, invalid("webhook returned response.patch but not response.patchType")),
                ("patch-type", 500, internal, invalid("webhook returned response.patchType but not response.patch")),
                ("merge", 500, internal, format!("{call}unsupported patch type \"MergePatch\"")),
                ("garbled", 500, internal, format!("{undecodable}unexpected end of JSON input")),
                (
                    "unfit",
                    500,
                    internal,
                    "Internal error occurred: testing value /metadata/name failed: test failed".to_owned(),
                ),
                ("patch", 201, "", String::new()),
            ]);
        } else {
            rows.extend([
                ("patch", 500, internal, invalid("validating webhook may not return response.patch")),
                ("patch-type", 500, internal, invalid("validating webhook may not return response.patchType")),
            ]);
        }
        rows
    };
    for of in ["validating", "mutating"] {
        let webhooks = [webhook(&scene, "answers", &reviewer.client_config(), &Value::Null)];
        let configuration = configured(&scene, of, &webhooks).await?;
        in_force(&scene, "answers").await?;
        let (mut answers, mut expected) = (Vec::new(), Vec::new());
        for (name, code, reason, message) in rows(of == "mutating") {
            answers.push((format!("{of} {name}"), create(&scene, "answers", name).await?));
            expected.push((code, reason, message));
        }
        compare(&answers, &expected)?;
        // The uid is the API server's own.
        let stranger = create(&scene, "answers", "stranger").await?;
        let (code, reason, message) = stranger.told();
        ensure!((code, reason) == (500, "InternalError"), "{stranger:?}");
        let begins = message.starts_with(&format!("{INVALID}expected response.uid=\""));
        ensure!(begins && message.ends_with("\", got \"x\""), "{message}");

        let warned = create(&scene, "answers", "warned").await?;
        ensure!(warned.code == 201, "{warned:?}");
        ensure!(warned.warnings == ["299 - \"old field\"", "299 - \"say \\\"no\\\"\""], "{:?}", warned.warnings);
        let warned = create(&scene, "answers", "warned-denied").await?;
        ensure!(warned.code == 400 && warned.warnings == ["299 - \"old field\""], "{warned:?}");
        let long = create(&scene, "answers", "long").await?;
        let lengths: Vec<usize> = long.warnings.iter().map(String::len).collect();
        ensure!(lengths == ["299 - \"\"".len() + 1_000], "{lengths:?}");
        let plain = create(&scene, "answers", "other").await?;
        ensure!(plain.code == 201 && plain.warnings.is_empty(), "{plain:?}");
        ensure!(send(&scene, "DELETE", &configuration, None).await?.code == 200, "{configuration} is not deleted");
        eventually("nobody reviews any more", async || {
            ensure!(create(&scene, "answers", "probe").await?.code == 201, "somebody does");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

pub(crate) async fn a_webhook_that_cannot_be_called_is_told_in_the_words_of_kube_apiserver(scene: Scene) -> Result<()> {
    let silent = |request: &Value| match request["name"].as_str() {
        Some("probe") => Answer::Response(json!({"allowed": false})),
        Some("eof") => Answer::Close,
        _ => Answer::Silence,
    };
    let (reviewer, stranger) =
        (Reviewer::start("127.0.0.1", silent).await?, Reviewer::start("localhost", silent).await?);
    let misnamed = Reviewer::start("other.example.com", silent).await?;
    // Nobody listens there any more, or nobody speaks TLS.
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()?.port();
    let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let plain_port = plain.local_addr()?.port();
    let speaking = tokio::spawn(async move {
        while let Ok((mut stream, _)) = plain.accept().await {
            tokio::spawn(async move {
                use tokio::io::AsyncWriteExt;
                drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await);
            });
        }
    });
    let (config, ca) = (reviewer.client_config(), &reviewer.client_config()["caBundle"]);
    let at = |port: u16, ca: &Value| json!({"url": format!("https://127.0.0.1:{port}/review"), "caBundle": ca});
    let quick = json!({"timeoutSeconds": 1});
    let lenient = json!({"timeoutSeconds": 1, "failurePolicy": "Ignore"});
    let configuration = configured(
        &scene,
        "validating",
        &[
            webhook(&scene, "silent", &config, &quick),
            webhook(&scene, "ignored", &config, &lenient),
            webhook(&scene, "closed", &at(closed, ca), &Value::Null),
            webhook(&scene, "plain", &at(plain_port, ca), &Value::Null),
            webhook(&scene, "untrusted", &at(reviewer.port(), &stranger.client_config()["caBundle"]), &Value::Null),
            webhook(&scene, "misnamed", &misnamed.client_config(), &Value::Null),
        ],
    )
    .await?;
    in_force(&scene, "silent").await?;
    let post = |port: u16, seconds: u8| format!("Post \"https://127.0.0.1:{port}/review?timeout={seconds}s\": ");
    let refused = format!("dial tcp 127.0.0.1:{closed}: connect: connection refused");
    let mut expected = Vec::new();
    let mut answers = Vec::new();
    for (webhook, name, port, seconds, why) in [
        ("silent", "late", reviewer.port(), 1, "context deadline exceeded"),
        ("silent", "eof", reviewer.port(), 1, "EOF"),
        ("closed", "a", closed, 10, &refused),
        ("plain", "a", plain_port, 10, "http: server gave HTTP response to HTTPS client"),
        (
            "untrusted",
            "a",
            reviewer.port(),
            10,
            "tls: failed to verify certificate: x509: certificate signed by unknown authority",
        ),
        (
            "misnamed",
            "a",
            misnamed.port(),
            10,
            "tls: failed to verify certificate: x509: cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs",
        ),
    ] {
        answers.push((format!("{webhook} {name}"), create(&scene, webhook, name).await?));
        let failed = "Internal error occurred: failed calling webhook";
        let post = post(port, seconds);
        let message = format!("{failed} \"{webhook}.refusals.example.com\": failed to call webhook: {post}{why}");
        expected.push((500, "InternalError", message));
    }
    compare(&answers, &expected)?;
    let ignored = create(&scene, "ignored", "late").await?;
    ensure!(ignored.code == 201, "{ignored:?}");
    speaking.abort();
    send(&scene, "DELETE", &configuration, None).await.map(drop)
}

pub(crate) async fn a_match_condition_that_fails_is_told_in_the_words_of_kube_apiserver(scene: Scene) -> Result<()> {
    let deny = |_: &Value| Answer::Response(json!({"allowed": false}));
    let reviewer = Reviewer::start("127.0.0.1", deny).await?;
    let config = reviewer.client_config();
    let when = |policy: &str, conditions: &[(&str, &str)]| {
        let conditions = conditions.iter().map(|(name, expression)| json!({"name": name, "expression": expression}));
        json!({"failurePolicy": policy, "matchConditions": conditions.collect::<Vec<_>>()})
    };
    let (fails, is_false) = (("fails", "object.data.missing == 'x'"), ("not-probe", "object.metadata.name == 'probe'"));
    let configuration = configured(
        &scene,
        "validating",
        &[
            webhook(&scene, "held", &config, &when("Fail", &[is_false])),
            webhook(&scene, "strict", &config, &when("Fail", &[fails])),
            webhook(&scene, "lenient", &config, &when("Ignore", &[fails])),
            webhook(&scene, "decided", &config, &when("Fail", &[fails, is_false])),
        ],
    )
    .await?;
    in_force(&scene, "held").await?;
    let mut answers = Vec::new();
    for name in ["held", "strict", "lenient", "decided"] {
        answers.push((name.to_owned(), create(&scene, name, "a").await?));
    }
    let failed =
        "configmaps \"a\" is forbidden: expression 'object.data.missing == 'x'' resulted in error: no such key: data";
    compare(
        &answers,
        &[
            (201, "", String::new()),
            (403, "Forbidden", failed.to_owned()),
            (201, "", String::new()),
            (201, "", String::new()),
        ],
    )?;
    send(&scene, "DELETE", &configuration, None).await?;

    // Conditions that cannot be compiled are rejected with the configuration.
    let mut rejected = Vec::new();
    for expression in ["object.", "1", "nobody.name == 'a'"] {
        let webhooks = [webhook(&scene, "unfit", &config, &when("Fail", &[("unfit", expression)]))];
        let name = format!("{}-unfit", scene.namespace);
        let body = json!({"metadata": {"name": name}, "webhooks": webhooks});
        let path = format!("{WEBHOOKS}/validatingwebhookconfigurations?dryRun=All");
        rejected.push((expression.to_owned(), send(&scene, "POST", &path, Some(&body)).await?));
    }
    for (expression, reply) in &rejected {
        let at = "webhooks[0].matchConditions[0].expression";
        ensure!((reply.code, &reply.body["reason"]) == (422, &json!("Invalid")), "{expression}: {}", reply.body);
        ensure!(reply.body["details"]["causes"][0]["field"] == at, "{expression}: {}", reply.body);
    }
    Ok(())
}

pub(crate) async fn a_conversion_that_fails_is_told_in_the_words_of_kube_apiserver(scene: Scene) -> Result<()> {
    let group = format!("{}.refusals.example.com", scene.namespace);
    let (old, new) = (format!("{group}/v1"), format!("{group}/v2"));
    let wanted = new.clone();
    let convert = move |request: &Value| {
        let mut object = request["objects"][0].clone();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        object["apiVersion"] = request["desiredAPIVersion"].clone();
        let mut result = json!({"status": "Success"});
        match name.as_str() {
            "told" => result = json!({"status": "Failure", "message": "no way"}),
            "untold" => result = json!({"status": "Failure"}),
            "unclear" => result = json!({}),
            "version" => object["apiVersion"] = json!("example.com/v3"),
            "kind" => object["kind"] = json!("Pear"),
            "name" => object["metadata"]["name"] = json!("other"),
            "uid" => object["metadata"]["uid"] = json!("other"),
            "label" => object["metadata"]["labels"] = json!({"a b": "c"}),
            "bare" => drop(object["metadata"].take()),
            "error" => return Answer::Body(500, "oh no".to_owned()),
            "missing" => return Answer::Body(404, String::new()),
            "eof" => return Answer::Close,
            "text" => return Answer::Body(200, "yes".to_owned()),
            _ => {}
        }
        let mut objects = vec![object];
        if name == "more" {
            objects.push(objects[0].clone());
        }
        Answer::Response(
            json!({"result": result, "convertedObjects": if name == "none" { Vec::new() } else { objects }}),
        )
    };
    let reviewer = Reviewer::start("127.0.0.1", convert).await?;
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version =
        |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
    let definition = format!("lamps.{group}");
    let conversion = json!({
        "strategy": "Webhook",
        "webhook": {"clientConfig": reviewer.client_config(), "conversionReviewVersions": ["v1"]},
    });
    let body = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": definition},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": "lamps", "singular": "lamp", "kind": "Lamp"},
            "versions": [version("v1", true), version("v2", false)], "conversion": conversion,
        },
    });
    is_created(&scene, DEFINITIONS, &body).await?;
    let path =
        |version: &str, name: &str| format!("/apis/{group}/{version}/namespaces/{}/lamps{name}", scene.namespace);
    let lamp = |name: &str| json!({"apiVersion": old, "kind": "Lamp", "metadata": {"name": name}});
    eventually("the kind is served", async || is_created(&scene, &path("v1", ""), &lamp("good")).await).await?;
    let good = send(&scene, "GET", &path("v2", "/good"), None).await?;
    ensure!(good.code == 200 && good.body["apiVersion"] == new, "{good:?}");
    let cases = [
        ("told", " failed: no way"),
        ("untold", " failed: response.result.status was 'Failure', not 'Success'"),
        ("unclear", " failed: response.result.status was '', not 'Success'"),
        ("none", " returned 0 objects, expected 1"),
        ("more", " returned 2 objects, expected 1"),
        (
            "version",
            " returned invalid object at index 0: invalid groupVersion (expected NEW, received example.com/v3)",
        ),
        ("kind", " returned invalid object at index 0: invalid kind (expected Lamp, received Pear)"),
        ("name", " returned invalid object: must have the same name: name != other"),
        ("uid", " returned invalid object: must have the same UID: UID != other"),
        ("error", " failed: an error on the server (\"oh no\") has prevented the request from succeeding"),
        ("missing", " failed: the server could not find the requested resource"),
        ("eof", " failed: Post \"https://127.0.0.1:PORT/review?timeout=30s\": EOF"),
        ("text", " failed: couldn't get version/kind; json parse error: …"),
        (
            "label",
            " returned invalid metadata: metadata.labels: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ),
        ("bare", " returned invalid object: must have the same name: bare != "),
    ];
    let (mut answers, mut expected) = (Vec::new(), Vec::new());
    for (name, why) in cases {
        let created = send(&scene, "POST", &path("v1", ""), Some(&lamp(name))).await?;
        ensure!(created.code == 201, "{name}: {}", created.body);
        let uid = created.body["metadata"]["uid"].as_str().context("it has a uid")?;
        let why = why.replace("UID !=", &format!("{uid} !="));
        let why = why.replace("NEW", &wanted).replace("PORT", &reviewer.port().to_string());
        answers.push((name.to_owned(), send(&scene, "GET", &path("v2", &format!("/{name}")), None).await?));
        expected.push((500, "", format!("conversion webhook for {old}, Kind=Lamp{why}")));
    }
    compare(&answers, &expected)?;
    send(&scene, "DELETE", &format!("{DEFINITIONS}/{definition}"), None).await.map(drop)
}
