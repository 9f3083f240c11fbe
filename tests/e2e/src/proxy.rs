//! A proxy between a host and its API server: HTTP CONNECT and SOCKS 5 on one port.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result, bail, ensure};
use kube::config::Kubeconfig;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Maximum size of a request for a tunnel, in bytes.
const MAX_HEAD: usize = 4096;

/// A name that proxies resolve to this machine, and nobody else knows.
pub const NAME: &str = "api.example.test";

/// Opens tunnels and counts them. Dropping it stops new ones.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    tunnels: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of this machine.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen")?;
        let address = listener.local_addr().context("a listener has an address")?;
        let tunnels = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&tunnels);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let counted = Arc::clone(&counted);
                tokio::spawn(async move {
                    // A client's error ends only its own connection.
                    if let Ok((near, far)) = open(near).await {
                        counted.fetch_add(1, Ordering::Relaxed);
                        pass(near, far).await;
                    }
                });
            }
        });
        Ok(Self { address, tunnels, accepting })
    }

    /// Number of tunnels opened so far.
    pub fn tunnels(&self) -> usize {
        self.tunnels.load(Ordering::Relaxed)
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Copies a kubeconfig into `folder`, with this proxy as its `proxy-url`.
    ///
    /// # Errors
    /// The kubeconfig cannot be read or written, or has no cluster.
    pub fn before(&self, kubeconfig: &Path, scheme: &str, folder: &Path) -> Result<PathBuf> {
        let mut file = Kubeconfig::read_from(kubeconfig).context("cannot read the kubeconfig")?;
        let cluster = file.clusters.iter_mut().find_map(|cluster| cluster.cluster.as_mut());
        cluster.context("it has no cluster")?.proxy_url = Some(format!("{scheme}://{}", self.address));
        let path = folder.join(format!("{scheme}.kubeconfig"));
        let text = serde_json::to_string(&file).context("cannot write a kubeconfig")?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Reads the client's target, connects to it, and confirms.
async fn open(mut near: TcpStream) -> Result<(TcpStream, TcpStream)> {
    let mut first = [0];
    near.read_exact(&mut first).await?;
    if first == [5] { open_socks(near).await } else { open_connect(near, first[0]).await }
}

async fn open_connect(mut near: TcpStream, first: u8) -> Result<(TcpStream, TcpStream)> {
    let mut head = vec![first];
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(head.len() < MAX_HEAD, "the request is too long");
        head.push(near.read_u8().await?);
    }
    let head = String::from_utf8(head)?;
    let target = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).context("not a CONNECT")?;
    let far = TcpStream::connect(target.replace(NAME, "127.0.0.1")).await?;
    near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    Ok((near, far))
}

async fn open_socks(mut near: TcpStream) -> Result<(TcpStream, TcpStream)> {
    let methods = near.read_u8().await?;
    near.read_exact(&mut vec![0; methods.into()]).await?;
    near.write_all(&[5, 0]).await?;
    let mut request = [0; 4];
    near.read_exact(&mut request).await?;
    let host = match request[3] {
        1 => Ipv4Addr::from(near.read_u32().await?).to_string(),
        3 => {
            let length = near.read_u8().await?;
            let mut name = vec![0; length.into()];
            near.read_exact(&mut name).await?;
            String::from_utf8(name)?.replace(NAME, "127.0.0.1")
        }
        4 => Ipv6Addr::from(near.read_u128().await?).to_string(),
        other => bail!("address type {other}"),
    };
    let port = near.read_u16().await?;
    let far = TcpStream::connect((host, port)).await?;
    near.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    Ok((near, far))
}

async fn pass(mut near: TcpStream, mut far: TcpStream) {
    // A tunnel ends when either side closes.
    let _ended = copy_bidirectional(&mut near, &mut far).await;
}
