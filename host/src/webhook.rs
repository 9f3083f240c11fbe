//! The webhooks of the API server that plugins answer.
//!
//! ```text
//! API server ─ HTTPS ─► server ─► review ─► dispatch ─► `validate`, `mutate`, `convert`
//!      ▲                  ▲ certificate
//!      └── configurations ── keeper ◄── dispatch: which webhooks are granted and serve
//! ```
//!
//! - `certificate`: the serving certificate, and whom the API server must trust; both change while requests arrive
//! - `review`: the JSON of reviews and conversions
//! - `metrics`: what is counted of requests
//! - `server`: the HTTPS server
//! - `keeper`: the webhook configurations at the API server
//! - `board`: what is shown of all this at `/debug/webhooks`
//!
//! A host serves webhooks only if it has an [`Address`] for them. Nothing listens otherwise.

mod board;
mod certificate;
mod keeper;
mod metrics;
mod review;
mod server;

use std::{io, net::TcpListener, sync::Arc};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) use self::{board::Board, review::Conversion};
pub use self::{board::WebhookRow, certificate::Certificates, metrics::LastFailure};
use self::{keeper::Keeper, server::Answering};
use crate::{
    acting::Acting, cluster::Cluster, dispatch::Dispatch, informer::Informers, plugin::Statuses, writer::Endpoint,
};
pub use crate::{tls::CertificateError, writer::Address};

/// The settings of a host that serves webhooks.
#[derive(Debug)]
pub struct Options {
    /// Where it listens.
    pub listener: TcpListener,
    /// Where the API server reaches it.
    pub address: Address,
    /// Where its certificates come from.
    pub certificates: Certificates,
}

/// What the webhooks use of the rest of the host.
pub(crate) struct Parts {
    pub(crate) cluster: Cluster,
    pub(crate) informers: Informers,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) statuses: Statuses,
    /// The switch for the host's own work.
    pub(crate) acting: Acting,
    pub(crate) endpoint: Endpoint,
    pub(crate) board: Arc<Board>,
}

/// The tasks that serve webhooks. Dropping it ends them at once.
pub(crate) struct Webhooks {
    tasks: JoinSet<&'static str>,
    server: JoinSet<io::Result<()>>,
    stop: CancellationToken,
}

impl Webhooks {
    /// Starts to serve.
    ///
    /// # Errors
    /// If the listener or the files of the certificates cannot be used.
    pub(crate) fn start(options: &Options, parts: Parts) -> anyhow::Result<Self> {
        let listener = options.listener.try_clone()?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let serving = parts.board.serving.clone();
        let source = options.certificates.open(&serving, &parts.endpoint, &parts.cluster, &parts.acting)?;
        let stop = CancellationToken::new();
        let answering = Arc::new(Answering::new(&parts));
        let mut server = JoinSet::new();
        server.spawn(server::serve(listener, stop.clone(), serving, answering));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            source.run().await;
            "the task that renews the webhooks' certificate"
        });
        let keeper = Keeper::new(parts);
        tasks.spawn(async move {
            keeper.run().await;
            "the task that keeps the webhook configurations"
        });
        Ok(Self { tasks, server, stop })
    }

    /// Accepts no more connections, and waits for the requests in flight. The configurations stay: until another host
    /// serves, failure policies decide.
    pub(crate) async fn stopped(mut self) {
        self.stop.cancel();
        while self.server.join_next().await.is_some() {}
    }
}

/// Returns the name of a task that ended by itself. Never returns otherwise.
pub(crate) async fn ended(webhooks: &mut Option<Webhooks>) -> &'static str {
    let Some(Webhooks { tasks, server, .. }) = webhooks else { return std::future::pending().await };
    tokio::select! {
        Some(ended) = tasks.join_next() => ended.unwrap_or("a task of the webhooks"),
        Some(_) = server.join_next() => "the server of webhooks",
        else => std::future::pending().await,
    }
}
