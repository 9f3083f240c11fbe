//! Where log lines go, and how they look.

use std::io::IsTerminal;

use anyhow::Context;
use clap::ValueEnum;
use tracing::Level;
use tracing_subscriber::{EnvFilter, Layer, filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

use super::feed::{self, Feed};
use crate::dispatch::VALUES;

#[derive(Debug, Default, clap::Args)]
pub(super) struct LogArgs {
    /// How log lines look [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(super) log_format: Option<LogFormat>,
    /// Which log lines are written, such as `debug` or `info,pilothouse::informer=debug` [default: info]
    #[arg(long, value_name = "FILTER", env = "PILOTHOUSE_LOG")]
    pub(super) log: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Logs to standard error, as the settings say.
pub(super) fn start(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let registry = tracing_subscriber::registry().with(cluster_filter(filter)?);
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

/// What a host in a cluster logs. Values of objects are not for its log, whatever it is asked for.
fn cluster_filter(filter: &str) -> anyhow::Result<EnvFilter> {
    Ok(parse(filter)?.add_directive(format!("{VALUES}=off").parse()?))
}

fn parse(filter: &str) -> anyhow::Result<EnvFilter> {
    EnvFilter::builder()
        .parse(filter)
        .with_context(|| format!("{filter:?} is no log filter, such as `info` or `info,pilothouse::informer=debug`"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use tracing::enabled;

    use super::*;

    #[test]
    fn values_of_objects_are_logged_by_no_host_in_a_cluster_whatever_its_filter_says() {
        for filter in ["debug", "trace", "info,pilothouse::feed=debug", "pilothouse::feed::values=trace"] {
            let subscriber = tracing_subscriber::registry().with(cluster_filter(filter).unwrap());
            tracing::subscriber::with_default(subscriber, || {
                assert!(!enabled!(target: VALUES, Level::DEBUG), "{filter}");
                assert!(
                    filter.starts_with("pilothouse") || enabled!(target: "pilothouse::feed", Level::DEBUG),
                    "{filter}"
                );
            });
        }
    }
}
