//! A TCP relay between controllers and their API server that records when a mark passes.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use kube::config::Kubeconfig;
use memchr::memmem;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinHandle,
};

use super::now;

/// Buffer size, larger than an event.
const BUFFER: usize = 64 << 10;

/// Forwards the bytes of any number of connections. Dropping it stops new ones.
pub(crate) struct Wire {
    address: SocketAddr,
    looking: Arc<Mutex<Looking>>,
    accepting: JoinHandle<()>,
}

/// The mark to find in the server's bytes.
#[derive(Default)]
struct Looking {
    mark: String,
    /// When it passed first, just before it was written to the controller.
    passed: Option<Duration>,
}

impl Wire {
    /// Starts a wire to the server of a kubeconfig, which must be without TLS.
    pub(crate) async fn before(kubeconfig: &Path) -> Result<Self> {
        let file = Kubeconfig::read_from(kubeconfig).context("cannot read the kubeconfig")?;
        let cluster = file.clusters.into_iter().find_map(|cluster| cluster.cluster);
        let server = cluster.and_then(|cluster| cluster.server).context("it has no address")?;
        let server: SocketAddr = server
            .strip_prefix("http://")
            .unwrap_or(&server)
            .parse()
            .context("its address is no IP address and port")?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen")?;
        let address = listener.local_addr().context("a listener has an address")?;
        let looking: Arc<Mutex<Looking>> = Arc::default();
        let looks = Arc::clone(&looking);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(connect(near, server, Arc::clone(&looks)));
            }
        });
        Ok(Self { address, looking, accepting })
    }

    /// The URL of its near end.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes a kubeconfig with the wire's address.
    pub(crate) fn write_kubeconfig(&self, path: &Path) -> Result<()> {
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {"server": self.url()}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "users": [{"name": "bench", "user": {}}],
        });
        std::fs::write(path, text.to_string()).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Starts to look for these bytes.
    pub(crate) fn look_for(&self, mark: &str) {
        *self.looking.lock() = Looking { mark: mark.to_owned(), passed: None };
    }

    /// Waits for the bytes and returns when they passed.
    pub(crate) fn passed(&self) -> Option<Duration> {
        self.looking.lock().passed
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn connect(near: TcpStream, server: SocketAddr, looking: Arc<Mutex<Looking>>) {
    let Ok(far) = TcpStream::connect(server).await else { return };
    // Without TCP_NODELAY an event could be held back.
    if near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).is_err() {
        return;
    }
    let ((mut asks, answers), (says, mut asked)) = (near.into_split(), far.into_split());
    tokio::select! {
        _ended = copy(&mut asks, &mut asked) => {}
        _ended = pass(says, answers, &looking) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, looking: &Mutex<Looking>) -> std::io::Result<()> {
    let (mut buffer, mut seam) = (vec![0; BUFFER], Seam::default());
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let bytes = &buffer[..read];
        {
            let mut looking = looking.lock();
            if looking.passed.is_none() && seam.finds(looking.mark.as_bytes(), bytes) {
                looking.passed = Some(now());
            }
            seam.keep(bytes);
        }
        to.write_all(bytes).await?;
    }
}

/// The end of the previous read: a mark may be split between two reads.
#[derive(Default)]
struct Seam(Vec<u8>);

impl Seam {
    /// Number of bytes kept, longer than a mark.
    const LENGTH: usize = 64;

    fn finds(&self, mark: &[u8], bytes: &[u8]) -> bool {
        let across = || [&self.0[..], &bytes[..bytes.len().min(Self::LENGTH)]].concat();
        !mark.is_empty() && (memmem::find(bytes, mark).is_some() || memmem::find(&across(), mark).is_some())
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&bytes[bytes.len().saturating_sub(Self::LENGTH)..]);
        self.0.drain(..self.0.len().saturating_sub(Self::LENGTH));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_in_one_read_and_across_two() {
        let mut seam = Seam::default();
        assert!(!seam.finds(b"", b"anything"));
        assert!(seam.finds(b"mark-7", b"here is mark-7."));
        seam.keep(b"half of ma");
        assert!(!seam.finds(b"mark-7", b"nothing"));
        assert!(seam.finds(b"mark-7", b"rk-7 is here"));
        seam.keep(b"r");
        seam.keep(b"k");
        assert!(seam.finds(b"mark-7", b"-7"));
    }
}
