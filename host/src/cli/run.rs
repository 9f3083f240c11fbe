//! `pilothouse run`: plugins against a cluster.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use super::{
    config::{self, CacheArgs},
    election::{ElectionArgs, Lease},
    endpoints::{self, EndpointArgs},
    logging::{self, LogArgs, LogFormat},
    webhooks::WebhookArgs,
};
use crate::{
    app::{self, Host, Options},
    cluster::{self, ConnectOptions},
    plugin::Mode,
};

/// Run plugins against a cluster
///
/// Each DIR/NAME.wasm is a plugin, and DIR/NAME.yaml grants its permissions. Files that appear, change or vanish take effect without a
/// restart. On SIGTERM, the calls in flight finish and the process exits with 0.
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
    /// Its members: plugins, cacheDir, kubeconfig, context, metricsAddress, healthProbeAddress, metricsSecure, metricsCertDir,
    /// gracePeriodSeconds, checkAccountsEverySeconds, logFormat, log, leaderElection.
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
    /// Time that calls in flight have to finish after SIGTERM [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub(super) grace_period: Option<u64>,
    /// Time between two checks of what the service accounts of plugins may read [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) check_accounts_every: Option<u64>,
    #[command(flatten)]
    pub(super) log: LogArgs,
    #[command(flatten)]
    pub(super) endpoints: EndpointArgs,
    #[command(flatten)]
    pub(super) election: ElectionArgs,
    #[command(flatten)]
    pub(super) webhooks: WebhookArgs,
}

pub(super) fn main(mut args: Args) -> anyhow::Result<()> {
    let webhooks = std::mem::take(&mut args.webhooks);
    let settings = Settings::new(args)?;
    ensure_directory(&settings.plugins)?;
    logging::start(settings.log_format, &settings.log)?;
    super::block_on(async {
        let stop = stop_signal()?;
        let endpoints = settings.endpoints.open()?;
        let webhooks = webhooks.open()?;
        let cluster = cluster::connect(&settings.connect).await?;
        info!(server = cluster.host(), "connecting to the API server");
        let options = Options {
            plugins: settings.plugins,
            stand_ins: Vec::new(),
            cache: Some(settings.cache),
            mode: Mode::Granted,
            grace_period: settings.grace_period,
            webhooks,
            election: settings.election.map(|lease| lease.in_namespace(&cluster.default_namespace(), &app::machine())),
            check_accounts_every: settings.check_accounts_every,
        };
        Host::new(options, &cluster)?.run(endpoints, stop).await
    })
}

/// The settings of a run: arguments, then the configuration file, then defaults.
#[derive(Debug)]
struct Settings {
    plugins: PathBuf,
    cache: PathBuf,
    connect: ConnectOptions,
    endpoints: endpoints::Settings,
    grace_period: Duration,
    log_format: LogFormat,
    log: String,
    check_accounts_every: Duration,
    election: Option<Lease>,
}

impl Settings {
    fn new(args: Args) -> anyhow::Result<Self> {
        let mut file = match &args.config {
            Some(path) => config::read(path)?,
            None => config::File::default(),
        };
        let endpoints = args.endpoints.or(file.endpoints())?;
        let Some(plugins) = args.plugins.or(file.plugins) else {
            bail!("no directory of plugins: give --plugins DIR, or `plugins:` in the file of --config");
        };
        Ok(Self {
            plugins,
            cache: args.cache.cache_dir.or(file.cache_dir).unwrap_or_else(config::cache_dir),
            connect: ConnectOptions {
                kubeconfig: args.kubeconfig.or(file.kubeconfig),
                context: args.context.or(file.context),
            },
            endpoints,
            // controller-runtime's default grace period, and Kubernetes' own for pods.
            grace_period: Duration::from_secs(args.grace_period.or(file.grace_period_seconds).unwrap_or(30)),
            log_format: args.log.log_format.or(file.log_format).unwrap_or_default(),
            log: args.log.log.or(file.log).unwrap_or_else(|| "info".into()),
            check_accounts_every: Duration::from_secs(
                args.check_accounts_every.or(file.check_accounts_every_seconds.map(u64::from)).unwrap_or(60),
            ),
            election: args.election.or(file.leader_election)?,
        })
    }
}

/// Fails if there is no directory of plugins.
pub(super) fn ensure_directory(plugins: &Path) -> anyhow::Result<()> {
    ensure!(
        plugins.exists(),
        "there is no directory of plugins {}: create it, or name another with --plugins",
        plugins.display()
    );
    ensure!(plugins.is_dir(), "{} is not a directory: name the directory of plugins with --plugins", plugins.display());
    Ok(())
}

/// Returns a future that is ready at the first SIGTERM or SIGINT. Further signals are ignored.
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn settings(config: &str, more: &[&str]) -> anyhow::Result<Settings> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, config)?;
        let path = path.display().to_string();
        let words = ["pilothouse", "run", "--config", &path].into_iter().chain(more.iter().copied());
        let Command::Run(args) = Cli::try_parse_from(words)?.command else { bail!("not run") };
        Settings::new(*args)
    }

    #[test]
    fn arguments_win_over_the_file_and_the_file_over_defaults() -> anyhow::Result<()> {
        let settings = settings("plugins: /a\ngracePeriodSeconds: 5\nlogFormat: json\n", &["--plugins", "/b"])?;
        assert_eq!(settings.plugins, Path::new("/b"));
        assert_eq!(settings.grace_period, Duration::from_secs(5));
        assert_eq!(settings.log_format, LogFormat::Json);
        Ok(())
    }

    #[test]
    fn endpoints_of_the_file_are_those_of_the_arguments() -> anyhow::Result<()> {
        let file = "plugins: /a\nmetricsAddress: ':8444'\nhealthProbeAddress: '0'\nmetricsCertDir: /certs\n";
        let by_file = settings(file, &[])?.endpoints;
        let words = ["--metrics-address=:8444", "--health-probe-address=0", "--metrics-cert-dir=/certs"];
        assert_eq!(settings("plugins: /a\n", &words)?.endpoints, by_file);
        // The names of kubebuilder's scaffold do the same.
        let words = ["--metrics-bind-address=:8444", "--health-probe-bind-address=0", "--metrics-cert-path=/certs"];
        assert_eq!(settings("plugins: /a\n", &words)?.endpoints, by_file);
        let error = settings("plugins: /a\nmetricsAddress: '8444'\n", &[]).map_err(|error| format!("{error:#}"));
        assert!(error.is_err_and(|error| error.contains("8444 is not an address")));
        Ok(())
    }

    #[test]
    fn a_misspelt_setting_is_named() {
        let error = settings("plugins: /a\ngracePeriod: 5\n", &[]).map_err(|error| format!("{error:#}"));
        assert!(error.is_err_and(|text| text.contains("config.yaml") && text.contains("gracePeriod")));
    }

    #[test]
    fn a_directory_of_plugins_that_is_missing_is_an_error_that_says_what_to_do() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        ensure_directory(dir.path())?;
        let error = |path: &Path| ensure_directory(path).map_err(|error| error.to_string()).err();
        let missing = error(&dir.path().join("none"));
        assert!(missing.is_some_and(|error| error.ends_with("none: create it, or name another with --plugins")));
        std::fs::write(dir.path().join("file"), "")?;
        assert!(error(&dir.path().join("file")).is_some_and(|error| error.contains("is not a directory")));
        Ok(())
    }
}
