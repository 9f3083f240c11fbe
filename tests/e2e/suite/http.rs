//! Requests of plugins to servers outside the cluster's API.

use std::{
    io,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::PostParams};
use parking_lot::Mutex;
use pilothouse_e2e::{Plugin, Scene};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::sleep,
};

/// A server on this machine that is slow, large or broken, as the path says. Dropping it stops it.
pub(crate) struct FarEnd {
    port: u16,
    connections: Arc<Connections>,
    accepting: JoinHandle<()>,
}

/// Connections to a [`FarEnd`].
#[derive(Default)]
struct Connections {
    all: AtomicUsize,
    /// The heads of requests.
    heads: Mutex<Vec<String>>,
}

impl FarEnd {
    pub(crate) async fn start() -> Result<Self> {
        Self::redirecting_to(0).await
    }

    /// Starts a server that redirects `/redirect` to this port.
    async fn redirecting_to(elsewhere: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let connections = Arc::<Connections>::default();
        let counted = Arc::clone(&connections);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counted = Arc::clone(&counted);
                counted.all.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    // A client that goes away is expected.
                    drop(answer(stream, elsewhere, &counted).await);
                });
            }
        });
        Ok(Self { port, connections, accepting })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn connections(&self) -> usize {
        self.connections.all.load(Ordering::Relaxed)
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers one request, and closes the connection.
async fn answer(mut stream: TcpStream, elsewhere: u16, connections: &Connections) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    connections.heads.lock().push(head.clone());
    match head.split(' ').nth(1).unwrap_or_default() {
        "/ok" => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\nwelcome").await,
        "/redirect" => {
            let head = format!(
                "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:{elsewhere}/ok\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await
        }
        "/large" | "/endless" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            loop {
                stream.write_all(&[b'x'; 65_536]).await?;
            }
        }
        // More than any client takes, and announced. Nothing of it follows.
        "/huge" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n").await?;
            stream.read_buf(&mut Vec::new()).await.map(drop)
        }
        "/slow" => {
            let mut some = [0; 1024];
            while stream.read(&mut some).await? > 0 {
                sleep(Duration::from_millis(5)).await;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

pub(crate) async fn invariant_7_requests_reach_only_the_servers_that_are_granted(scene: Scene) -> Result<()> {
    let elsewhere = FarEnd::start().await?;
    let far = FarEnd::redirecting_to(elsewhere.port()).await?;
    let secrets: Api<Secret> = Api::namespaced(scene.client(), &scene.namespace);
    let token = serde_json::from_value(json!({"metadata": {"name": "slack"}, "stringData": {"token": "s3cret"}}))?;
    secrets.create(&PostParams::default(), &token).await?;
    let secret = json!({"namespace": scene.namespace, "name": "slack", "key": "token"});
    let private = json!({
        "hosts": ["127.0.0.1"], "ports": [far.port()], "methods": ["POST"], "plain": true, "private": true,
        "headers": [{"name": "Authorization", "prefix": "Bearer ", "secret": secret}],
    });
    let public = json!({"hosts": ["localhost", "::1"], "ports": [far.port()], "methods": ["POST"], "plain": true});
    let plugin = Plugin::guest("sending")?
        .confined_to(&scene.namespace)
        .with("config", &json!({"port": far.port(), "elsewhere": elsewhere.port()}))?
        .with("http", &json!([private, public]))?;
    // Another plugin brings the kind.
    let (mut host, _) = crate::hostile::serves_beside_myapple(&scene, plugin).await?;
    let gala = scene.apple("gala");
    gala.create(1).await?;
    let status = gala.status_is("what came of it", |status| status["available"] == 1).await?;
    let told: Vec<[String; 3]> = status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|condition| {
            ["type", "reason", "message"].map(|member| condition[member].as_str().unwrap_or_default().to_owned())
        })
        .collect();
    for (name, reason, message) in [
        ("Granted", "Answered", "200 welcome"),
        ("OtherMethod", "NotGranted", "the administrator's file does not allow it"),
        ("OtherPort", "NotGranted", "the administrator's file does not allow it"),
        ("NotAsked", "NotGranted", "the plugin's manifest does not ask for it"),
        ("Redirected", "NotGranted", "the administrator's file does not allow it"),
        ("Name", "NotGranted", "which is not public"),
        ("IPv6", "NotGranted", "which is not public"),
        ("Large", "TooLarge", "more than 4 MiB"),
        ("Slow", "Timeout", "did not answer in time"),
        ("Broken", "Unreachable", "no response from"),
    ] {
        let fits = |[known, why, text]: &[String; 3]| known == name && why == reason && text.contains(message);
        ensure!(told.iter().any(fits), "{name} is not {reason}: {told:?}");
    }
    // Granted, redirected, large, slow and broken.
    ensure!(far.connections() == 5, "{} connections arrived", far.connections());
    ensure!(elsewhere.connections() == 0, "{} connections arrived elsewhere", elsewhere.connections());
    let heads = far.connections.heads.lock().clone();
    let has_token = heads.iter().all(|head| head.contains("authorization: Bearer s3cret\r\n"));
    ensure!(has_token && !status.to_string().contains("s3cret"), "the header is wrong: {heads:?}");
    let metrics = host.metrics().await?;
    for (result, count) in
        [("success", 1.0), ("not_granted", 6.0), ("too_large", 1.0), ("timeout", 1.0), ("unreachable", 1.0)]
    {
        let counted = metrics.sum("pilothouse_http_requests_total", &[("plugin", "sending"), ("result", result)]);
        ensure!(counted == count, "{counted} requests are counted as {result}");
    }
    Ok(())
}

pub(crate) async fn invariant_7_requests_to_a_server_end_when_its_grant_is_withdrawn(scene: Scene) -> Result<()> {
    let (far, elsewhere) = (FarEnd::start().await?, FarEnd::start().await?);
    let rule = json!({
        "hosts": ["127.0.0.1"], "ports": [far.port()], "methods": ["POST"], "plain": true, "private": true,
    });
    let plugin = |http: &[&Value]| {
        Plugin::guest("sending")?
            .confined_to(&scene.namespace)
            .with("config", &json!({"port": far.port(), "elsewhere": elsewhere.port()}))?
            .with("http", &json!(http))
    };
    let (_host, _) = crate::hostile::serves_beside_myapple(&scene, plugin(&[&rule])?).await?;
    let gala = scene.apple("gala");
    let is = |status: &Value, reason: &str, generation: u64| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let mut granted = conditions.filter(|condition| condition["type"] == "Granted");
        granted.any(|condition| condition["reason"] == reason && condition["observedGeneration"] == generation)
    };
    gala.create(1).await?.status_is("answered", |status| is(status, "Answered", 1)).await?;
    scene.with(&[plugin(&[])?])?;
    gala.status_is("refused", |status| is(status, "NotGranted", 1)).await?;
    // No request is under way: a call waits for the end of its own.
    let before = far.connections();
    gala.set(json!({"color": "red"})).await?;
    gala.status_is("refused again", |status| is(status, "NotGranted", 2)).await?;
    ensure!(far.connections() == before, "{} connections arrived, and {before} before", far.connections());
    Ok(())
}
