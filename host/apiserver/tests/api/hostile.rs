//! No request crashes the server, and every request gets an answer.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::cluster::{APPLES, APPLY, CONFIG_MAPS, Cluster, JSON_PATCH, MERGE, STRATEGIC};

#[tokio::test]
async fn bodies_that_are_no_objects_are_bad_requests() {
    let cluster = Cluster::start().await;
    cluster.apples().await;
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for path in [CONFIG_MAPS, APPLES] {
        for body in ["", "{", "[]", "1", "\"x\"", "\u{0}", "{\"metadata\":1}", "{\"a\":1}x", &deep] {
            let reply = cluster.send("POST", path, &[("content-type", "application/json")], body.as_bytes()).await;
            let start: String = body.chars().take(20).collect();
            assert_eq!(reply.refusal(), (400, "BadRequest"), "{path} {start}: {}", reply.text);
        }
        for content_type in ["text/plain", "application/cbor", "application/xml"] {
            let reply = cluster.send("POST", path, &[("content-type", content_type)], b"{}").await;
            assert_eq!(reply.refusal(), (415, "UnsupportedMediaType"));
        }
    }
}

#[tokio::test]
async fn bodies_over_three_mebibytes_are_refused() {
    let cluster = Cluster::start().await;
    let body = vec![b' '; (3 << 20) + 1];
    let reply = cluster.send("POST", CONFIG_MAPS, &[("content-type", "application/json")], &body).await;
    assert_eq!(reply.refusal(), (413, "RequestEntityTooLarge"));
    assert_eq!(reply.message(), "Request entity too large: limit is 3145728");
}

/// Any JSON in place of an object gets an error or an object as its answer, and the server keeps running.
#[tokio::test]
async fn no_field_of_a_wrong_type_is_too_much_for_any_kind() {
    let cluster = Cluster::start().await;
    let wrong = [json!(null), json!(1), json!("x"), json!([]), json!([1]), json!({"x": {"y": []}})];
    let mut resources = Vec::new();
    for path in
        ["/api/v1", "/apis/apps/v1", "/apis/batch/v1", "/apis/apiextensions.k8s.io/v1", "/apis/coordination.k8s.io/v1"]
    {
        let list = cluster.get(path).await.ok();
        for resource in list["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            if !name.contains('/') {
                let scope = if resource["namespaced"] == true { "/namespaces/default" } else { "" };
                resources.push(format!("{path}{scope}/{name}"));
            }
        }
    }
    let fields = [
        "/metadata",
        "/metadata/labels",
        "/metadata/finalizers",
        "/metadata/ownerReferences",
        "/metadata/managedFields",
        "/spec",
        "/spec/template",
        "/spec/template/spec",
        "/spec/containers",
        "/spec/ports",
        "/spec/names",
        "/spec/versions",
        "/spec/versions/0",
        "/spec/selector",
        "/status",
        "/data",
        "/stringData",
        "/involvedObject",
    ];
    for collection in &resources {
        for field in fields {
            for value in &wrong {
                let mut body = json!({"metadata": {"name": "x"}, "spec": {"template": {}, "versions": [{}]}});
                place(&mut body, field, value.clone());
                let reply = cluster.post(&format!("{collection}?dryRun=All"), &body).await;
                assert!(reply.body["kind"].is_string(), "{collection} {body}: {}", reply.text);
            }
        }
    }
    assert_eq!(cluster.get("/healthz").await.text, "ok");
}

fn place(body: &mut Value, pointer: &str, value: Value) {
    let mut at = body;
    for step in pointer.split('/').skip(1) {
        at = match step.parse::<usize>() {
            Ok(index) => &mut at[index],
            Err(_) => &mut at[step],
        };
    }
    *at = value;
}

