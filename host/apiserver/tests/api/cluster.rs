//! A running server and a small client for it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    header::{self, HeaderMap},
};
use hyper_util::rt::TokioIo;
use pilothouse_apiserver::{Server, serve};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

/// A timeout that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(crate) const APPLES: &str = "/apis/stable.example.com/v1/namespaces/default/myapples";
pub(crate) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// A running server.
pub(crate) struct Cluster {
    pub(crate) server: Arc<Server>,
    pub(crate) addr: SocketAddr,
    serving: Option<(oneshot::Sender<()>, JoinHandle<std::io::Result<()>>)>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    /// The body as JSON, or null if it is not JSON.
    pub(crate) body: Value,
    pub(crate) text: String,
}

impl Reply {
    /// Returns the body of a request that must have succeeded.
    pub(crate) fn ok(self) -> Value {
        assert!((200..300).contains(&self.code), "{} {}", self.code, self.text);
        self.body
    }

    /// Returns code and reason.
    pub(crate) fn refusal(&self) -> (u16, &str) {
        (self.code, self.body["reason"].as_str().unwrap_or_default())
    }

    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    pub(crate) fn warnings(&self) -> Vec<&str> {
        self.headers.get_all(header::WARNING).iter().map(|value| value.to_str().unwrap()).collect()
    }
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let mut cluster =
            Cluster { server: Arc::new(Server::new()), addr: SocketAddr::from(([127, 0, 0, 1], 0)), serving: None };
        cluster.resume().await;
        cluster
    }

    /// Serves the same data on another port.
    pub(crate) async fn resume(&mut self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            // A dropped sender stops the server too.
            let _ = stopped.await;
        };
        let task = tokio::spawn(serve(listener, shutdown, Arc::clone(&self.server)));
        self.serving = Some((stop, task));
    }

    /// Stops the server, and waits until it has stopped.
    pub(crate) async fn stop(&mut self) {
        if let Some((stop, task)) = self.serving.take() {
            stop.send(()).unwrap();
            task.await.unwrap().unwrap();
        }
    }

    async fn open(&self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        let stream = TcpStream::connect(self.addr).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        sender.send_request(request).await
    }

    /// Sends any request.
    pub(crate) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, self.addr.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body))).unwrap();
        let response = tokio::time::timeout(PATIENCE, self.open(request)).await.expect("an answer in time").unwrap();
        let (head, body) = response.into_parts();
        let bytes = tokio::time::timeout(PATIENCE, body.collect()).await.expect("a body in time").unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_str(&text).unwrap_or_default();
        Reply { code: head.status.as_u16(), headers: head.headers, body, text }
    }

    async fn write(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Reply {
        let headers = [("content-type", content_type), ("user-agent", "test/1")];
        self.send(method, path, &headers, body.to_string().as_bytes()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], b"").await
    }

    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> Reply {
        self.send("GET", path, &[("accept", accept)], b"").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.write("POST", path, "application/json", body).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Reply {
        self.write("PUT", path, "application/json", body).await
    }

    pub(crate) async fn patch(&self, path: &str, kind: &str, body: &Value) -> Reply {
        self.write("PATCH", path, kind, body).await
    }

    pub(crate) async fn delete(&self, path: &str, options: &Value) -> Reply {
        self.write("DELETE", path, "application/json", options).await
    }

    /// Creates a ConfigMap in `default`.
    pub(crate) async fn config_map(&self, name: &str) -> Value {
        self.post(CONFIG_MAPS, &config_map(name)).await.ok()
    }

    /// Installs the CRD of MyApple.
    pub(crate) async fn apples(&self) {
        self.post(CRDS, &apple_crd()).await.ok();
    }

    pub(crate) async fn watch(&self, path: &str) -> Watch {
        self.watch_as(path, "application/json").await
    }

    pub(crate) async fn watch_as(&self, path: &str, accept: &str) -> Watch {
        let separator = if path.contains('?') { '&' } else { '?' };
        let request = Request::get(format!("{path}{separator}watch=true"))
            .header(header::HOST, self.addr.to_string())
            .header(header::ACCEPT, accept)
            .body(Full::default())
            .unwrap();
        let response = self.open(request).await.unwrap();
        assert_eq!(response.status(), 200);
        Watch { body: response.into_body(), buffer: Vec::new() }
    }

    /// Waits until an object of a collection is gone.
    pub(crate) async fn gone(&self, collection: &str, name: &str) {
        let mut watch = self.watch(&format!("{collection}?fieldSelector=metadata.name={name}")).await;
        if self.get(&format!("{collection}/{name}")).await.code == 404 {
            return;
        }
        while watch.next().await.expect("the watch goes on")["type"] != "DELETED" {}
    }

    /// Returns the number of counted requests with all these labels.
    pub(crate) async fn counted(&self, labels: &[&str]) -> u64 {
        let metrics = self.get("/metrics").await.text;
        let lines = metrics.lines().filter(|line| line.starts_with("apiserver_request_total{"));
        let matching = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
        matching.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }
}

/// An open watch.
pub(crate) struct Watch {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Watch {
    /// Returns the next event, or `None` when the server has ended the watch.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        let line = self.line().await?;
        Some(serde_json::from_slice(&line).unwrap())
    }

    /// Returns the next line as text.
    pub(crate) async fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return Some(self.buffer.drain(..=end).collect());
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("an event in time")?;
            self.buffer.extend_from_slice(frame.ok()?.data_ref().unwrap());
        }
    }

    /// Returns type and name of the next event.
    pub(crate) async fn seen(&mut self) -> (String, String) {
        let event = self.next().await.expect("the watch goes on");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}

pub(crate) fn pair(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

pub(crate) fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

pub(crate) fn apple(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "MyApple", "metadata": {"name": name}, "spec": spec})
}

pub(crate) fn apple_crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "myapples.stable.example.com"},
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced",
            "names": {"plural": "myapples", "kind": "MyApple", "shortNames": ["ma"]},
            "versions": [
                {
                    "name": "v1", "served": true, "storage": true,
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.quantity", "statusReplicasPath": ".status.available"},
                    },
                    "additionalPrinterColumns": [
                        {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
                        {"name": "Quantity", "type": "integer", "jsonPath": ".spec.quantity", "priority": 1},
                    ],
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object", "required": ["color"],
                                "properties": {
                                    "color": {"type": "string"},
                                    "size": {"type": "string", "enum": ["small", "large"], "default": "small"},
                                    "quantity": {"type": "integer", "minimum": 1},
                                },
                                "x-kubernetes-validations": [{"rule": "self.color != 'black'", "message": "no black ones"}],
                            },
                            "status": {"type": "object", "properties": {"available": {"type": "integer"}}},
                        },
                    }},
                },
                {
                    "name": "v1beta1", "served": true, "storage": false, "deprecated": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                },
            ],
        },
    })
}
