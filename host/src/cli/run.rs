//! `pilothouse run`: plugins against a cluster.

use std::sync::Arc;

use anyhow::Context;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tracing::info;

use super::{args::RunArgs, config::Settings, logging};
use crate::{
    app::{self, Host, Options},
    cluster,
    plugin::Mode,
};

pub(super) fn main(args: RunArgs) -> anyhow::Result<()> {
    let settings = Settings::new(args)?;
    logging::start(settings.log_format, &settings.log)?;
    let runtime = app::io_runtime()?;
    let done = runtime.block_on(async {
        let stop = stop_signal()?;
        let listener = TcpListener::bind(settings.admin_address).await.with_context(|| {
            format!("cannot listen on {}: choose another address with --admin-address", settings.admin_address)
        })?;
        let metrics = Arc::new(app::Metrics::new());
        let cluster = cluster::connect(&settings.connect, metrics.clone()).await?;
        info!(server = cluster.host(), "connecting to the API server");
        let options = Options {
            plugins: settings.plugins,
            cache: Some(settings.cache),
            mode: Mode::Granted,
            grace_period: settings.grace_period,
        };
        Host::new(options, &cluster, metrics)?.run(listener, stop).await
    });
    // A compilation under way is for nobody any more.
    runtime.shutdown_background();
    done
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
