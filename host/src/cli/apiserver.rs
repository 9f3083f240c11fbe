//! `pilothouse apiserver`: the embedded API server alone.

use std::{net::Ipv4Addr, path::PathBuf, sync::Arc};

use anyhow::Context;
use pilothouse_apiserver::Server;
use tokio::net::TcpListener;

use super::{args::ApiserverArgs, run::stop_signal};

pub(super) fn main(args: &ApiserverArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    runtime.block_on(async {
        let stop = stop_signal()?;
        let embedded = Embedded::bind(args.port, args.kubeconfig_out.clone()).await?;
        println!("API server at http://{}; stop with ctrl-c", embedded.listener.local_addr()?);
        println!("  export KUBECONFIG={}", embedded.kubeconfig.display());
        println!("  kubectl get namespaces");
        embedded.serve(stop).await
    })
}

/// An embedded API server that is bound and not yet serving.
pub(super) struct Embedded {
    pub(super) listener: TcpListener,
    pub(super) server: Arc<Server>,
    pub(super) kubeconfig: PathBuf,
}

impl Embedded {
    /// Binds the port, and writes the kubeconfig that leads to it.
    pub(super) async fn bind(port: u16, kubeconfig: Option<PathBuf>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.with_context(|| {
            format!("cannot listen on port {port} of 127.0.0.1: choose another with --port, or 0 for a free one")
        })?;
        let address = listener.local_addr().context("the listener has no address")?;
        let kubeconfig = kubeconfig
            .unwrap_or_else(|| std::env::temp_dir().join(format!("pilothouse-{}.kubeconfig", address.port())));
        std::fs::write(&kubeconfig, Server::kubeconfig(address))
            .with_context(|| format!("cannot write the kubeconfig {}", kubeconfig.display()))?;
        Ok(Self { listener, server: Arc::new(Server::new()), kubeconfig })
    }

    /// Serves until `stop` is ready.
    pub(super) async fn serve(self, stop: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
        pilothouse_apiserver::serve(self.listener, stop, self.server).await.context("the API server ended")
    }
}
