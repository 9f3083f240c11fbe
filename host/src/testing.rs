//! An API server for tests of this crate: the embedded one, over HTTP.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use pilothouse_apiserver::Server;
use pilothouse_core::key::{Key, TypeMeta};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Handle,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cluster::{Cluster, DeleteOptions, Patch, WriteOptions};

/// How long a step of a test may take. Only a hang comes near it: an informer retries after a minute at most.
const LIMIT: Duration = Duration::from_secs(120);

/// An embedded API server that ends with this value.
pub(crate) struct Api {
    pub(crate) cluster: Cluster,
    pub(crate) server: Arc<Server>,
    _serving: DropGuard,
}

impl Api {
    pub(crate) async fn start() -> Self {
        let (server, address, stop) = serve().await;
        Self::at(address, server, stop)
    }

    /// Starts a server, and records everything that clients send to it.
    pub(crate) async fn overheard() -> (Self, Arc<Mutex<Vec<u8>>>) {
        let (server, behind, stop) = serve().await;
        let (listener, address) = listen().await;
        let sent = Arc::<Mutex<Vec<u8>>>::default();
        let heard = sent.clone();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, behind, heard.clone()));
            }
        }));
        (Self::at(address, server, stop), sent)
    }

    fn at(address: SocketAddr, server: Arc<Server>, stop: CancellationToken) -> Self {
        let mut config = kube::Config::new(format!("http://{address}").parse().expect("an address is a URI"));
        // Like the host's own client, so that errors reach the caller.
        config.default_retry = false;
        let client = kube::Client::try_from(config).expect("a client of plain HTTP");
        let cluster = Cluster::new(client, &address.to_string(), Handle::current());
        Self { cluster, server, _serving: stop.drop_guard() }
    }

    /// Creates an object.
    pub(crate) async fn create(&self, object: Value) {
        let text = |member: &str| object.pointer(member).and_then(Value::as_str);
        let of = TypeMeta::new(text("/apiVersion").unwrap_or_default(), text("/kind").unwrap_or_default());
        let namespace = text("/metadata/namespace");
        self.cluster.create(&of, namespace, object.to_string().into_bytes(), "test").await.expect("it can be created");
    }

    /// Changes a cluster-scoped object.
    pub(crate) async fn replace(&self, of: &TypeMeta, name: &str, change: impl FnOnce(&mut Value)) {
        let body = self.cluster.get(of, None, name).await.expect("it is there");
        let mut object: Value = serde_json::from_slice(&body).expect("an object is JSON");
        change(&mut object);
        self.update(object).await;
    }

    /// Replaces an object.
    pub(crate) async fn update(&self, object: Value) {
        let text = |member: &str| object.pointer(member).and_then(Value::as_str);
        let of = TypeMeta::new(text("/apiVersion").unwrap_or_default(), text("/kind").unwrap_or_default());
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name").unwrap_or_default());
        let options = WriteOptions { manager: "test", subresource: None };
        let body = object.to_string().into_bytes();
        self.cluster.update(&of, namespace, name, body, options).await.expect("it can be updated");
    }

    /// Changes the spec of a MyApple in `default`.
    pub(crate) async fn replace_apple(&self, name: &str, spec: Value) {
        let of = TypeMeta::new("stable.example.com/v1", "MyApple");
        let options = WriteOptions { manager: "test", subresource: None };
        let body = json!({ "spec": spec }).to_string().into_bytes();
        self.cluster.patch(&of, Some("default"), name, Patch::Merge, body, options).await.expect("it can be changed");
    }

    pub(crate) async fn delete(&self, of: &TypeMeta, key: &Key) {
        let options = DeleteOptions { propagation: "Background", ..Default::default() };
        self.cluster.delete(of, key.namespace.as_deref(), &key.name, &options).await.expect("it can be deleted");
    }

    /// Makes the API server serve `stable.example.com/v1` `MyApple`, with anything in it.
    pub(crate) async fn serve_apples(&self) {
        self.create(apples("Namespaced", &[("v1", true)])).await;
    }

    /// Returns how many requests of a verb the server has received for a resource.
    pub(crate) async fn requests(&self, verb: &str, resource: &str) -> u64 {
        let body = self.cluster.get_path("/metrics").await.expect("the server has metrics");
        let text = String::from_utf8_lossy(&body);
        let (verb, resource) = (format!("verb=\"{verb}\""), format!("resource=\"{resource}\""));
        let counts = text.lines().filter(|line| {
            line.starts_with("apiserver_request_total{") && line.contains(&verb) && line.contains(&resource)
        });
        counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    (listener, address)
}

/// Starts an embedded API server.
async fn serve() -> (Arc<Server>, SocketAddr, CancellationToken) {
    let (listener, address) = listen().await;
    let stop = CancellationToken::new();
    let server = Arc::new(Server::new());
    tokio::spawn(pilothouse_apiserver::serve(listener, stop.clone().cancelled_owned(), server.clone()));
    (server, address, stop)
}

/// Relays one connection until either side ends it, and records what the client sends.
async fn relay(mut client: TcpStream, server: SocketAddr, heard: Arc<Mutex<Vec<u8>>>) -> std::io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut asks, mut hears) = client.split();
    let (mut answers, mut takes) = server.split();
    let there = async {
        let mut buffer = vec![0; 16 << 10];
        loop {
            let count = asks.read(&mut buffer).await?;
            if count == 0 {
                return Ok(());
            }
            heard.lock().extend_from_slice(&buffer[..count]);
            takes.write_all(&buffer[..count]).await?;
        }
    };
    tokio::select! {
        ended = there => ended,
        ended = tokio::io::copy(&mut answers, &mut hears) => ended.map(drop),
    }
}

/// The definition of MyApple with versions that are served or not. The last one is stored.
pub(crate) fn apples(scope: &str, versions: &[(&str, bool)]) -> Value {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let version = |(at, (name, served)): (usize, &(&str, bool))| {
        json!({
            "name": name, "served": served, "storage": at + 1 == versions.len(),
            "schema": { "openAPIV3Schema": schema }, "subresources": { "status": {} },
        })
    };
    let versions: Vec<_> = versions.iter().enumerate().map(version).collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "myapples.stable.example.com" },
        "spec": {
            "group": "stable.example.com", "scope": scope, "versions": versions,
            "names": { "kind": "MyApple", "plural": "myapples" },
        },
    })
}

/// Waits for a future. Panics after [`LIMIT`].
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {} s: {what}", LIMIT.as_secs()),
    }
}

/// Waits until `holds` returns `true`. Checks it after each turn of the other tasks.
pub(crate) async fn comes_true(what: &str, mut holds: impl FnMut() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    })
    .await;
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
