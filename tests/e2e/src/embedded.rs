//! The embedded API server in this process. It can be killed and restarted.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context, Result};
use kube::Client;
use pilothouse_apiserver::{Server, Snapshot, serve};
use pilothouse_real::port;
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    sync::{Mutex, oneshot},
    task::JoinHandle,
};

use crate::{cluster::client, wait::eventually};

/// A server's data and the task that serves it.
#[derive(Debug)]
pub(crate) struct Embedded {
    server: Arc<Server>,
    address: SocketAddr,
    serving: Mutex<Option<Serving>>,
    saved: Mutex<Option<Snapshot>>,
    folder: TempDir,
}

/// A running server. Dropping it stops it soon.
#[derive(Debug)]
struct Serving {
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Embedded {
    pub(crate) async fn start() -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot create a folder for the kubeconfig")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()?));
        let embedded = Self {
            server: Arc::new(Server::new()),
            address,
            serving: Mutex::default(),
            saved: Mutex::default(),
            folder,
        };
        std::fs::write(embedded.kubeconfig(), Server::kubeconfig(address)).context("cannot write the kubeconfig")?;
        embedded.restart().await?;
        Ok(embedded)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    pub(crate) fn client(&self) -> Result<Client> {
        let url = format!("http://{}", self.address).parse().context("cannot make a URL of the address")?;
        client(kube::Config::new(url))
    }

    /// Cuts every connection and refuses new ones. Returns when that is done.
    pub(crate) async fn stop(&self) {
        if let Some(Serving { stop, task }) = self.serving.lock().await.take() {
            drop(stop);
            // A task that panicked has closed its connections too.
            let _ended = task.await;
        }
    }

    /// Keeps a copy of all data.
    pub(crate) async fn save(&self) {
        *self.saved.lock().await = Some(self.server.snapshot());
    }

    /// Restores the saved data. The server must be stopped.
    pub(crate) async fn restore(&self) -> Result<()> {
        self.stop().await;
        self.server.restore(self.saved.lock().await.as_ref().context("nothing was saved")?);
        self.restart().await
    }

    pub(crate) async fn restart(&self) -> Result<()> {
        self.stop().await;
        let listener = eventually("the port is free", async || {
            TcpListener::bind(self.address).await.with_context(|| format!("cannot listen on {}", self.address))
        })
        .await?;
        let (stop, stopped) = oneshot::channel();
        let stopped = async move {
            // Nothing is ever sent: the sender is dropped.
            let _dropped = stopped.await;
        };
        let task = tokio::spawn(serve(listener, stopped, Arc::clone(&self.server)));
        *self.serving.lock().await = Some(Serving { stop, task });
        Ok(())
    }
}
