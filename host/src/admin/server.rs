//! The HTTP servers, each on a thread of its own.
//!
//! | server | answers | to whom |
//! |---|---|---|
//! | metrics | all routes | over TLS: to those whom RBAC lets; plain: to everybody who connects |
//! | probes | `/healthz`, `/livez`, `/readyz`, without details | to everybody, plain |
//!
//! - `/healthz` and `/livez` answer as long as the process serves at all.
//! - `/readyz` is 200 or 503. On the server of metrics it has a line for each check of the host in kube-apiserver's
//!   form. With `verbose` in the query it also lists plugins and informers, which do not change the code.
//! - `/readyz/plugins/NAME` is the same for one plugin.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread,
};

use axum::Router;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{
    connections::{self, Limits, Served},
    guard::{Guard, Reviews},
    pages::State,
    routes::{probe_router, router},
};
use crate::{
    prompt::be_prompt,
    tls::{Acceptor, Certificates, HANDSHAKE, Renewal, Serving},
};

/// Threads of each server that collect answers. They may wait for locks of the host. Requests beyond them wait.
const COLLECTORS: usize = 4;

/// The servers' names in the log.
const METRICS: &str = "metrics";
const PROBES: &str = "probes";

/// Where a host shows itself.
#[derive(Debug, Default)]
pub struct Endpoints {
    /// Where all routes are. `None` serves none.
    pub metrics: Option<Metrics>,
    /// Where the probes are, plain and without details. `None` serves none.
    pub probes: Option<TcpListener>,
}

/// Where all routes are.
#[derive(Debug)]
pub struct Metrics {
    /// The listener.
    pub listener: TcpListener,
    /// The certificate, for TLS and authorization. `None` is plain and lets everybody do everything.
    pub certificates: Option<Certificates>,
}

impl Endpoints {
    /// Serves all routes plain, to everybody who connects.
    pub fn plain(listener: TcpListener) -> Self {
        Self { metrics: Some(Metrics { listener, certificates: None }), probes: None }
    }
}

/// The running servers.
#[derive(Default)]
pub struct Servers(Vec<oneshot::Receiver<()>>);

impl Servers {
    /// Returns when a server has ended. Never returns if there is none.
    pub async fn one_ends(&mut self) {
        if self.0.is_empty() {
            std::future::pending::<()>().await;
        }
        let _ended = futures::future::select_all(self.0.iter_mut()).await;
    }
}

/// Serves on threads of their own until `shutdown`. `reviews` says who may do what.
///
/// No plugin, no request to the API server and no lock of the host delays `/healthz`. It is answered on its server's
/// thread, and everything else on others. TLS and its clients are on another thread than the probes.
///
/// # Errors
/// If a certificate cannot be used, or a thread or its runtime cannot be started.
pub fn start(
    endpoints: Endpoints,
    shutdown: &CancellationToken,
    state: State,
    reviews: Arc<dyn Reviews>,
) -> anyhow::Result<Servers> {
    let mut servers = Servers::default();
    if let Some(Metrics { listener, certificates }) = endpoints.metrics {
        let address = listener.local_addr()?;
        let (router, tls) = match certificates {
            Some(certificates) => {
                let serving = Arc::<Serving>::default();
                let renewal = certificates.open(METRICS, serving.clone())?;
                let acceptor = Acceptor::new(METRICS, serving, &[b"http/1.1"], HANDSHAKE)?;
                (router(state.clone(), Some(&Arc::new(Guard::new(reviews)?))), Some((acceptor, renewal)))
            }
            None => {
                warn_if_open(address);
                (router(state.clone(), None), None)
            }
        };
        info!(%address, tls = tls.is_some(), "serving metrics");
        servers.0.push(spawn(METRICS, listener, shutdown.clone(), router, tls)?);
    }
    if let Some(listener) = endpoints.probes {
        info!(address = %listener.local_addr()?, "serving probes");
        servers.0.push(spawn(PROBES, listener, shutdown.clone(), probe_router(state), None)?);
    }
    Ok(servers)
}

fn warn_if_open(address: SocketAddr) {
    if !address.ip().is_loopback() {
        warn!(%address, "metrics and /debug are plain, and everybody who reaches this address may end a quarantine");
    }
}

fn spawn(
    name: &'static str,
    listener: TcpListener,
    shutdown: CancellationToken,
    router: Router,
    tls: Option<(Acceptor, Renewal)>,
) -> io::Result<oneshot::Receiver<()>> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(COLLECTORS)
        .thread_name(name)
        .build()?;
    let (ended, end) = oneshot::channel();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        be_prompt();
        let served = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let (acceptor, renewal) = tls.unzip();
            let served = Served { name, router, limits: Limits::DEFAULT, tls: acceptor };
            let serving = connections::serve(listener, shutdown.cancelled(), served);
            tokio::select! {
                served = serving => served,
                never = renewed(renewal) => match never {},
            }
        });
        // Does not wait for a collector that waits for a lock.
        runtime.shutdown_background();
        if let Err(error) = served {
            error!(server = name, %error, "the server ended");
        }
        // The receiver is dropped when the whole host ends.
        let _ = ended.send(());
    })?;
    Ok(end)
}

async fn renewed(renewal: Option<Renewal>) -> std::convert::Infallible {
    match renewal {
        Some(renewal) => renewal.run().await,
        None => std::future::pending().await,
    }
}
