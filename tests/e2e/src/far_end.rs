//! A server outside the cluster, on this machine. It records each request and answers all with the same status.

use std::{
    io,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::wait::eventually;

/// The server. Dropping it stops it.
pub struct FarEnd {
    port: u16,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

struct State {
    status: AtomicU16,
    requests: Mutex<Vec<Request>>,
}

/// A request that it got.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Method and path, such as `PUT /hosts/a`.
    pub what: String,
    /// The lines of the headers.
    pub headers: String,
    /// The body: JSON, or null if it is not.
    pub body: Value,
}

impl FarEnd {
    /// Starts a server that answers with status 200.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen")?;
        let port = listener.local_addr().context("a listener has an address")?.port();
        let state = Arc::new(State { status: AtomicU16::new(200), requests: Mutex::default() });
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                // A client that goes away is expected.
                tokio::spawn(async move { drop(answer(stream, &state).await) });
            }
        });
        Ok(Self { port, state, accepting })
    }

    /// Its port at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of a path, which begins with `/`.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Answers later requests with this status.
    pub fn answer_with(&self, status: u16) {
        self.state.status.store(status, Ordering::Relaxed);
    }

    /// The requests, in the order of their arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().clone()
    }

    /// Waits for a request, such as `PUT /hosts/a`, and returns the first.
    ///
    /// # Errors
    /// It does not come in time. The error says what came.
    pub async fn gets(&self, what: &str) -> Result<Request> {
        eventually(&format!("the server gets {what}"), async || {
            let requests = self.requests();
            let found = requests.iter().find(|request| request.what == what).cloned();
            ensure!(found.is_some(), "it got {:?}", requests.iter().map(|request| &request.what).collect::<Vec<_>>());
            found.context("it is there")
        })
        .await
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers one request, and closes the connection.
async fn answer(mut stream: TcpStream, state: &State) -> io::Result<()> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    };
    let mut body = bytes.split_off(head);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (line, headers) = text.split_once("\r\n").unwrap_or_default();
    let length = |header: &str| header.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok();
    let length: usize = headers.lines().find_map(length).unwrap_or_default();
    while body.len() < length {
        if stream.read_buf(&mut body).await? == 0 {
            return Ok(());
        }
    }
    state.requests.lock().push(Request {
        what: line.rsplit_once(' ').map_or(line, |(what, _)| what).to_owned(),
        headers: headers.to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    });
    let status = state.status.load(Ordering::Relaxed);
    let head = format!("HTTP/1.1 {status} Status\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await
}