#[tokio::test]
async fn patches_of_a_wrong_shape_are_answered() {
    let cluster = Cluster::start().await;
    cluster.config_map("a").await;
    let path = format!("{CONFIG_MAPS}/a?fieldManager=m&dryRun=All");
    let bodies = [
        "",
        "null",
        "1",
        "[]",
        "[1]",
        "[{}]",
        "[{\"op\":\"add\"}]",
        "[{\"op\":\"add\",\"path\":\"x\",\"value\":1}]",
        "{}",
        "[{\"op\":\"remove\",\"path\":\"\"}]",
        "[{\"op\":\"replace\",\"path\":\"\",\"value\":1}]",
        "{\"metadata\":null}",
        "{\"metadata\":1}",
        "{\"metadata\":{\"labels\":[]}}",
        "{\"metadata\":{\"managedFields\":1}}",
        "{\"metadata\":{\"managedFields\":[{}]}}",
        "{\"data\":{\"$patch\":\"x\"}}",
        "{\"$patch\":\"delete\"}",
        "a: [",
        "\u{feff}",
        "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"finalizers\":{}}}",
        "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"data\":[[]]}",
    ];
    for kind in [JSON_PATCH, MERGE, STRATEGIC, APPLY] {
        for body in bodies {
            let reply = cluster.send("PATCH", &path, &[("content-type", kind)], body.as_bytes()).await;
            assert!(reply.body["kind"].is_string(), "{kind} {body}: {} {}", reply.code, reply.text);
        }
    }
}

#[tokio::test]
async fn queries_of_a_wrong_shape_are_answered() {
    let cluster = Cluster::start().await;
    let mut long = String::from("?labelSelector=a");
    for index in 0..500 {
        write!(long, ",k{index}").unwrap();
    }
    for query in
        ["?%", "?%zz", "?=", "?&&", "?limit=99999999999999999999", "?labelSelector=%ff", "?continue=%00", &long]
    {
        let reply = cluster.get(&format!("{CONFIG_MAPS}{query}")).await;
        assert!(reply.body["kind"].is_string(), "{query}: {}", reply.text);
    }
    for path in
        ["/api//v1", "/api/v1/", "/apis/", "/api/v1/namespaces//configmaps", "/%2e%2e/x", "/api/v1/configmaps/%ff"]
    {
        assert!(cluster.get(path).await.code < 500, "{path}");
    }
    for method in ["TRACE", "OPTIONS", "FOO"] {
        let reply = cluster.send(method, CONFIG_MAPS, &[], b"").await;
        assert_eq!(reply.refusal(), (405, "MethodNotAllowed"), "{method}");
    }
}

#[tokio::test]
async fn a_web_page_of_another_site_changes_nothing() {
    let cluster = Cluster::start().await;
    let fault = json!({"on": {"resource": "secrets"}, "fault": {"status": {"code": 500}}}).to_string();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "planted"}}).to_string();
    let own = format!("http://{}", cluster.addr);
    for (headers, code) in [
        (&[("origin", "https://evil.example"), ("content-type", "text/plain")][..], 403),
        (&[("sec-fetch-site", "cross-site"), ("content-type", "text/plain")], 403),
        (&[("origin", &*own), ("sec-fetch-site", "same-origin"), ("content-type", "application/json")], 201),
    ] {
        for (path, body) in [("/debug/faults", &fault), (CONFIG_MAPS, &map)] {
            let reply = cluster.send("POST", path, headers, body.as_bytes()).await;
            assert_eq!(reply.code, code, "{path} {headers:?}: {}", reply.text);
        }
        assert_eq!(cluster.server.faults().list().len(), usize::from(code == 201), "{headers:?}");
    }
}

#[tokio::test]
async fn faults_are_not_reached_by_a_name_that_leads_to_this_server() {
    let cluster = Cluster::start().await;
    for (host, answer) in
        [("evil.example", "HTTP/1.1 403 "), ("127.0.0.1", "HTTP/1.1 200 "), ("localhost:1", "HTTP/1.1 200 ")]
    {
        let mut stream = TcpStream::connect(cluster.addr).await.unwrap();
        let request = format!("GET /debug/faults HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with(answer), "{host}: {text}");
    }
}
