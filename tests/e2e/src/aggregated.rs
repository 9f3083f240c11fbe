//! An aggregated API server: one group with one kind, which kube-apiserver delegates to this process by an APIService.
//!
//! The embedded API server has no APIServices. There nobody delegates, and nobody serves the group.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{api::core::v1::Service, kube_aggregator::pkg::apis::apiregistration::v1::APIService};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, from_value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    task::{JoinHandle, JoinSet},
};

use crate::{
    cluster::{Kind, get},
    reviewer::certificate,
    scene::Scene,
    wait::eventually,
};

/// The server, with the kind Melon and one object of it. Dropping it stops it.
pub struct Aggregated {
    group: String,
    is_down: Arc<AtomicBool>,
    serving: JoinHandle<()>,
}

impl Aggregated {
    /// Starts the server, and returns when the API server delegates its group to it.
    ///
    /// # Errors
    /// The API server does not delegate in time.
    pub async fn start(scene: &Scene) -> Result<Self> {
        let (tls, _) = certificate("localhost").context("cannot make a certificate")?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen")?;
        let port = listener.local_addr().context("a listener has an address")?.port();
        let (group, is_down) = (format!("{}.aggregated.example.com", scene.namespace), Arc::<AtomicBool>::default());
        let (served, namespace, down) = (group.clone(), scene.namespace.clone(), is_down.clone());
        let serving = tokio::spawn(async move {
            // They end with this task.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let (tls, group, namespace, down) = (tls.clone(), served.clone(), namespace.clone(), down.clone());
                connections.spawn(async move {
                    if !down.load(Ordering::Relaxed)
                        && let Ok(stream) = tls.accept(stream).await
                    {
                        // A client that goes away is expected.
                        drop(serve(stream, &group, &namespace, &down).await);
                    }
                });
            }
        });
        let server = Self { group, is_down, serving };
        if scene.cluster.kind() == Kind::Real {
            server.delegate(scene, port).await?;
        }
        Ok(server)
    }

    async fn delegate(&self, scene: &Scene, port: u16) -> Result<()> {
        let service: Service = from_value(json!({
            "metadata": {"name": "melons"}, "spec": {"type": "ExternalName", "externalName": "localhost"},
        }))?;
        let services: Api<Service> = Api::namespaced(scene.client(), &scene.namespace);
        services.create(&PostParams::default(), &service).await.context("cannot create the Service")?;
        let service: APIService = from_value(json!({
            "metadata": {"name": self.name()},
            "spec": {
                "group": self.group, "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
                "insecureSkipTLSVerify": true,
                "service": {"namespace": scene.namespace, "name": "melons", "port": port},
            },
        }))?;
        let services: Api<APIService> = Api::all(scene.client());
        services.create(&PostParams::default(), &service).await.context("cannot create the APIService")?;
        self.answers_with(scene, 200).await
    }

    fn name(&self) -> String {
        format!("v1.{}", self.group)
    }

    /// The apiVersion of the kind.
    pub fn api_version(&self) -> String {
        format!("{}/v1", self.group)
    }

    /// Ends all connections and accepts no other. Returns when the API server knows.
    ///
    /// # Errors
    /// It does not in time.
    pub async fn goes_down(&self, scene: &Scene) -> Result<()> {
        self.is_down.store(true, Ordering::Relaxed);
        if scene.cluster.kind() == Kind::Embedded { Ok(()) } else { self.answers_with(scene, 503).await }
    }

    /// Removes the APIService. Returns when the API server serves the group no more.
    ///
    /// # Errors
    /// It does not in time.
    pub async fn goes(&self, scene: &Scene) -> Result<()> {
        if scene.cluster.kind() == Kind::Embedded {
            return Ok(());
        }
        let services: Api<APIService> = Api::all(scene.client());
        services.delete(&self.name(), &DeleteParams::default()).await.context("cannot delete the APIService")?;
        self.answers_with(scene, 404).await
    }

    async fn answers_with(&self, scene: &Scene, code: u16) -> Result<()> {
        let path = format!("/apis/{}", self.api_version());
        eventually(&format!("the API server answers {code} to {path}"), async || {
            let (found, body) = get(&scene.client(), &path).await?;
            ensure!(found == code, "{found}: {body}");
            Ok(())
        })
        .await
    }
}

impl Drop for Aggregated {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Answers the requests of one connection.
async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    group: &str,
    namespace: &str,
    down: &AtomicBool,
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        };
        let rest = bytes.split_off(end);
        let head = String::from_utf8_lossy(&std::mem::replace(&mut bytes, rest)).into_owned();
        let target = head.split(' ').nth(1).unwrap_or_default();
        if down.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (code, body) = answer(target, group, namespace);
        if code == 0 {
            // A watch without events, until the server goes down.
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
                .await?;
            stream.flush().await?;
            while !down.load(Ordering::Relaxed) {
                let mut one = [0; 1];
                let pause = std::time::Duration::from_millis(50);
                if let Ok(read) = tokio::time::timeout(pause, stream.read(&mut one)).await
                    && read? == 0
                {
                    return Ok(());
                }
            }
            return Ok(());
        }
        let (body, of) = (body.to_string(), "application/json");
        let length = body.len();
        let head = format!("HTTP/1.1 {code} Status\r\ncontent-type: {of}\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.flush().await?;
    }
}

/// Returns code and body. The code 0 stands for a watch.
fn answer(target: &str, group: &str, namespace: &str) -> (u16, Value) {
    let api_version = format!("{group}/v1");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let status = |code: u16, reason: &str| json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason});
    if path == format!("/apis/{api_version}") {
        let resource = json!({
            "name": "melons", "singularName": "melon", "namespaced": true, "kind": "Melon",
            "verbs": ["create", "get", "list", "watch"],
        });
        return (
            200,
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": [resource]}),
        );
    }
    if path != format!("/apis/{api_version}/melons") {
        return (404, status(404, "NotFound"));
    }
    // The host asks for a list in pages then.
    if query.contains("sendInitialEvents") {
        return (422, status(422, "Invalid"));
    }
    if query.contains("watch=") {
        return (0, Value::Null);
    }
    let metadata = json!({"name": "galia", "namespace": namespace, "uid": "melon-1", "resourceVersion": "1"});
    let melon = json!({"apiVersion": api_version, "kind": "Melon", "metadata": metadata});
    (
        200,
        json!({"kind": "MelonList", "apiVersion": api_version, "metadata": {"resourceVersion": "1"}, "items": [melon]}),
    )
}
