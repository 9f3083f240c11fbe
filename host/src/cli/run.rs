//! `pilothouse run`: plugins against a cluster.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Context;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tracing::info;

use super::{
    config::{CacheArgs, Settings},
    logging::{self, LogArgs},
};
use crate::{
    app::{Host, Options},
    cluster,
    plugin::Mode,
};

/// Run plugins against a cluster
///
/// Each DIR/NAME.wasm is a plugin, and DIR/NAME.yaml says what it may do. Files that appear, change or vanish take effect without a
/// restart. SIGTERM finishes the calls in flight and exits 0.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  pilothouse run --plugins /plugins
  pilothouse run --plugins ./plugins --kubeconfig ~/.kube/config --context staging --log-format text
  pilothouse run --config /etc/pilothouse/config.yaml")]
pub(super) struct Args {
    /// The directory of plugins
    #[arg(long, value_name = "DIR")]
    pub(super) plugins: Option<PathBuf>,
    /// A YAML file with any of these settings; arguments win over it
    ///
    /// Its members: plugins, cacheDir, kubeconfig, context, adminAddress, gracePeriodSeconds, logFormat, log.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) cache: CacheArgs,
    /// A kubeconfig file [default: $KUBECONFIG, then ~/.kube/config, then the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Where /healthz, /readyz and /metrics are served [default: 0.0.0.0:8080]
    ///
    /// Port 0 takes a free one; the log says which.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) admin_address: Option<SocketAddr>,
    /// How long calls in flight may take to finish after SIGTERM [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub(super) grace_period: Option<u64>,
    #[command(flatten)]
    pub(super) log: LogArgs,
}

pub(super) fn main(args: Args) -> anyhow::Result<()> {
    let settings = Settings::new(args)?;
    logging::start(settings.log_format, &settings.log)?;
    super::block_on(async {
        let stop = stop_signal()?;
        let listener = TcpListener::bind(settings.admin_address).await.with_context(|| {
            format!("cannot listen on {}: choose another address with --admin-address", settings.admin_address)
        })?;
        let cluster = cluster::connect(&settings.connect).await?;
        info!(server = cluster.host(), "connecting to the API server");
        let options = Options {
            plugins: settings.plugins,
            cache: Some(settings.cache),
            mode: Mode::Granted,
            grace_period: settings.grace_period,
        };
        Host::new(options, &cluster)?.run(listener, stop).await
    })
}

/// Ready at the first SIGTERM or SIGINT. From then on the signals do nothing more: the end has begun.
///
/// # Errors
/// If the process may not handle signals.
pub(super) fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut term = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => info!("SIGTERM: stopping"),
            _ = interrupt.recv() => info!("interrupted: stopping"),
        }
    })
}
