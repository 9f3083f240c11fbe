//! A TCP relay between a host and its API server. It can cut connections while the server keeps running.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use kube::config::Kubeconfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{broadcast, watch},
    task::JoinHandle,
};

/// What becomes of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Bytes pass.
    Open,
    /// No byte passes, and neither side learns of it. Bytes sent meanwhile are lost, and the connections end when the line opens again.
    Silent,
    /// They end, and new ones end at once.
    Closed,
}

/// Forwards the bytes of any number of connections. Dropping it stops new ones; open ones last until either side
/// closes.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    cut: broadcast::Sender<()>,
    line: watch::Sender<Line>,
    accepting: JoinHandle<()>,
}

impl Relay {
    /// Starts a relay to `server`.
    ///
    /// # Errors
    /// No port is free.
    pub async fn to(server: SocketAddr) -> Result<Self> {
        Self::at(Ipv4Addr::LOCALHOST.into(), server).await
    }

    /// Starts a relay to `server` that listens on an address of this machine.
    ///
    /// # Errors
    /// The machine does not have the address, or no port is free.
    pub async fn at(address: IpAddr, server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((address, 0)).await.context("cannot listen")?;
        let address = listener.local_addr().context("a listener has an address")?;
        // A cut reaches each connection once.
        let (cut, _) = broadcast::channel(1);
        let cuts = cut.clone();
        let (line, state) = watch::channel(Line::Open);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(pass(near, server, cuts.subscribe(), state.clone()));
            }
        });
        Ok(Self { address, cut, line, accepting })
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

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every open connection. New ones are accepted.
    pub fn cut(&self) {
        // Fails only if no connection is open.
        let _ended = self.cut.send(());
    }

    /// Changes what becomes of connections, open and new ones.
    pub fn set(&self, line: Line) {
        self.line.send_replace(line);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(
    mut near: TcpStream,
    server: SocketAddr,
    mut cut: broadcast::Receiver<()>,
    mut line: watch::Receiver<Line>,
) {
    let Ok(mut far) = TcpStream::connect(server).await else { return };
    let is_silent = tokio::select! {
        // First of all, so that nothing passes after the change.
        biased;
        changed = line.wait_for(|line| *line != Line::Open) => changed.is_ok_and(|line| *line == Line::Silent),
        _cut = cut.recv() => false,
        _ended = tokio::io::copy_bidirectional(&mut near, &mut far) => false,
    };
    if is_silent {
        // Both sides stay open meanwhile. An error means that the relay is gone.
        let _opened = line.wait_for(|line| *line != Line::Silent).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn connected(relay: &Relay, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let near = TcpStream::connect(relay.address).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        (near, far)
    }

    async fn passes(from: &mut TcpStream, to: &mut TcpStream) {
        from.write_all(b"a").await.unwrap();
        assert_eq!(to.read_u8().await.unwrap(), b'a');
    }

    #[tokio::test]
    async fn what_is_sent_over_a_silent_line_is_lost_with_its_connection() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::to(listener.local_addr().unwrap()).await.unwrap();
        let (mut near, mut far) = connected(&relay, &listener).await;
        passes(&mut near, &mut far).await;
        passes(&mut far, &mut near).await;
        relay.set(Line::Silent);
        near.write_all(b"b").await.unwrap();
        // The relay has this thread now, and sees the change.
        tokio::task::yield_now().await;
        relay.set(Line::Open);
        far.read_u8().await.unwrap_err();
        near.read_u8().await.unwrap_err();
        let (mut near, mut far) = connected(&relay, &listener).await;
        passes(&mut near, &mut far).await;
    }

    #[tokio::test]
    async fn a_closed_line_ends_open_and_new_connections() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::to(listener.local_addr().unwrap()).await.unwrap();
        let (mut near, _far) = connected(&relay, &listener).await;
        relay.set(Line::Closed);
        near.read_u8().await.unwrap_err();
        let mut new = TcpStream::connect(relay.address).await.unwrap();
        new.read_u8().await.unwrap_err();
    }
}
