//! A TCP relay between a host and its API server. It can cut connections while the server keeps running.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use kube::config::Kubeconfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::broadcast,
    task::JoinHandle,
};

/// Forwards the bytes of any number of connections. Dropping it stops new ones; open ones last until either side
/// closes.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    cut: broadcast::Sender<()>,
    accepting: JoinHandle<()>,
}

impl Relay {
    /// Starts a relay to `server`.
    ///
    /// # Errors
    /// No port is free.
    pub async fn to(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen")?;
        let address = listener.local_addr().context("a listener has an address")?;
        // A cut reaches each connection once.
        let (cut, _) = broadcast::channel(1);
        let cuts = cut.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(pass(near, server, cuts.subscribe()));
            }
        });
        Ok(Self { address, cut, accepting })
    }

    /// Copies a kubeconfig for `server` into `folder`, with the relay's address in it.
    ///
    /// # Errors
    /// The kubeconfig cannot be read or written, or has no address.
    pub async fn before(kubeconfig: &Path, folder: &Path) -> Result<(Self, PathBuf)> {
        let mut file = Kubeconfig::read_from(kubeconfig).context("cannot read the kubeconfig")?;
        let cluster = file.clusters.iter_mut().find_map(|cluster| cluster.cluster.as_mut());
        let server = cluster.and_then(|cluster| cluster.server.as_mut()).context("it has no address")?;
        let address = server.strip_prefix("https://").unwrap_or(server);
        let relay = Self::to(address.parse().context("its address is no IP address and port")?).await?;
        *server = format!("https://{}", relay.address);
        let path = folder.join("relayed.kubeconfig");
        let text = serde_json::to_string(&file).context("cannot write a kubeconfig")?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok((relay, path))
    }

    /// Cuts every open connection. New ones are accepted.
    pub fn cut(&self) {
        // Fails only if no connection is open.
        let _ended = self.cut.send(());
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(mut near: TcpStream, server: SocketAddr, mut cut: broadcast::Receiver<()>) {
    let Ok(mut far) = TcpStream::connect(server).await else { return };
    tokio::select! {
        _ended = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        _cut = cut.recv() => {}
    }
}
