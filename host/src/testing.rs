//! An API server for tests of this crate: the embedded one, over HTTP.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use pilothouse_apiserver::Server;
use pilothouse_core::key::{Key, TypeMeta};
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime::Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cluster::{Cluster, DeleteOptions};

/// How long anything in a test may take. Nothing comes near it unless it hangs.
const LIMIT: Duration = Duration::from_secs(30);

/// An embedded API server that ends with this value.
pub(crate) struct Api {
    pub(crate) cluster: Cluster,
    _serving: DropGuard,
}

impl Api {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let stop = CancellationToken::new();
        tokio::spawn(pilothouse_apiserver::serve(listener, stop.clone().cancelled_owned(), Arc::new(Server::new())));
        let config = kube::Config::new(format!("http://{address}").parse().expect("an address is a URI"));
        let client = kube::Client::try_from(config).expect("a client of plain HTTP");
        let cluster = Cluster::new(client, &address.to_string(), Handle::current(), Arc::new(()));
        Self { cluster, _serving: stop.drop_guard() }
    }

    /// Creates an object.
    pub(crate) async fn create(&self, object: Value) {
        let text = |member: &str| object.pointer(member).and_then(Value::as_str);
        let of = TypeMeta::new(text("/apiVersion").unwrap_or_default(), text("/kind").unwrap_or_default());
        let namespace = text("/metadata/namespace");
        self.cluster.create(&of, namespace, object.to_string().into_bytes(), "test").await.expect("it can be created");
    }

    pub(crate) async fn delete(&self, of: &TypeMeta, key: &Key) {
        let options = DeleteOptions { propagation: "Background", ..Default::default() };
        self.cluster.delete(of, key.namespace.as_deref(), &key.name, &options).await.expect("it can be deleted");
    }

    /// Makes the API server serve `stable.example.com/v1` `MyApple`, with anything in it.
    pub(crate) async fn serve_apples(&self) {
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let version = json!({
            "name": "v1", "served": true, "storage": true,
            "schema": { "openAPIV3Schema": schema }, "subresources": { "status": {} },
        });
        self.create(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "myapples.stable.example.com" },
            "spec": {
                "group": "stable.example.com", "scope": "Namespaced", "versions": [version],
                "names": { "kind": "MyApple", "plural": "myapples" },
            },
        }))
        .await;
    }

    /// How many requests of a verb the server has had for a resource.
    pub(crate) async fn requests(&self, verb: &str, resource: &str) -> u64 {
        let body = self.cluster.get_path("/metrics").await.expect("the server tells its metrics");
        let text = String::from_utf8_lossy(&body);
        let (verb, resource) = (format!("verb=\"{verb}\""), format!("resource=\"{resource}\""));
        let counts = text.lines().filter(|line| {
            line.starts_with("apiserver_request_total{") && line.contains(&verb) && line.contains(&resource)
        });
        counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    }
}

/// Waits, but not for ever.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {} s: {what}", LIMIT.as_secs()),
    }
}

/// A ConfigMap in `default`.
pub(crate) fn config_map(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": "default", "name": name } })
}

/// A MyApple in `default`.
pub(crate) fn apple(name: &str) -> Value {
    json!({
        "apiVersion": "stable.example.com/v1", "kind": "MyApple",
        "metadata": { "namespace": "default", "name": name }, "spec": { "quantity": 1 },
    })
}
