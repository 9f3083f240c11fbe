//! Starts logging, with the arguments for it.

mod json;

use std::io::IsTerminal;

use anyhow::Context;
use clap::ValueEnum;
use tracing::Level;
use tracing_subscriber::{
    EnvFilter, Layer, filter::Targets, fmt::format::JsonFields, layer::SubscriberExt, util::SubscriberInitExt,
};

use super::feed::{self, Feed};
use crate::dispatch::VALUES;

#[derive(Debug, Default, clap::Args)]
pub(super) struct LogArgs {
    /// How log lines look [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(super) log_format: Option<LogFormat>,
    /// Which log lines are written, for example `debug` or `info,pilothouse::informer=debug` [default: info]
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

/// Starts logging to standard error.
pub(super) fn start(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let registry = tracing_subscriber::registry().with(cluster_filter(filter)?);
    match format {
        LogFormat::Text => {
            let coloured = std::io::stderr().is_terminal();
            registry.with(tracing_subscriber::fmt::layer().with_ansi(coloured).with_writer(std::io::stderr)).try_init()
        }
        LogFormat::Json => {
            let lines = tracing_subscriber::fmt::layer().fmt_fields(JsonFields::new()).event_format(json::Lines);
            registry.with(lines.with_writer(std::io::stderr)).try_init()
        }
    }
    .context("cannot start logging")
}

/// Starts the feed on standard output, with log lines among its events.
pub(super) fn start_feed(filter: &str) -> anyhow::Result<()> {
    // The feed needs the spans of reconciles.
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

/// Returns the filter of a host in a cluster. It never logs values of objects.
fn cluster_filter(filter: &str) -> anyhow::Result<EnvFilter> {
    Ok(parse(filter)?.add_directive(format!("{VALUES}=off").parse()?))
}

/// The client's own lines about requests that failed. The host logs each of them with its context.
const CLIENT: &str = "kube_client::client::builder";

fn parse(filter: &str) -> anyhow::Result<EnvFilter> {
    let parsed = EnvFilter::builder().parse(filter).with_context(|| {
        format!("{filter:?} is not a log filter; use for example `info` or `info,pilothouse::informer=debug`")
    })?;
    Ok(if filter.contains("kube_client") { parsed } else { parsed.add_directive(format!("{CLIENT}=off").parse()?) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use tracing::enabled;

    use super::*;

    #[test]
    fn a_request_that_failed_is_logged_once_unless_the_filter_names_the_client() {
        for (filter, expected) in [("info", false), ("debug", false), ("info,kube_client=debug", true)] {
            let subscriber = tracing_subscriber::registry().with(parse(filter).unwrap());
            tracing::subscriber::with_default(subscriber, || {
                assert_eq!(enabled!(target: CLIENT, Level::ERROR), expected, "{filter}");
            });
        }
    }

    #[test]
    fn a_host_in_a_cluster_never_logs_values_of_objects_whatever_its_filter() {
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
