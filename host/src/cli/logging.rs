//! Where log lines go, and how they look.

use std::io::IsTerminal;

use anyhow::Context;
use tracing::Level;
use tracing_subscriber::{EnvFilter, Layer, filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

use super::{
    args::LogFormat,
    feed::{self, Feed},
};

/// Logs to standard error, as the settings say.
pub(super) fn start(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let registry = tracing_subscriber::registry().with(parse(filter)?);
    match format {
        LogFormat::Text => {
            let coloured = std::io::stderr().is_terminal();
            registry.with(tracing_subscriber::fmt::layer().with_ansi(coloured).with_writer(std::io::stderr)).try_init()
        }
        LogFormat::Json => registry
            .with(tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(std::io::stderr))
            .try_init(),
    }
    .context("cannot start logging")
}

/// Shows what happens on standard output, and log lines among it.
pub(super) fn start_feed(filter: &str) -> anyhow::Result<()> {
    // Spans carry what the feed's lines belong to.
    let happenings =
        Targets::new().with_target("pilothouse::feed", Level::DEBUG).with_target("pilothouse", Level::INFO);
    let logs = tracing_subscriber::fmt::layer()
        .compact()
        .with_target(false)
        .with_ansi(feed::coloured())
        .with_timer(feed::Clock::default())
        .with_writer(std::io::stdout);
    tracing_subscriber::registry()
        .with(Feed::new().with_filter(happenings))
        .with(logs.with_filter(parse(filter)?.add_directive("pilothouse::feed=off".parse()?)))
        .try_init()
        .context("cannot start logging")
}

fn parse(filter: &str) -> anyhow::Result<EnvFilter> {
    EnvFilter::builder()
        .parse(filter)
        .with_context(|| format!("{filter:?} is no log filter, such as `info` or `info,pilothouse::informer=debug`"))
}
